"""The text of a part to events: strictly where it is well-formed, repaired where it is not, one by one where it is corrupt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from trace_doctor.loaders import repair
from trace_doctor.loaders.cutting import BORDER, fault
from trace_doctor.loaders.numerals import EXACT_US

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding text raises that is not the expected JSON."""
T = TypeVar("T")
_NESTED = 16
_ENDS = 64


class Event(msgspec.Struct, gc=False):
    """An event as well-formed traces write it."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float = 0
    dur: int | float = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ExactEvent(msgspec.Struct, gc=False):
    """A well-formed event with its times kept as text, because a float64 would not hold them."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
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
        self.ph, self.cat, self.name = str(self.ph), str(self.cat), str(self.name)
        self.pid, self.tid = (x if type(x) in (int, str) else str(x) for x in (self.pid, self.tid))


class End(NamedTuple):
    """The last part of a file: its events, and what it tells of the file's end."""

    events: bytes
    rest: bytes | None
    """What follows the list of events; None where the list has no end."""
    remnant: bool = False
    """Whether the text ends inside an event."""


_STRICT = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[ExactEvent])
_LOOSE = msgspec.json.Decoder(list[LooseEvent])
_START = attrgetter("ts")


def strict(text: bytes) -> Sequence[Event] | Sequence[ExactEvent]:
    """Well-formed events; raises one of BROKEN for all others."""
    whole = b"[" + text + b"]"
    events = _STRICT.decode(whole)
    if max(map(_START, events), default=0) < EXACT_US or not any(type(event.ts) is float for event in events):
        return events
    return _EXACT.decode(whole)


def loose(text: bytes, repairs: Counter[str]) -> Sequence[LooseEvent] | None:
    """Events of any types, repaired where that is sure and counted in `repairs`; None where it is not enough."""
    return _mended(b"[" + text + b"]", _LOOSE.decode, (repair.characters, repair.items), repairs)


def saved(text: bytes, repairs: Counter[str]) -> Iterator[LooseEvent]:
    """The events of a text that is corrupt somewhere, one by one; what is lost is counted as "lost_events"."""
    borders = [(match.start() + 1, match.end() - 1) for match in BORDER.finditer(text)]
    borders.append((len(text), len(text)))
    start, number, is_lost = 0, 0, False
    while number < len(borders):
        found = _shortest(text, start, borders[number : number + _NESTED], repairs)
        if found:
            event, ahead = found
            yield event
        else:
            ahead = 0
            is_another = not is_lost or b'"ph"' in text[start : borders[number][0]]  # else the rest of the one before
            repairs["lost_events"] += is_another
        is_lost = found is None
        number += ahead + 1
        start = borders[number - 1][1]


def end(text: bytes, repairs: Counter[str]) -> End:
    """Splits the text from the last cut to the end of the file."""
    problem = fault(b"[" + text)
    if problem and problem[0] == "malformed":
        found: Counter[str] = Counter()
        mended = repair.characters(text, found)
        problem = fault(b"[" + mended)
        if problem and problem[0] == "malformed":
            return _searched(text)
        text = mended
        _count(found, repairs)
    if problem is None:
        return End(text[: text.rindex(b"]")], b"")
    kind, position = problem
    if kind == "trailing":
        close = text.rindex(b"]", 0, position - 1)
        return End(text[:close], text[close + 1 :])
    return _cut(text)


def _shortest(
    text: bytes, start: int, borders: list[tuple[int, int]], repairs: Counter[str]
) -> tuple[LooseEvent, int] | None:
    """The event from `start` to the first border that is its end, not one inside of it, and that border's number."""
    for number, (stop, _) in enumerate(borders):
        event = _mended(text[start:stop], _one, (repair.characters, repair.items, repair.names), repairs)
        if event is not None:
            return event, number
    return None


def _one(text: bytes) -> LooseEvent:
    return msgspec.json.decode(text, type=LooseEvent)


def _mended(
    text: bytes,
    decode: Callable[[bytes], T],
    mends: tuple[Callable[[bytes, Counter[str]], bytes], ...],
    repairs: Counter[str],
) -> T | None:
    """What decodes after as few repairs as possible; None where it is not even after all of them."""
    found: Counter[str] = Counter()
    for number, mend in enumerate((None, *mends)):
        text = mend(text, found) if mend else text
        try:
            decoded = decode(text)
        except BROKEN:
            continue
        if number:
            _count(found, repairs)
        return decoded
    return None


def _count(found: Counter[str], repairs: Counter[str]) -> None:
    if not found.total():
        found["control_characters"] += 1  # a line break inside a string
    repairs.update(found)


def _cut(text: bytes) -> End:
    """A list without end: its last event is whole, or a remnant."""
    whole = text.rstrip().removesuffix(b",")
    if fault(b"[" + whole + b"]") is None:
        return End(whole, None)
    ends = [match.start() + 1 for match in BORDER.finditer(text)][-_ENDS:]
    last = next((stop for stop in reversed(ends) if fault(b"[" + text[:stop] + b"]") is None), 0)
    return End(text[:last], None, remnant=True)


def _searched(text: bytes) -> End:
    """The end of a list with corrupt events in it: where the rest of the text closes the object around it."""
    stop = len(text)
    for _ in range(_ENDS):
        close = text.rfind(b"]", 0, stop)
        if close < 0:
            break
        rest = text[close + 1 :]
        if not rest.strip() or fault(repair.characters(b'{"":0' + rest, Counter())) is None:
            return End(text[:close], rest)
        stop = close
    return End(text, None)
