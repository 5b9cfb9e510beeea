"""Loads the JSON traces of PyTorch's profiler (Kineto): text to frames, with everything that had to be mended named."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from trace_doctor.errors import CorruptTraceError, InputError, NothingToAnalyzeError, UnsupportedInputError
from trace_doctor.loaders import cutting, decoding, impossible, naming, repair, workers
from trace_doctor.loaders.cutting import LayoutError, Progress
from trace_doctor.loaders.decoding import Decoded
from trace_doctor.trace import SCHEMAS, Meta, Trace, Warning

ALONE_BYTES = {".gz": 4 << 20, ".zst": 4 << 20}
"""Files smaller than this are decoded without worker processes, by suffix; others below 48 MB."""
LOST_SHARE = 0.01
"""A trace that lost more of its events than this is refused."""
_NOTES = {
    "cut_gzip": "the gzip stream ends early: the trace is truncated and the report partial",
    "damaged_gzip": "the gzip stream is damaged: what could be unpacked was read, the trace is incomplete",
    "cut_zstd": "the zstd stream ends early: the trace is truncated and the report partial",
    "cut_json": "the file ends early (truncated): its last events are missing and the report is partial",
}
_COLLECTIVE_TEXTS = {
    "name": ("Collective name",),
    "dtype": ("dtype",),
    "group": ("Process Group Name",),
    "group_description": ("Process Group Description",),
    "ranks": ("Process Group Ranks",),
}
_COLLECTIVE_NUMBERS = {
    "in_elements": ("In msg nelems", "In msg size"),
    "out_elements": ("Out msg nelems", "Out msg size"),
    "group_size": ("Group size",),
    "sequence": ("Seq",),
}


class Header(msgspec.Struct, kw_only=True):
    """The top-level keys that are used; all others are dropped unread."""

    deviceProperties: Any = None
    distributedInfo: Any = None
    cupti_version: Any = None
    hip_runtime_version: Any = None
    roctracer_version: Any = None


class Events(NamedTuple):
    """All parts of a file together."""

    frames: dict[str, pl.DataFrame]
    others: Counter[tuple[str, str]]
    """Events that belong to no frame, by phase and category."""
    labels: dict[tuple[Any, Any], str]
    header: Header
    warnings: tuple[Warning, ...]


def load(path: Path, *, jobs: int | None = None, progress: Progress | None = None) -> Trace:
    """The trace of a file, unlinked: no call, op or parent is filled in, and every call's kind is "other".

    Raises InputError where the file is no trace, CorruptTraceError where its meaning is not sure.
    """
    with ThreadPoolExecutor(1) as thread:
        digest = thread.submit(_sha256, path)
        events = read(path, jobs=jobs, progress=progress)
    _refuse_idle(path, events)
    frames, information = events.frames, _mapping(events.header.distributedInfo)
    working = _distinct([frames["ops"]["thread"], frames["calls"]["thread"]])
    host = naming.host(working, _distinct([frames["annotations"]["thread"]]), events.labels)
    devices = naming.devices(_distinct([frames["activities"]["owner"]]), host)
    properties = events.header.deviceProperties
    activities, warnings = impossible.remove(_placed(frames["activities"], devices))
    activities = activities.with_row_index("activity")
    ops, calls, annotations = (_on_threads(frames[name], host) for name in ("ops", "calls", "annotations"))
    meta = Meta(
        path=str(path),
        format="kineto",
        size_bytes=path.stat().st_size,
        sha256=digest.result(),
        rank=_whole(information.get("rank"), rank_of(path)),
        world_size=_whole(information.get("world_size"), None),
        node_devices=len(properties) if isinstance(properties, list) and properties else None,
        devices=naming.describe(devices, properties, _distinct([calls["name"]])),
        processes=host.processes,
        threads=host.threads,
        has_shapes=ops["shapes"].null_count() < ops.height,
        has_stacks=bool((annotations["kind"] == "python").any()),
        has_ops=ops.height > 0,
        tables_missing=tuple(_missing(ops, calls)),
        warnings=(*events.warnings, *_left_out(events.others), *warnings),
    )
    return Trace(
        meta=meta,
        activities=_conform(activities, "activities"),
        ops=_conform(ops.with_row_index("op"), "ops"),
        calls=_conform(calls.with_row_index("call").with_columns(kind=pl.lit("other")), "calls"),
        annotations=_conform(annotations, "annotations"),
        collectives=_conform(_collectives(activities, ops), "collectives"),
    )


def rank_of(path: Path) -> int | None:
    """The rank that a file's name tells, as in rank3.json, rank-3_trace.json or worker3_step_12.json."""
    found = re.search(r"(?:rank|worker)[-_.]?(\d+)", path.name, re.IGNORECASE)
    return int(found[1]) if found else None


