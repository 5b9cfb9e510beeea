"""Decodes a part of a trace's event list into frames.

Two phases, because most of an event's text is arguments that nobody asks for: first the events with their arguments
kept as text, then the arguments of the wanted categories, all of a category at once.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import polars as pl

from trace_doctor.loaders import cutting, repair
from trace_doctor.loaders.cutting import BORDER, LayoutError, Part

EXACT_US = float(1 << 42)
"""Above this many microseconds a float64 cannot hold nanoseconds after multiplication; times are read from their text."""
_INT64 = 1 << 63
_RAW = msgspec.Raw(b"")
_CATEGORIES = tomllib.loads(files("trace_doctor.loaders").joinpath("categories.toml").read_text())
_IGNORED = frozenset(_CATEGORIES["ignored"]["categories"])


class Event(msgspec.Struct, gc=False):
    """An event as well-formed traces write it."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class LooseEvent(msgspec.Struct, gc=False):
    """An event of any types, its times kept as text."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        self.ph, self.cat = str(self.ph), str(self.cat)
        self.pid, self.tid = (x if type(x) in (int, str) else str(x) for x in (self.pid, self.tid))


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
}
"""What is read from the arguments, per frame."""


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
    rest: bytes | None = None
    """Last part: what follows the list of events; None where the list has no end."""
    remnant: bool = False
    """Last part: it ends inside an event."""
    misfit: bool = False
    """The part does not hold whole events: the layout misled."""


def _tables() -> dict[str, tuple[str, str]]:
    kinds = [("activities", kind, names) for kind, names in _CATEGORIES["activities"].items()]
    kinds += [("annotations", kind, names) for kind, names in _CATEGORIES["annotations"].items()]
    kinds += [(frame, "", names) for frame, names in _CATEGORIES["host"].items()]
    return {name: (frame, kind) for frame, kind, names in kinds for name in names}


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


_TABLES = _tables()
_STRUCTS = {frame: _argument_struct(frame) for frame in ARGUMENTS}
_ARGUMENT_DECODERS = {frame: msgspec.json.Decoder(list[struct]) for frame, struct in _STRUCTS.items()}  # type: ignore[valid-type]
_STRICT = msgspec.json.Decoder(list[Event])
_LOOSE = msgspec.json.Decoder(list[LooseEvent])
_NUMBER = re.compile(r"\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*")
_START = attrgetter("ts")
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def unsupported(category: str) -> str | None:
    """The accelerator that a category belongs to, where trace-doctor does not read it."""
    names: dict[str, str] = _CATEGORIES["unsupported"]
    return next((name for start, name in names.items() if category.lower().startswith(start)), None)


def nothing(frame: str) -> pl.DataFrame:
    """A frame without rows, for a file without such events."""
    return _frame(frame, [LooseEvent()]).clear()


def known(category: str) -> bool:
    """Whether events of the category are read, or left out on purpose."""
    return category.lower() in _TABLES or category.lower() in _IGNORED


def decode(part: Part) -> Decoded:
    """The frames of a part: activities, ops, calls, annotations, as far as it holds them."""
    repairs: Counter[str] = Counter()
    text, rest, remnant = part.read(), None, False
    if part.last:
        text, rest, remnant = _end(text, repairs)
    try:
        return _decoded(_strict(text), repairs)._replace(rest=rest, remnant=remnant)
    except _BROKEN:
        pass
    try:
        events = _loose(text, repairs, save=part.proven or part.last)
    except LayoutError:
        return Decoded({}, 0, Counter(), Counter(), {}, misfit=True)
    return _decoded(events, repairs)._replace(rest=rest, remnant=remnant)


def _decoded(events: Sequence[Any], repairs: Counter[str]) -> Decoded:
    tables: dict[str, list[Any]] = {frame: [] for frame in ("", "labels", *ARGUMENTS)}
    place = _Places(tables)
    for event in events:
        place[event.ph, event.cat].append(event)
    frames = {frame: _frame(frame, tables[frame]) for frame in ARGUMENTS if tables[frame]}
    others = Counter((event.ph, event.cat) for event in tables[""])
    return Decoded(frames, len(events), others, repairs, dict(_labels(tables["labels"])))


class _Places(dict[tuple[str, str], list[Any]]):
    """The list that events of a phase and category belong to, looked up once for each pair."""

    def __init__(self, tables: dict[str, list[Any]]) -> None:
        self.tables = tables

    def __missing__(self, key: tuple[str, str]) -> list[Any]:
        self[key] = self.tables[_table(*key)]
        return self[key]


def _table(phase: str, category: str) -> str:
    if phase == "M":
        return "labels"
    return _TABLES.get(category.lower(), ("", ""))[0] if phase == "X" else ""


# -------------------------------------------------------------------------------------------------- text to events


def _strict(text: bytes) -> Sequence[Event]:
    events = _STRICT.decode(b"[" + text + b"]")
    if max(map(_START, events), default=0) >= EXACT_US:
        raise msgspec.DecodeError
    return events


def _loose(text: bytes, repairs: Counter[str], *, save: bool) -> Sequence[LooseEvent]:
    whole = b"[" + text + b"]"
    found: Counter[str] = Counter()
    for mend in (bytes, lambda broken: repair.characters(broken, found), lambda broken: repair.items(broken, found)):
        whole = mend(whole)
        try:
            loose = _LOOSE.decode(whole)
        except _BROKEN:
            continue
        repairs.update(found)
        return loose
    if not save:
        raise LayoutError
    return list(_saved(text, repairs))


def _saved(text: bytes, repairs: Counter[str]) -> Iterator[LooseEvent]:
    """The events of a text that is corrupt somewhere, one by one."""
    borders = [(match.start() + 1, match.end() - 1) for match in BORDER.finditer(text)]
    borders.append((len(text), len(text)))
    start, number = 0, 0
    while number < len(borders):
        for ahead, (end, begin) in enumerate(borders[number : number + 16]):  # noqa: B007  # used behind the loop
            event = _one(text[start:end], repairs)
            if event is not None:
                yield event
                break
        else:
            ahead, begin = 0, borders[number][1]
            repairs["lost_events"] += 1
        start, number = begin, number + ahead + 1


def _one(text: bytes, repairs: Counter[str]) -> LooseEvent | None:
    found: Counter[str] = Counter()
    for mend in (
        bytes,
        lambda broken: repair.characters(broken, found),
        lambda broken: repair.items(broken, found),
        lambda broken: repair.names(broken, found),
    ):
        text = mend(text)
        try:
            event = msgspec.json.decode(text, type=LooseEvent)
        except _BROKEN:
            continue
        repairs.update(found)
        return event
    return None


def _end(text: bytes, repairs: Counter[str]) -> tuple[bytes, bytes | None, bool]:
    """Splits the last part: its events, what follows the end of their list (None: no end), and whether an event is cut."""
    problem = cutting.fault(b"[" + text)
    if problem and problem[0] == "malformed":
        text = repair.characters(text, repairs)
        problem = cutting.fault(b"[" + text)
    if problem is None:
        return text[: text.rindex(b"]")].rstrip().removesuffix(b","), b"", False
    kind, position = problem
    if kind == "trailing":
        close = text.rindex(b"]", 0, position - 1)
        return text[:close], text[close + 1 :], False
    if kind == "malformed":
        return _searched_end(text)
    whole = text.rstrip().removesuffix(b",")
    if cutting.fault(b"[" + whole + b"]") is None:
        return whole, None, False
    ends = [match.start() + 1 for match in BORDER.finditer(text)][-64:]
    end = next((end for end in reversed(ends) if cutting.fault(b"[" + text[:end] + b"]") is None), 0)
    return text[:end], None, True


def _searched_end(text: bytes) -> tuple[bytes, bytes | None, bool]:
    """The end of a list with corrupt events in it: where the rest of the text closes the object around it."""
    stop = len(text)
    for _ in range(64):
        close = text.rfind(b"]", 0, stop)
        if close < 0:
            break
        if text[close + 1 :].strip() == b"" or cutting.fault(b'{"":0' + text[close + 1 :]) is None:
            return text[:close], text[close + 1 :], False
        stop = close
    return text, None, False


# -------------------------------------------------------------------------------------------------- events to frames


def _frame(frame: str, events: list[Any]) -> pl.DataFrame:
    _, categories, names, pids, tids, starts, durations, raw = zip(*map(msgspec.structs.astuple, events), strict=True)
    arguments = _arguments(frame, raw) if ARGUMENTS[frame] else {}
    columns = {
        "start_ns": nanoseconds(starts),
        "duration_ns": nanoseconds(durations),
        "name": _categorical([name if type(name) is str else str(name) for name in names]),
    }
    if frame == "activities":
        devices, streams = arguments.pop("device"), arguments.pop("stream")
        devices = [device if type(device) in (int, str) else None for device in devices]
        columns["owner"] = _keys(pids, devices)
        columns["stream"] = integers(
            [tid if stream is None else stream for stream, tid in zip(streams, tids, strict=True)]
        )
    else:
        columns["thread"] = _keys(pids, tids)
    if "collective" in arguments:
        marked = (
            text if name is not None else None for text, name in zip(raw, arguments.pop("collective"), strict=True)
        )
        texts = [None if text is None else bytes(text).decode("utf-8", "replace") for text in marked]
        columns["collective"] = pl.Series(texts, dtype=pl.String)
    if frame in ("activities", "annotations"):
        kinds = {category: _TABLES.get(category.lower(), ("", ""))[1] for category in set(categories)}
        columns["kind"] = _categorical([kinds[category] for category in categories])
    return pl.DataFrame(columns | arguments)


def _arguments(frame: str, raw: Sequence[msgspec.Raw]) -> dict[str, Any]:
    try:
        rows = _ARGUMENT_DECODERS[frame].decode(b"[" + b",".join(raw) + b"]")
    except _BROKEN:
        rows = [_argument(frame, text) for text in raw]
    columns = iter(zip(*map(msgspec.structs.astuple, rows), strict=True))
    found = {column: [next(columns) for _ in argument.keys] for column, argument in ARGUMENTS[frame].items()}
    return {column: _column(ARGUMENTS[frame][column].type, spellings) for column, spellings in found.items()}


def _argument(frame: str, text: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(text, type=_STRUCTS[frame])
    except _BROKEN:
        return _STRUCTS[frame]()


def _column(kind: str, spellings: list[tuple[Any, ...]]) -> Any:
    if kind == "text":
        texts = [_texts(values) for values in spellings]
        return texts[0] if len(texts) == 1 else texts[0].fill_null(texts[1])
    values = spellings[0]
    if len(spellings) > 1 and None in values:
        values = tuple(new if new is not None else old for new, old in zip(*spellings, strict=True))
    return integers(values) if kind == "integer" else values


def _texts(values: Sequence[msgspec.Raw]) -> pl.Series:
    texts = b"\0".join(values).decode("utf-8", "replace").split("\0")  # NUL cannot occur in JSON
    return _categorical([text or None for text in texts])


def _categorical(values: Sequence[str | None]) -> pl.Series:
    return pl.Series(values, dtype=pl.Categorical)


def _keys(*parts: Sequence[Any]) -> pl.Series:
    """JSON lists of the values, such as [pid, tid], written once for each distinct one."""
    keys: dict[tuple[Any, ...], str] = {}
    rows = list(zip(*parts, strict=True))
    for row in set(rows):
        keys[row] = json.dumps(row)
    return _categorical([keys[row] for row in rows])


def _labels(events: Iterable[Any]) -> Iterator[tuple[tuple[Any, Any], str]]:
    for event in events:
        if event.name == "thread_name":
            arguments = msgspec.json.decode(event.args)
            yield (event.pid, event.tid), str(arguments.get("name", ""))


# ------------------------------------------------------------------------------------------------------- numbers


def integers(values: Sequence[Any]) -> pl.Series:
    """Int64; numbers given as text count, what is no number is null, and unsigned 64-bit numbers wrap."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(value) for value in values], dtype=pl.Int64)


