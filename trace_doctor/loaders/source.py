"""Finds trace files and loads them, whatever they are packed in."""

from __future__ import annotations

import glob
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from trace_doctor.errors import InputError, TraceDoctorError, UnsupportedInputError
from trace_doctor.loaders import kineto, linking, naming
from trace_doctor.loaders.nsight import database, export, folder
from trace_doctor.loaders.nsight import loading as nsight
from trace_doctor.trace import Trace

SUFFIXES = (".json", ".json.gz", ".json.zst", ".sqlite", *export.SUFFIXES)
"""Endings of the files that are taken from a folder."""
STDIN = "-"
_LFS = b"version https://git-lfs"
_SAVED = b'"schema_version"'


def find(paths: Sequence[str]) -> tuple[Path, ...]:
    """Trace files from files, folders (with all folders below) and globs, each once, those of a folder in rank order.

    Raises InputError where a path does not exist or holds no trace.
    """
    return tuple(dict.fromkeys(file for path in paths for file in _found(path)))


def load(
    path: Path,
    *,
    jobs: int | None = None,
    nsys: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """The linked trace of a file or of a folder with an Nsight export, whatever its name: its content says what it is.

    `jobs` worker processes decode it (None: as many as pay off), `nsys` is the program that exports Nsight reports (None: as
    found); `progress` is told the bytes read so far and in all.
    Raises InputError for what is no trace, NothingToAnalyzeError where no GPU activity was recorded.
    """
    if str(path) == STDIN or path.is_fifo():
        with _spooled(path) as copy:
            trace = load(copy, jobs=jobs, nsys=nsys, progress=progress)
        return replace(trace, meta=replace(trace.meta, path=str(path)))
    if path.is_dir() and folder.is_export(path):
        return linking.link(nsight.load(path))
    start = _start(path)
    if start.startswith(_LFS):
        msg = "a Git LFS pointer, not the trace itself"
        raise UnsupportedInputError(msg, where=str(path), hint="git lfs pull")
    if _SAVED in start:
        msg = "a saved report, not a trace"
        raise InputError(msg, where=str(path), hint="trace-doctor compare BASE NEW reads saved reports")
    if export.is_report(path, start):
        return linking.link(nsight.load(export.exported(path, start, nsys=nsys), report=path))
    if start.startswith(database.MAGIC) or path.suffix == ".sqlite":
        return linking.link(nsight.load(path))
    return linking.link(kineto.load(path, jobs=jobs, progress=progress))


def size_bytes(path: Path) -> int:
    """Length of a file; 0 for stdin and pipes, whose length nobody knows before their end."""
    return 0 if str(path) == STDIN else path.stat().st_size


@contextmanager
def _spooled(pipe: Path) -> Iterator[Path]:
    """What comes from stdin or a pipe as a file, which loaders may read from anywhere; errors don't name the file."""
    name = "stdin" if str(pipe) == STDIN else str(pipe)
    with TemporaryDirectory(prefix="trace-doctor-") as folder:
        copy = Path(folder) / "trace"
        with copy.open("wb") as file, nullcontext(sys.stdin.buffer) if name == "stdin" else pipe.open("rb") as sent:
            shutil.copyfileobj(sent, file)
        try:
            yield copy
        except TraceDoctorError as error:
            error.where = error.where and error.where.replace(str(copy), name)
            raise


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        msg = f"cannot be read: {error.strerror}"
        raise InputError(msg, where=str(path), hint="check the path and its permissions") from None


def _found(path: str) -> Iterator[Path]:
    if re.match(r"[a-z][a-z0-9+.-]+://", path, re.IGNORECASE):
        msg = "URLs are not read yet"
        raise UnsupportedInputError(msg, where=path, hint="download the file and give its path")
    if path == STDIN or (Path(path).is_dir() and folder.is_export(Path(path))):
        files, problem = [Path(path)], ""
    elif Path(path).is_dir():
        files = [file for file in Path(path).rglob("*") if _is_trace(file)]
        problem = "no traces in this folder: no file ends in " + ", ".join(SUFFIXES)
    elif Path(path).exists():
        files, problem = [Path(path)], ""
    else:
        files = [Path(file) for file in glob.glob(path, recursive=True) if Path(file).is_file()]  # noqa: PTH207  absolute globs
        problem = "no file matches" if glob.has_magic(path) else "no such file or folder"
    if not files:
        raise InputError(
            problem, where=path, hint="check the path; a folder, a file or a glob such as 'traces/rank*.json.gz'"
        )
    yield from sorted(files, key=lambda file: naming.natural(str(file)))


def _is_trace(path: Path) -> bool:
    """Whether something in a folder is a trace by its name; of an Nsight report and its export the export is."""
    if path.is_dir():
        return folder.is_export(path)
    is_exported = path.suffix in export.SUFFIXES and path.with_suffix(".sqlite").exists()
    return path.name.lower().endswith(SUFFIXES) and path.is_file() and not is_exported
