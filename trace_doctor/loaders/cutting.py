"""Reads a trace's text, compressed or not, and cuts its event list into parts that can be decoded one by one.

A cut is put where the layout shows it: most writers put every event on lines of its own, so that the text between two
events, the separator, cannot occur inside of one. Without such a layout every cut is proven: the text before it must be
a whole list.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from trace_doctor.errors import CorruptTraceError, InputError, UnsupportedInputError
from trace_doctor.loaders import repair

try:
    from isal import isal_zlib
except ImportError:  # no wheel for this platform
    isal_zlib = None  # type: ignore[assignment]

PART_BYTES = 1 << 19
"""Text decoded at once: small enough that its objects stay in the processor's cache."""
LIMIT_BYTES = 256 << 20
"""No event, and no key beside the events, is longer in an honest trace."""
BORDER = re.compile(rb"\}\s*,\s*\{")
"""Where an event may end and the next begin."""

HINT = "give the JSON file that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote"
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_SKIP = msgspec.json.Decoder(msgspec.Raw)
_POSITION = re.compile(r"\(byte (\d+)\)")
_TRIES = 64
_PATIENCE = 32 * PART_BYTES

Progress = Callable[[int, int], None]


class LayoutError(Exception):
    """The layout promised cuts that are none: read again with every cut proven."""


class Part(NamedTuple):
    """A run of whole events without the brackets of their list, or the text from the last cut to the end of the file."""

    text: bytes | None
    """None: to be read from the file."""
    path: str = ""
    offset: int = 0
    length: int = 0
    last: bool = False
    proven: bool = False
    """The cuts were proven, so what cannot be decoded is corrupt."""

    def read(self) -> bytes:
        """The part's text."""
        if self.text is not None:
            return self.text
        with Path(self.path).open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


class Cut(NamedTuple):
    """Where an event ends and where the next one begins."""

    end: int
    begin: int


ENDED = Cut(0, 0)
"""No cut: the list of events ends in the text."""


class Opening(NamedTuple):
    """The start of a trace up to its first event."""

    keys: bytes
    """Text of the top-level object before its events; empty where the file is a bare list of events."""
    start: int
    """Bytes of uncompressed text before the first event."""
    read: bytes
    """What was read already beyond that."""
    separator: bytes
    """End of one event, comma, start of the next, as this file lays them out."""

    @property
    def laid_out(self) -> bool:
        """Whether the separator alone proves a cut: it holds a line break and an indent, so nested objects look different."""
        return re.search(rb"\n[ \t]+\{$", self.separator) is not None


def fault(text: bytes) -> tuple[str, int] | None:
    """What is wrong with a JSON text and where: "truncated", "trailing" (at the text that follows its end) or "malformed"."""
    try:
        _SKIP.decode(text)
    except msgspec.DecodeError as error:
        message = str(error)
        if "truncated" in message:
            return "truncated", len(text)
        position = _POSITION.search(message)
        return "trailing" if "trailing char" in message else "malformed", int(position[1]) - 1 if position else 0
    except RecursionError:
        return "malformed", 0
    return None


def packing(path: Path) -> str:
    """How the file is compressed, by its first bytes: "gzip", "zstd" or "" for not at all."""
    with path.open("rb") as file:
        magic = file.read(4)
    return "gzip" if magic[:2] == b"\x1f\x8b" else "zstd" if magic == b"\x28\xb5\x2f\xfd" else ""


def blocks(path: Path, notes: Counter[str], progress: Progress | None = None) -> Iterator[bytes]:
    """The uncompressed text of a plain, gzip or zstd file, block by block; a cut or damaged end is noted in `notes`."""
    total = path.stat().st_size
    unpack = {"gzip": _gzip, "zstd": _zstd}.get(packing(path), _plain)
    with path.open("rb") as file:
        for block in unpack(file, notes):
            yield block
            if progress:
                progress(file.tell(), total)


def _plain(file: IO[bytes], notes: Counter[str]) -> Iterator[bytes]:
    while block := file.read(PART_BYTES):
        yield block


def _gzip(file: IO[bytes], notes: Counter[str]) -> Iterator[bytes]:
    library: Any = isal_zlib or zlib
    member = library.decompressobj(31)
    while packed := file.read(PART_BYTES):
        while packed:
            if member.eof:
                packed = packed.lstrip(b"\0")  # padding between members
                if not packed:
                    break
                member = library.decompressobj(31)
            try:
                text = member.decompress(packed, PART_BYTES)
            except (zlib.error, library.error):
                notes["damaged_gzip"] += 1
                return
            packed = member.unused_data if member.eof else member.unconsumed_tail
            if text:
                yield text
    if not member.eof:
        yield member.flush()
        notes["cut_gzip"] += 1


def _zstd(file: IO[bytes], notes: Counter[str]) -> Iterator[bytes]:
    reader, damage = _zstd_reader(file)
    try:
        while block := reader.read(PART_BYTES):
            yield block
    except (EOFError, damage):
        notes["cut_zstd"] += 1