def _integer(value: Any) -> int | None:
    text = str(value)
    if isinstance(value, str) and not _NUMBER.fullmatch(text):
        text = "".join(filter(str.isdigit, text))  # "stream 7 "
    number = _rounded(text, 1)
    if number is None or not -_INT64 <= number < 2 * _INT64:
        return None
    return (number + _INT64) % (2 * _INT64) - _INT64


def _rounded(text: str, factor: int) -> int | None:
    try:
        number = Decimal(text) * factor
        return int(number.to_integral_value()) if number.adjusted() < 20 else None
    except (InvalidOperation, ValueError, OverflowError):
        return None


def nanoseconds(values: Sequence[Any]) -> pl.Series:
    """Int64 from microseconds: floats below EXACT_US, or the JSON text of any decimal."""
    if type(values[0]) is float:
        return (pl.Series(values, dtype=pl.Float64) * 1000).round().cast(pl.Int64, strict=False)
    return pl.Series([_nanoseconds(text) for text in values], dtype=pl.Int64)


def _nanoseconds(text: msgspec.Raw) -> int | None:
    digits = bytes(text).strip(b'" ')
    whole, _, fraction = digits.partition(b".")
    if len(whole) < 18 and whole.isdigit() and len(fraction) <= 3 and (fraction.isdigit() or not fraction):
        return int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    number = _rounded(digits.decode("utf-8", "replace"), 1000)
    return number if number is not None and -_INT64 <= number < _INT64 else None
