"""Makes an export of an Nsight Systems report (.nsys-rep, .qdrep), which only `nsys` itself can read."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from trace_doctor.errors import CorruptTraceError, InputError, UnsupportedInputError
from trace_doctor.loaders.naming import natural
from trace_doctor.loaders.nsight.database import MAGIC

SUFFIXES = (".nsys-rep", ".qdrep")
NEEDED = "the version that wrote it or a newer one"
_WRITER = re.compile(rb"NVIDIA Tegra Profiler Report (\d{4})@(\d{1,3})@(\d{1,3})@")
_PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/cuda*/nsight-systems*/bin/nsys",
    "/usr/lib/nsight-systems*/**/nsys",
    "/Applications/NVIDIA Nsight Systems*.app/Contents/MacOS/nsys",
)
_WINDOWS = "NVIDIA Corporation/Nsight Systems */target-windows-x64/nsys.exe"


def is_report(path: Path, start: bytes) -> bool:
    """Whether a file is such a report, by its first bytes or its name."""
    return bool(_WRITER.match(start)) or path.suffix in SUFFIXES


def exported(report: Path, start: bytes, *, nsys: str | None) -> Path:
    """The SQLite export of a report: the one beside it if it is newer, else one in the cache, made now where there is none yet.

    Raises UnsupportedInputError where there is no `nsys`, InputError where it fails; both say what to run elsewhere.
    """
    if not start.strip(b"\0"):
        msg = "its header is empty: the recording was interrupted"
        raise CorruptTraceError(msg, where=str(report), hint="record the run again")
    beside, kept = report.with_suffix(".sqlite"), _cached(report)
    for made in (beside, kept):
        if _is_whole(made) and made.stat().st_mtime >= report.stat().st_mtime:
            return made
    tool = find(nsys)
    if tool is None:
        msg = f"a binary report of Nsight Systems{_version(start)}, and there is no nsys here to export it"
        raise UnsupportedInputError(msg, where=str(report), hint=_elsewhere(report))
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f"{kept.stem}.{os.getpid()}.sqlite")
    try:
        _run(tool, report, partial, start)
        partial.replace(kept)
    finally:
        partial.unlink(missing_ok=True)
    return kept


def find(nsys: str | None) -> str | None:
    """The `nsys` to run: as asked for, of the environment, of the PATH, else the newest in the places where installers put it.

    Raises InputError where the one asked for cannot be run.
    """
    asked = nsys or os.environ.get("NSYS")
    if asked:
        found = shutil.which(asked)
        if found is None:
            msg = "no program that can be run"
            raise InputError(msg, where=asked, hint="give the path of nsys itself with --nsys")
        return found
    return shutil.which("nsys") or next((str(path) for path in _installed() if os.access(path, os.X_OK)), None)


def cache_folder() -> Path:
    """Where exports are kept: the user's cache folder."""
    home = Path.home()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData/Local"
    elif sys.platform == "darwin":
        base = home / "Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "trace-doctor" / "nsight"


def _installed() -> Iterator[Path]:
    prefix = os.environ.get("CONDA_PREFIX")
    if prefix:
        yield Path(prefix) / "bin/nsys"
    places = [(Path("/"), place[1:]) for place in _PLACES]
    if programs := os.environ.get("PROGRAMFILES"):
        places.append((Path(programs), _WINDOWS))
    for root, place in places:
        yield from sorted(root.glob(place), key=lambda path: natural(str(path)), reverse=True)


def _cached(report: Path) -> Path:
    """Named after the report as it is now, so that a new recording of the same name is exported anew."""
    state = report.stat()
    key = f"{report.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    return cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.sqlite"


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _run(tool: str, report: Path, target: Path, start: bytes) -> None:
    """Runs the export; older versions know no --include-json, which gives the sizes of collectives."""
    command = [tool, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target)]
    for more in (["--include-json", "true"], []):
        try:
            done = subprocess.run(
                [*command, *more, str(report)], stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        except OSError as problem:
            msg = f"{tool} can't be run: {problem.strerror}"
            raise InputError(msg, where=str(report), hint=_elsewhere(report)) from None
        if done.returncode == 0 and _is_whole(target):
            return
    msg = f"a report of Nsight Systems{_version(start)}, which {tool} does not export (exit code {done.returncode})"
    raise InputError(msg, where=str(report), hint=_elsewhere(report))


def _version(start: bytes) -> str:
    """Of the writer, as the header says; 2025.5.2 stands there as 2025@5@2@266-..."""
    found = _WRITER.match(start)
    return " " + b".".join(found.groups()).decode() if found else ""


def _elsewhere(report: Path) -> str:
    made, given = shlex.quote(f"{report.stem}.sqlite"), shlex.quote(report.name)
    return (
        f"with nsys ({NEEDED}): nsys export --type sqlite --include-json true --output {made} {given}, and give {made}; "
        "or name nsys with --nsys PATH"
    )
