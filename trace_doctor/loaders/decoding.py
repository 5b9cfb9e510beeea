"""Decodes a part of a trace's event list into frames.

Two phases, because most of an event's text is arguments that nobody asks for: first the events with their arguments
kept as text, then the arguments of the wanted categories, all of a frame at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from trace_doctor.loaders import categories, parsing
from trace_doctor.loaders.cutting import Part
from trace_doctor.loaders.numerals import integers, nanoseconds
from trace_doctor.loaders.parsing import BROKEN

_RAW = msgspec.Raw(b"")


class Argument(NamedTuple):
    """A column read from an event's arguments: "integer", JSON "text" or "any", and its keys, newest spelling first."""

    type: str
    keys: tuple[str, ...]


_EXTERNAL = Argument("integer", ("External id", "external id"))
_CORRELATION = Argument("integer", ("correlation",))
_COLLECTIVE = Argument("any", ("Collective name",))
ARGUMENTS: dict[str, dict[str, Argument]] = {
    "activities": {
        "device": Argument("any", ("device",)),
        "stream": Argument("any", ("stream",)),
        "correlation": _CORRELATION,
        "external": _EXTERNAL,
        "bytes": Argument("integer", ("bytes",)),
        "grid": Argument("text", ("grid",)),
        "block": Argument("text", ("block",)),
        "collective": _COLLECTIVE,
    },
    "ops": {
        "shapes": Argument("text", ("Input Dims", "Input dims")),
        "dtypes": Argument("text", ("Input type",)),
        "concrete": Argument("text", ("Concrete Inputs",)),
        "sequence": Argument("integer", ("Sequence number",)),
        "forward_thread": Argument("integer", ("Fwd thread id",)),
        "external": _EXTERNAL,
        "collective": _COLLECTIVE,
    },
    "calls": {"correlation": _CORRELATION, "external": _EXTERNAL},
    "annotations": {},
    "memory": {
        "device": Argument("any", ("Device Id",)),
        "device_type": Argument("integer", ("Device Type",)),
        "allocated": Argument("integer", ("Total Allocated",)),
        "reserved": Argument("integer", ("Total Reserved",)),
    },
}
"""What is read from the arguments, per frame."""


INSTANTS = {("i", "cpu_instant_event"): "memory"}
"""Frames of events without a duration, by phase and category."""


class Decoded(NamedTuple):
    """What one part holds."""

    frames: dict[str, pl.DataFrame]
    events: int
    """Events of all kinds."""
    others: Counter[tuple[str, str]]
    """Events that belong to no frame, by phase and category."""
    repairs: Counter[str]
    labels: dict[tuple[Any, Any], str]
    """The profiler's names of threads, by (pid, tid)."""
    end: parsing.End | None = None
    """Of the last part."""
    misfit: bool = False
    """The part does not hold whole events: the layout misled."""


def _argument_struct(frame: str) -> Any:
    fields = [
        (f"{column}_{number}", *_field(argument, key))
        for column, argument in ARGUMENTS[frame].items()
        for number, key in enumerate(argument.keys)
    ]
    return msgspec.defstruct(f"{frame.title()}Arguments", fields, gc=False)


def _field(argument: Argument, key: str) -> tuple[Any, Any]:
    if argument.type == "text":
        return msgspec.Raw, msgspec.field(default=_RAW, name=key)
    return Any, msgspec.field(default=None, name=key)


_STRUCTS = {frame: _argument_struct(frame) for frame in ARGUMENTS}
_DECODERS = {frame: msgspec.json.Decoder(list[struct]) for frame, struct in _STRUCTS.items()}  # type: ignore[valid-type]


def nothing(frame: str) -> pl.DataFrame:
    """A frame without rows, for a file without such events."""
    return _frame(frame, [parsing.LooseEvent()]).clear()


def decode(part: Part) -> Decoded:
    """The frames of a part: activities, ops, calls, annotations, as far as it holds them."""
    repairs: Counter[str] = Counter()
    text, end = part.read(), None
    if part.last:
        end = parsing.end(text, repairs)
        text = end.events
    text = text.rstrip().removesuffix(b",")
    try:
        decoded = _decoded(parsing.strict(text), repairs)
    except BROKEN:
        events = parsing.loose(text, repairs)
        if events is None:
            if not (part.proven or part.last):
                return Decoded({}, 0, Counter(), Counter(), {}, misfit=True)
            events = list(parsing.saved(text, repairs))
        decoded = _decoded(events, repairs)
    return decoded._replace(end=end)


