"""The whole JSON document: the original with our tracks, the loaded trace with our tracks, or our tracks alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.errors import UsageError
from trace_doctor.loaders import source
from trace_doctor.overlay import original, timeline
from trace_doctor.overlay.events import SEPARATOR
from trace_doctor.overlay.tracks import Shown, tracks
from trace_doctor.report import Report

ALONE = b'{"displayTimeUnit":"ms"}'


def draw(report: Report, analyses: Sequence[Analysis], *, alone: bool = False, shown: Shown = str) -> Iterator[bytes]:
    """The document in pieces. `alone`: without the trace itself; `shown` says how its names are shown.

    Raises UsageError where several traces went into the report: their processes can't stand beside each other in one file.
    """
    _refuse_several(len(report.sources), alone=alone)
    ours = tracks(report, analyses, shown)
    if alone:
        return _framed(ALONE, ours)
    trace = analyses[0].trace
    path = Path(trace.meta.path)
    if trace.meta.format == "kineto" and path.is_file() and original.is_whole(path):
        return original.with_events(path, ours)
    return _framed(timeline.header(trace), chain(timeline.timeline(trace), ours))


def check(paths: Sequence[str], *, alone: bool) -> None:
    """Raise what `draw` would, before the work."""
    _refuse_several(len(source.find(paths)), alone=alone)


def _refuse_several(traces: int, *, alone: bool) -> None:
    if traces > 1 and not alone:
        msg = f"tracks are added to one trace, and {traces:,} were given"
        raise UsageError(msg, hint="give one file, or --overlay-only for the tracks of all of them without the traces")


def _framed(header: bytes, events: Iterable[bytes]) -> Iterator[bytes]:
    """An object of the header's keys and the events."""
    yield header.removesuffix(b"}") + b',"traceEvents":[\n'
    for number, event in enumerate(events):
        yield (SEPARATOR if number else b"") + event
    yield b"\n]}\n"