def read(path: Path, *, jobs: int | None = None, progress: Progress | None = None) -> Events:
    """Decodes the whole file. Where its layout misleads, it is read again with every cut proven."""
    try:
        return _read(path, jobs=jobs, progress=progress, prove=False)
    except LayoutError:
        return _read(path, jobs=jobs, progress=progress, prove=True)


def _read(path: Path, *, jobs: int | None, progress: Progress | None, prove: bool) -> Events:
    notes: Counter[str] = Counter()
    blocks = cutting.blocks(path, notes, progress)
    try:
        start = cutting.opening(blocks)
    except InputError as error:
        raise type(error)(error.what, where=str(path), hint=error.hint) from None
    plain = path.read_bytes()[:1] if path.stat().st_size < 2 else _first(path)
    if start.laid_out and not prove and plain in b"{[":
        parts = cutting.spans(path, start, progress=progress)
    else:
        parts = cutting.parts(path, start, blocks, prove=prove or not start.laid_out)
    with _collector_off():
        return _together(
            path, start, list(_checked(workers.imap(decoding.decode, parts, jobs=jobs or _jobs(path)))), notes
        )


def _first(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1)


def _checked(parts: Iterator[Decoded]) -> Iterator[Decoded]:
    for part in parts:
        if part.misfit:
            raise LayoutError
        yield part


def _jobs(path: Path) -> int:
    small = path.stat().st_size < ALONE_BYTES.get(path.suffix, 48 << 20)
    return (
        1
        if small
        else min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)
    )


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


def _together(path: Path, start: cutting.Opening, parts: list[Decoded], notes: Counter[str]) -> Events:
    others: Counter[tuple[str, str]] = reduce(add, (part.others for part in parts), Counter())
    repairs = reduce(add, (part.repairs for part in parts), notes)
    _refuse(path, start, sum(part.events for part in parts), repairs)
    header, whole = _header(path, start, parts[-1].rest)
    bare_list = not start.keys
    if parts[-1].remnant or (not whole and not bare_list):
        repairs["cut_json"] += 1
    frames = {frame: _joined([part.frames for part in parts], frame) for frame in decoding.ARGUMENTS}
    labels = {key: label for part in parts for key, label in part.labels.items()}
    return Events(frames, others, labels, header, tuple(_warnings(repairs)))


def _refuse_idle(path: Path, events: Events) -> None:
    """A trace without GPU activity would read as a GPU that idles all the time."""
    if events.frames["activities"].height:
        return
    others = {name for _, category in events.others if (name := decoding.unsupported(category))}
    if others:
        msg = f"no GPU activity: the trace is of an accelerator that is not supported, {', '.join(sorted(others))}"
        raise UnsupportedInputError(
            msg, where=str(path), hint="trace-doctor reads traces of CUDA, ROCm and XPU devices"
        )
    if events.frames["calls"].height:
        msg = (
            "no GPU activity in the trace, though the host launched work: the profiler got no kernel records "
            "(CUPTI not initialised, WSL, or no permission)"
        )
        hint = (
            "check that another profiler is not attached, that GPU performance counters are allowed, and record again"
        )
    else:
        msg = "no GPU activity in the trace: a run on the CPU only, or profiled without the GPU"
        hint = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (XPU on Intel) while the GPU works"
    raise NothingToAnalyzeError(msg, where=str(path), hint=hint)


def _distinct(columns: Iterable[pl.Series]) -> list[str]:
    return list(
        dict.fromkeys(text for column in columns for text in column.unique(maintain_order=True).cast(pl.String))
    )


def _placed(activities: pl.DataFrame, devices: naming.Devices) -> pl.DataFrame:
    owner = activities["owner"]
    return activities.with_columns(
        naming.number(owner, devices.numbers, pl.UInt16).alias("device"),
        naming.number(owner, devices.processes, pl.UInt16).alias("process"),
        *(_canonical(activities[name]) for name in ("grid", "block")),
    )


def _on_threads(frame: pl.DataFrame, host: naming.Host) -> pl.DataFrame:
    """Host ranges with their thread's number, without those that lack a time."""
    texts = [name for name in ("shapes", "dtypes", "concrete") if name in frame.columns]
    return frame.with_columns(
        naming.number(frame["thread"], host.numbers, pl.UInt32).alias("thread"),
        *(_canonical(frame[name]) for name in texts),
        duration_ns=pl.col("duration_ns").fill_null(0).clip(lower_bound=0),
    ).filter(pl.col("start_ns").is_not_null())


