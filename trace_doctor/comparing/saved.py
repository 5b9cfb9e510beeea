"""Reports that were saved as JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trace_doctor.errors import CorruptTraceError
from trace_doctor.report import Report, from_json

HEAD_BYTES = 512
MARK = b'"schema_version"'
ANEW = "make it anew: trace-doctor analyze ... -o report.json"


def read(path: Path) -> Report | None:
    """The report in a file; null where the file is none, but maybe a trace. Raises CorruptTraceError for a report that can't be read."""
    if path.suffix != ".json" or not path.is_file():
        return None
    with path.open("rb") as file:
        if MARK not in file.read(HEAD_BYTES):
            return None
    try:
        report = from_json(path.read_bytes())
    except (msgspec.MsgspecError, RecursionError) as problem:
        msg = f"is a saved report that can't be read: {problem}"
        raise CorruptTraceError(msg, where=str(path), hint=ANEW) from problem
    if report.window.duration_ns <= 0:
        msg = "is no saved report of a trace: it has no window"
        raise CorruptTraceError(msg, where=str(path), hint=ANEW)
    return report
