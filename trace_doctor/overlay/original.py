"""Puts events into a trace file without reading it as a whole: all of its own text stays as it is, byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from trace_doctor.loaders import cutting
from trace_doctor.loaders.cutting import Part, fault
from trace_doctor.overlay.events import SEPARATOR

_MARK = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"


def is_whole(path: Path) -> bool:
    """Whether the file is one well-formed JSON document, as few profilers always write."""
    notes: Counter[str] = Counter()
    blocks = cutting.blocks(path, notes)
    start = cutting.opening(path, blocks)
    parts = cutting.parts(path, start, blocks, prove=True)
    return all(_is_valid(part, bare=not start.keys) for part in parts) and not notes


def _is_valid(part: Part, *, bare: bool) -> bool:
    text = part.read()
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    if not part.last:
        return fault(b"[" + text + b"]") is None
    opening = b"[" if bare else b'{"":['
    return fault(opening + text.rstrip(_BLANK)) is None


def with_events(path: Path, events: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a whole file with `events` put before its own."""
    start = cutting.opening(path, cutting.blocks(path, Counter())).start
    position = 0
    for block in cutting.blocks(path, Counter()):
        here = start - position
        if 0 <= here < len(block):
            yield block[:here].removeprefix(_MARK)
            for event in events:
                yield event + SEPARATOR
            yield block[here:]
        else:
            yield block.removeprefix(_MARK) if position == 0 else block
        position += len(block)
