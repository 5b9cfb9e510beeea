"""Writing reports to files: whole or not at all, and never over another file unasked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from gzip import GzipFile
from pathlib import Path

from trace_doctor.errors import OutputError, UsageError

SUFFIXES = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".txt": "terminal",
    ".perfetto.json": "perfetto",
    ".perfetto.json.gz": "perfetto",
}
"""Endings of files and their formats; of several that fit the longest counts."""
PACKING = 4
"""Level of gzip: traces hardly get smaller beyond it, only later."""
AS_TRACE = {".json": "perfetto", ".json.gz": "perfetto"}
"""What endings stand for as well where the format is asked for by name."""


def format_of(path: str, asked: str | None = None) -> str:
    """The format that a file's suffix stands for, with the format asked for on the command line. Raises UsageError for any other suffix."""
    known = SUFFIXES | AS_TRACE if asked == "perfetto" else SUFFIXES
    name, suffix = Path(path).name.lower(), Path(path).suffix.lower()
    fitting = [ending for ending in known if name.endswith(ending) and name != ending]
    if not fitting:
        msg = (
            f"don't know which report to write into a file that ends in {suffix!r}"
            if suffix
            else "the file needs a suffix"
        )
        raise UsageError(msg, where=f"--output {path}", hint=f"end it in {', '.join(SUFFIXES)}, or use '-' for stdout")
    return known[max(fitting, key=len)]


def check(paths: Sequence[str], *, force: bool) -> None:
    """Raise before the work what would fail after it: OutputError for a file that is there or a folder that is not."""
    for path in map(Path, paths):
        if len([other for other in paths if Path(other) == path]) > 1:
            msg = "this file is asked for twice"
            raise UsageError(msg, where=f"--output {path}")
        if path.exists() and not path.is_file():
            msg = "is there already and is no ordinary file"
            raise OutputError(msg, where=str(path), hint="give another name")
        if path.exists() and not force:
            msg = "is there already, and would be overwritten"
            raise OutputError(msg, where=str(path), hint="add --force, or give another name")
        if not path.parent.is_dir():
            msg = f"the folder {path.parent} does not exist"
            raise OutputError(msg, where=str(path), hint=f"mkdir -p {path.parent}")


def write(path: str, content: bytes | Iterable[bytes], *, force: bool = False) -> None:
    """Write a file so that it is either whole or not there: into a neighbour first, then renamed over the name.

    Content that comes in pieces is never held as a whole, and is packed where the name ends in .gz, the same bytes every time.
    Raises OutputError where the file exists and `force` is not set, or where the folder can't be written to.
    """
    check([path], force=force)
    target = Path(path)
    neighbour = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            if isinstance(content, bytes):
                neighbour.write_bytes(content)
            else:
                _stream(neighbour, content, packed=target.suffix.lower() == ".gz")
            neighbour.replace(target)
        finally:
            neighbour.unlink(missing_ok=True)
    except OSError as error:
        msg = f"can't be written: {error.strerror or error}"
        raise OutputError(msg, where=path, hint="free some space, or give a folder that you may write to") from error


def _stream(path: Path, pieces: Iterable[bytes], *, packed: bool) -> None:
    with path.open("wb") as file:
        if not packed:
            file.writelines(pieces)
            return
        with GzipFile("", "wb", PACKING, file, mtime=0) as out:
            for piece in pieces:
                out.write(piece)
