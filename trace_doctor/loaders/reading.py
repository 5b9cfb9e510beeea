"""Reads a whole Kineto file: all parts decoded, in order, with what had to be repaired and the keys around the events."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from trace_doctor.errors import CorruptTraceError, InputError
from trace_doctor.loaders import cutting, decoding, repair, workers
from trace_doctor.loaders.cutting import LayoutError, Opening, Progress
from trace_doctor.loaders.decoding import Decoded
from trace_doctor.loaders.parsing import BROKEN
from trace_doctor.trace import Warning

ALONE_BYTES = {"": 48 << 20, "gzip": 4 << 20, "zstd": 4 << 20}
"""Files smaller than this, by their packing, are decoded without worker processes."""
MOST_JOBS = 4
"""More workers than this wait for the reader."""
LOST_SHARE = 0.01
"""A trace that lost more of its events than this (and ten) is refused."""
_NOTES = {
    "cut_gzip": "the gzip stream ends early: the trace is truncated and the report partial",
    "damaged_gzip": "the gzip stream is damaged: what could be unpacked was read, the trace is incomplete",
    "cut_zstd": "the zstd stream ends early or is damaged: the trace is truncated and the report partial",
    "cut_json": "the file ends early (truncated): its last events are missing and the report is partial",
}
_BLANK = b" \t\r\n\0"


class Header(msgspec.Struct, kw_only=True, rename="camel"):
    """The top-level keys that are used; all others are dropped unread."""

    device_properties: Any = None
    distributed_info: Any = None


class Events(NamedTuple):
    """All parts of a file together."""

    frames: dict[str, pl.DataFrame]
    """activities, ops, calls and annotations, not yet numbered."""
    others: Counter[tuple[str, str]]
    """Events that belong to no frame, by phase and category."""
    labels: dict[tuple[Any, Any], str]
    """The profiler's names of threads, by (pid, tid)."""
    header: Header
    warnings: tuple[Warning, ...]


def read(path: Path, *, jobs: int | None = None, progress: Progress | None = None) -> Events:
    """Decodes the whole file. Where its layout misleads, it is read again with every cut proven."""
    try:
        return _read(path, jobs=jobs, progress=progress, prove=False)
    except LayoutError:
        return _read(path, jobs=jobs, progress=progress, prove=True)


def _read(path: Path, *, jobs: int | None, progress: Progress | None, prove: bool) -> Events:
    notes: Counter[str] = Counter()
    blocks = cutting.blocks(path, notes, progress)
    start = cutting.opening(path, blocks)
    packing = cutting.packing(path)
    if start.laid_out and not prove and not packing:
        parts = cutting.spans(path, start, progress=progress)
    else:
        parts = cutting.parts(path, start, blocks, prove=prove or not start.laid_out)
    with _collector_off():
        decoded = list(_fitting(workers.imap(decoding.decode, parts, jobs=jobs or _jobs(path, packing))))
        return _together(path, start, decoded, notes)


def _fitting(parts: Iterator[Decoded]) -> Iterator[Decoded]:
    for part in parts:
        if part.misfit:
            raise LayoutError
        yield part


def _jobs(path: Path, packing: str) -> int:
    if path.stat().st_size < ALONE_BYTES[packing]:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1, cores - 1), MOST_JOBS)  # the caller keeps a core busy: it reads, hashes and joins


@contextmanager
def _collector_off() -> Iterator[None]:
    """Millions of short-lived objects and no cycles: the collector would only walk them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _together(path: Path, start: Opening, parts: list[Decoded], notes: Counter[str]) -> Events:
    others: Counter[tuple[str, str]] = reduce(add, (part.others for part in parts), Counter())
    counts = reduce(add, (part.repairs for part in parts), notes)
    _refuse(path, start, sum(part.events for part in parts) - others["", ""], counts)
    end = parts[-1].end
    assert end
    header, is_whole = _header(path, start, end.rest)
    if end.remnant or (not is_whole and start.keys):
        counts["cut_json"] += 1
    frames = {frame: _joined([part.frames for part in parts], frame) for frame in decoding.ARGUMENTS}
    labels = {key: label for part in parts for key, label in part.labels.items()}
    return Events(frames, others, labels, header, tuple(_warnings(counts)))


def _refuse(path: Path, start: Opening, events: int, counts: Counter[str]) -> None:
    lost = counts["lost_events"]
    if not start.keys and not events:
        msg = "not a trace: a JSON list, but not of traceEvents"
        raise InputError(msg, where=str(path), hint=cutting.HINT)
    if lost > LOST_SHARE * (events + lost) + 10 or (lost and not events):
        msg = f"the JSON is corrupt: {lost} of {events + lost} events are malformed"
        raise CorruptTraceError(msg, where=str(path), hint="record the trace again, each rank to a file of its own")


def _header(path: Path, start: Opening, rest: bytes | None) -> tuple[Header, bool]:
    """The used keys around the events, and whether the file is whole."""
    header = _keys(start.keys)
    if rest is None:
        return header, False
    if not start.keys:
        _refuse_more(path, rest)
        return header, True
    text = b'{"":0' + rest.strip(_BLANK)
    problem = cutting.fault(text)
    stop = problem[1] if problem and problem[0] == "trailing" else len(text)
    _refuse_more(path, text[stop:])
    tail = _keys(text[:stop])
    both = {name: getattr(tail, name) or getattr(header, name) for name in Header.__struct_fields__}
    return Header(**both), problem is None or problem[0] != "truncated"


def _refuse_more(path: Path, text: bytes) -> None:
    if text.strip(_BLANK)[:1] in (b"{", b"["):
        msg = "more than one JSON document in the file (concatenated)"
        hint = "two ranks may have written the same path: give each its own file"
        raise CorruptTraceError(msg, where=str(path), hint=hint)


def _keys(text: bytes) -> Header:
    for mended in (text, repair.characters(text, Counter())):
        try:
            return msgspec.json.decode(mended, type=Header)
        except BROKEN:
            continue
    return Header()


def _joined(parts: list[dict[str, pl.DataFrame]], frame: str) -> pl.DataFrame:
    """The parts' frames in file order, each freed once it is taken."""
    pieces = [part.pop(frame) for part in parts if frame in part]
    return pl.concat(pieces, rechunk=True) if pieces else decoding.nothing(frame)


def _warnings(counts: Counter[str]) -> Iterator[Warning]:
    for code, sentence in (_NOTES | repair.SENTENCES).items():
        if counts[code]:
            yield Warning(code, sentence.format(count=counts[code]))