def _canonical(texts: pl.Series) -> pl.Series:
    """JSON texts as json.dumps lays them out, whatever the file's layout."""
    found = texts.unique().drop_nulls().cast(pl.String)
    mended = [_dumped(text) for text in found]
    return texts if mended == found.to_list() else texts.replace(found, pl.Series(mended, dtype=pl.Categorical))


def _dumped(text: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any, otherwise: int | None) -> int | None:
    return value if type(value) is int else otherwise


def _refuse(path: Path, start: cutting.Opening, events: int, repairs: Counter[str]) -> None:
    lost = repairs["lost_events"]
    if not start.keys and not events:
        msg = "not a trace: a JSON list, but not of traceEvents"
        raise InputError(msg, where=str(path), hint="give the JSON file that torch.profiler wrote")
    if lost > LOST_SHARE * (events + lost) + 10 or (lost and not events):
        msg = f"the JSON is corrupt: {lost} of {events + lost} events are malformed"
        raise CorruptTraceError(msg, where=str(path), hint="record the trace again, each rank to a file of its own")


def _header(path: Path, start: cutting.Opening, rest: bytes | None) -> tuple[Header, bool]:
    """The used keys around the events, and whether the file is whole."""
    header = _keys(start.keys)
    if rest is None:
        return header, False
    text = rest.lstrip(b" \t\r\n\0")
    if start.keys:
        text = ('{"":0' + text.decode("utf-8", "replace")).encode()
        problem = cutting.fault(text)
        position = problem[1] if problem and problem[0] == "trailing" else len(text)
        after = text[position:].strip(b" \t\r\n\0")
        tail = _keys(text[:position])
        header = Header(**{name: getattr(tail, name) or getattr(header, name) for name in Header.__struct_fields__})
        whole = problem is None or problem[0] != "truncated"
    else:
        after, whole = text, True
    if after[:1] in (b"{", b"["):
        msg = "more than one JSON document in the file (concatenated)"
        raise CorruptTraceError(
            msg, where=str(path), hint="two ranks may have written the same path: give each its own file"
        )
    return header, whole


def _keys(text: bytes) -> Header:
    for mended in (text, repair.characters(text, Counter())):
        try:
            return msgspec.json.decode(mended, type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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


def _left_out(others: Counter[tuple[str, str]]) -> Iterator[Warning]:
    """Events that may matter but are not read: pairs of begin and end, and categories that nobody knows."""
    pairs = sum(count for (phase, _), count in others.items() if phase in ("B", "E"))
    if pairs:
        yield Warning(
            "begin_end_events", f"{pairs} begin and end events were left out: only complete (X) events are read"
        )
    unknown = {
        category: count for (phase, category), count in others.items() if phase == "X" and not decoding.known(category)
    }
    if unknown:
        listed = ", ".join(f"{name or 'none'} ({count})" for name, count in sorted(unknown.items())[:5])
        yield Warning(
            "unknown_categories", f"{sum(unknown.values())} events of unknown categories were left out: {listed}"
        )


def _missing(ops: pl.DataFrame, calls: pl.DataFrame) -> Iterator[str]:
    if ops.is_empty():
        yield "host ops"
    if calls.is_empty():
        yield "launch calls"
    if ops["shapes"].null_count() == ops.height:
        yield "op shapes"


def _conform(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """The frame with exactly the columns and types of its schema; columns that it lacks are null."""
    return frame.select(
        (pl.col(column) if column in frame.columns else pl.lit(None)).cast(spec.dtype).alias(column)
        for column, spec in SCHEMAS[name].items()
    )


def _collectives(activities: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """What kernels say of their collective, else what the op with their external id says of it."""
    by_op = ops.filter(pl.col("collective").is_not_null()).select("external", by_op="collective").drop_nulls()
    told = (
        activities.filter(pl.col("kind") == "compute")
        .select("activity", "external", "collective")
        .join(by_op.unique("external", keep="last"), on="external", how="left")
        .select("activity", text=pl.coalesce("collective", "by_op"))
        .drop_nulls()
        .sort("activity")
    )
    rows = [json.loads(text) for text in told["text"]]
    texts = {column: [_text(_first_of(row, keys)) for row in rows] for column, keys in _COLLECTIVE_TEXTS.items()}
    numbers = {
        column: decoding.integers([_first_of(row, keys) for row in rows])
        for column, keys in _COLLECTIVE_NUMBERS.items()
    }
    return pl.DataFrame(
        {"activity": told["activity"]} | {k: pl.Series(v, dtype=pl.String) for k, v in texts.items()} | numbers
    )


def _first_of(row: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((row[key] for key in keys if key in row), None)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
