"""Finds trace files and loads them, whatever they are packed in."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trace_doctor.errors import InputError, UnsupportedInputError
from trace_doctor.loaders import kineto, linking, naming
from trace_doctor.trace import Trace

SUFFIXES = (".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep")
"""Endings of the files that are taken from a folder."""
_SQLITE = b"SQLite format 3\x00"
_LFS = b"version https://git-lfs"


def find(paths: Sequence[str]) -> tuple[Path, ...]:
    """Trace files from files, folders (with all folders below) and globs, each once, those of a folder in rank order.

    Raises InputError where a path does not exist or holds no trace.
    """
    return tuple(dict.fromkeys(file for path in paths for file in _found(path)))


def load(path: Path, *, jobs: int | None = None, progress: Callable[[int, int], None] | None = None) -> Trace:
    """The linked trace of a file, whatever its name: its content says what it is.

    `jobs` worker processes decode it (None: as many as pay off); `progress` is told the bytes read so far and in all.
    Raises InputError for what is no trace, NothingToAnalyzeError where no GPU activity was recorded.
    """
    start = _start(path)
    if start.startswith(_SQLITE):
        msg = "a SQLite database: Nsight Systems exports are not read yet, only PyTorch profiler traces"
        raise UnsupportedInputError(
            msg, where=str(path), hint="record the run with torch.profiler and give its JSON trace"
        )
    if path.suffix == ".nsys-rep":
        msg = "a binary Nsight Systems report, which only Nsight's own tools read"
        hint = f"nsys export --type sqlite --output {path.stem}.sqlite {path.name}"
        raise UnsupportedInputError(msg, where=str(path), hint=hint)
    if start.startswith(_LFS):
        msg = "a Git LFS pointer, not the trace itself"
        raise UnsupportedInputError(msg, where=str(path), hint="git lfs pull")
    return linking.link(kineto.load(path, jobs=jobs, progress=progress))


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
    if Path(path).is_dir():
        files = [file for file in Path(path).rglob("*") if file.name.lower().endswith(SUFFIXES) and file.is_file()]
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