def _decoded(events: Sequence[Any], repairs: Counter[str]) -> Decoded:
    place = _Places()
    for event in events:
        place[event.ph, event.cat].append(event)
    frames = {frame: _frame(frame, found) for frame, found in place.frames.items() if found}
    others = Counter({key: len(place[key]) for key in place.others})
    labels = dict(
        _labels(event for phase, category in place.others if phase == "M" for event in place[phase, category])
    )
    return Decoded(frames, len(events), others, repairs, labels)


class _Places(dict[tuple[str, str], list[Any]]):
    """Events by phase and category; those of one frame share its list, so that they stay in the order of the file."""

    def __init__(self) -> None:
        self.frames: dict[str, list[Any]] = {frame: [] for frame in ARGUMENTS}
        self.others: list[tuple[str, str]] = []

    def __missing__(self, key: tuple[str, str]) -> list[Any]:
        phase, category = key
        frame = categories.frame(category) if phase == "X" else INSTANTS.get(key, "")
        if not frame:
            self.others.append(key)
        self[key] = self.frames[frame] if frame else []
        return self[key]


def _frame(frame: str, events: list[Any]) -> pl.DataFrame:
    _, cats, names, pids, tids, starts, durations, raw = zip(*map(msgspec.structs.astuple, events), strict=True)
    arguments = _arguments(frame, raw) if ARGUMENTS[frame] else {}
    columns = {
        "start_ns": nanoseconds(starts),
        "duration_ns": nanoseconds(durations),
        "name": _categorical(names),
    }
    if frame in ("activities", "memory"):
        devices = arguments.pop("device")
        columns["owner"] = _keys(pids, [device if type(device) in (int, str) else None for device in devices])
    if frame == "activities":
        streams = arguments.pop("stream")
        columns["stream"] = integers(
            [tid if stream is None else stream for stream, tid in zip(streams, tids, strict=True)]
        )
    elif frame != "memory":
        columns["thread"] = _keys(pids, tids)
    if "collective" in arguments:
        columns["collective"] = _marked(raw, arguments.pop("collective"))
    if frame in ("activities", "annotations"):
        kinds = {category: categories.kind(category) for category in set(cats)}
        columns["kind"] = _categorical([kinds[category] for category in cats])
    return pl.DataFrame(columns | arguments)


def _arguments(frame: str, raw: Sequence[msgspec.Raw]) -> dict[str, Any]:
    try:
        rows = _DECODERS[frame].decode(b"[" + b",".join(raw) + b"]")
    except BROKEN:
        rows = [_argument(frame, text) for text in raw]
    columns = iter(zip(*map(msgspec.structs.astuple, rows), strict=True))
    found = {column: [next(columns) for _ in argument.keys] for column, argument in ARGUMENTS[frame].items()}
    return {column: _column(ARGUMENTS[frame][column].type, spellings) for column, spellings in found.items()}


def _argument(frame: str, text: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(text, type=_STRUCTS[frame])
    except BROKEN:
        return _STRUCTS[frame]()


def _column(kind: str, spellings: list[tuple[Any, ...]]) -> Any:
    values, *older = spellings
    if kind == "text":
        if older and b"".join(older[0]):
            values = tuple(new if bytes(new) else old for new, old in zip(values, older[0], strict=True))
        return _texts(values)
    if older and None in values:
        values = tuple(new if new is not None else old for new, old in zip(values, older[0], strict=True))
    return integers(values) if kind == "integer" else values


def _marked(raw: Sequence[msgspec.Raw], marks: Sequence[Any]) -> pl.Series:
    """The whole arguments of the few events that have the mark."""
    texts = [None if mark is None else bytes(text) for text, mark in zip(raw, marks, strict=True)]
    return pl.Series([text and text.decode("utf-8", "replace") for text in texts], dtype=pl.String)


def _texts(values: Sequence[msgspec.Raw]) -> pl.Series:
    texts = b"\0".join(values).decode("utf-8", "replace").split("\0")  # NUL cannot occur in JSON
    return _categorical([text or None for text in texts])


def _categorical(values: Sequence[str | None]) -> pl.Series:
    return pl.Series(values, dtype=pl.Categorical)


def _keys(*parts: Sequence[Any]) -> pl.Series:
    """JSON lists of the values, such as [pid, tid], written once for each distinct one."""
    keys = {row: json.dumps(row) for row in set(zip(*parts, strict=True))}
    if len(keys) == 1:
        return _categorical(list(keys.values())).new_from_index(0, len(parts[0]))
    return _categorical([keys[row] for row in zip(*parts, strict=True)])


def _labels(events: Iterable[Any]) -> Iterator[tuple[tuple[Any, Any], str]]:
    for event in events:
        if event.name == "thread_name":
            arguments = msgspec.json.decode(event.args)
            if isinstance(arguments, dict):
                yield (event.pid, event.tid), str(arguments.get("name", ""))