def _zstd_reader(file: IO[bytes]) -> tuple[Any, type[Exception]]:
    """A reader of the unpacked bytes, and what it raises where the file is damaged."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

        return zstd.open(file, "rb"), zstd.ZstdError
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        msg = "the file is packed with zstd, and no library for it is installed"
        hint = "pip install 'trace-doctor[zstd]', or unpack it with: zstd -d FILE"
        raise UnsupportedInputError(msg, where=str(file.name), hint=hint) from None
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True), zstandard.ZstdError


def opening(path: Path, text_blocks: Iterator[bytes]) -> Opening:
    """Finds the first event. Raises InputError where the text is empty or is no trace."""
    buffer, searched, dropped = bytearray(), 0, 0
    for block in text_blocks:
        buffer += block
        if not searched:
            before = len(buffer)
            buffer = bytearray(bytes(buffer).removeprefix(b"\xef\xbb\xbf").lstrip())
            dropped += before - len(buffer)
        if not buffer:
            continue
        if buffer[:1] == b"[":
            return _opening(buffer, b"", 1, dropped)
        for match in _OPENING.finditer(buffer, searched):
            keys = bytes(buffer[: match.end()])
            problem = fault(keys + b"]}")
            if problem is None or problem[0] == "malformed":  # truncated: the key belongs to an object further inside
                return _opening(buffer, keys + b"]}", match.end(), dropped)
        searched = max(1, len(buffer) - 64)
        if buffer[:1] != b"{" or len(buffer) > LIMIT_BYTES:
            break
    if not buffer:
        msg = "the file is empty"
        hint = "record the trace again; was the job killed before it wrote the file?"
        raise InputError(msg, where=str(path), hint=hint)
    msg = "not a trace: no traceEvents list in it"
    raise InputError(msg, where=str(path), hint=HINT)


def _opening(buffer: bytearray, keys: bytes, start: int, dropped: int) -> Opening:
    rest = bytes(buffer[start:])
    events = rest.lstrip()
    return Opening(keys, dropped + start + len(rest) - len(events), events, _separator(events))


def _separator(events: bytes) -> bytes:
    text = events[:PART_BYTES].decode("latin-1")
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return b"},{"
    between = re.compile(r"\s*,\s*\{").match(text, end)
    first = len(text[: end - 1].rstrip())
    return text[first : between.end()].encode("latin-1") if between else b"},{"


def parts(path: Path, start: Opening, text_blocks: Iterator[bytes], *, prove: bool) -> Iterator[Part]:
    """Cuts a stream of text into parts, the last of which holds the end of the list and whatever follows it."""
    buffer, wanted, has_ended = bytearray(start.read), PART_BYTES, False
    for block in text_blocks:
        if len(buffer) >= wanted:
            cut = _proven_cut(buffer) if prove else _laid_out_cut(buffer, start.separator)
            if cut and cut is not ENDED:
                yield Part(bytes(buffer[: cut.end]), proven=prove)
                del buffer[: cut.begin]
            wanted = PART_BYTES if cut else 2 * len(buffer)
            has_ended = cut is ENDED
        buffer += block
        if has_ended:  # what follows is all that is still wanted
            buffer += b"".join(_at_most(LIMIT_BYTES - len(buffer), text_blocks))
        elif len(buffer) > LIMIT_BYTES:
            msg = f"no event ends within {LIMIT_BYTES >> 20} MB of text"
            raise CorruptTraceError(msg, where=str(path), hint="record the trace again; the file may be damaged")
    yield Part(bytes(buffer), last=True, proven=prove)


def spans(path: Path, start: Opening, *, progress: Progress | None = None) -> Iterator[Part]:
    """Cuts a plain file with a clear layout without reading it: the parts read their own text."""
    separator, position, size = start.separator, start.start, path.stat().st_size
    end, begin = separator.index(b"}") + 1, separator.index(b"{")
    with path.open("rb") as file:
        while size - position > 2 * PART_BYTES:
            border = _find(file, separator, position + PART_BYTES, size)
            if border < 0:
                break
            yield Part(None, str(path), position, border + end - position)
            position = border + begin
            if progress:
                progress(position, size)
    if size - position > _PATIENCE:
        raise LayoutError
    yield Part(None, str(path), position, size - position, last=True)
    if progress:
        progress(size, size)


def _at_most(length: int, text_blocks: Iterator[bytes]) -> Iterator[bytes]:
    for block in text_blocks:
        if length <= 0:
            return
        length -= len(block)
        yield block


def _find(file: IO[bytes], text: bytes, position: int, size: int) -> int:
    """Where the text next stands in the file; -1 for nowhere."""
    window = 16 << 10
    while position < size:
        file.seek(position)
        found = file.read(window).find(text)
        if found >= 0:
            return position + found
        position += window - len(text) + 1
        window = min(2 * window, PART_BYTES)
    return -1


def _laid_out_cut(buffer: bytearray, separator: bytes) -> Cut | None:
    border = buffer.rfind(separator)
    if border >= 0:
        return Cut(border + separator.index(b"}") + 1, border + separator.index(b"{"))
    if len(buffer) > _PATIENCE:
        raise LayoutError
    return None


def _proven_cut(buffer: bytearray) -> Cut | None:
    """After the last whole event; None where none is found, ENDED where the list ends before it."""
    text = bytes(buffer)
    for tried, cut in enumerate(_borders(text)):
        before = b"[" + text[: cut.end] + b"]"
        problem = fault(before)
        if problem and problem[0] == "malformed":
            problem = fault(repair.characters(before, Counter()))
        if problem is None or problem[0] == "malformed":  # beyond repair: the events before it are saved one by one
            return cut
        if problem[0] == "trailing":
            return ENDED
        if tried > _TRIES:
            break
    return None


def _borders(text: bytes) -> Iterator[Cut]:
    """Where events may end and begin, from the end of the text backwards."""
    stop, window = len(text), 32 << 10
    while stop:
        start = max(0, stop - window)
        for match in reversed(list(BORDER.finditer(text, start, stop))):
            yield Cut(match.start() + 1, match.end() - 1)
        stop, window = (start + 64, 2 * window) if start else (0, 0)
