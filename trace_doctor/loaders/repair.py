"""Mends JSON text that profilers and tools are known to write broken, where its meaning is sure.

Every repair leaves valid JSON as it is, and is counted under a code of `SENTENCES`.
"""

from __future__ import annotations

import re
from collections import Counter

SENTENCES = {
    "invalid_escapes": "bare backslashes (invalid JSON escapes) were repaired: {count}",
    "control_characters": "control characters inside the JSON text were repaired, read as spaces: {count}",
    "bare_numbers": "values written as nan or inf (invalid JSON) were repaired, read as unknown: {count}",
    "bad_utf8": "bytes that are not UTF-8 were repaired, read as \N{REPLACEMENT CHARACTER}: {count}",
    "stray_quotes": "stray quotes inside names (invalid JSON) were repaired: {count}",
    "lost_events": "corrupt events (malformed JSON) were skipped: {count}",
}
"""A sentence for each code."""

_CONTROLS = bytes(range(32))
_BLANKS = bytes(b if b >= 32 else 32 for b in range(256))
_WHITESPACE = b"\t\n\r"
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_NUMBER = rb"[-+]?(?:nan|inf|infinity)(?:\(\w*\))?"
_BARE_VALUE = re.compile(rb'(?<!\\)("\s*:\s*)' + _NUMBER + rb"(?=\s*[,}\]])", re.IGNORECASE)
_BARE_ITEM = re.compile(
    rb'"(?:[^"\\]|\\.)*"|([\[,]\s*)' + _NUMBER + rb"(?=\s*[,\]])",  # strings are matched too, to be passed over
    re.IGNORECASE | re.DOTALL,
)
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)(?="\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}))', re.DOTALL)
_QUOTE = re.compile(rb'(\\.)|"', re.DOTALL)


def characters(text: bytes, counts: Counter[str]) -> bytes:
    """The text without control characters, invalid escapes, bare nan and inf, and bytes that are not UTF-8."""
    strange = len(text) - len(text.translate(None, _CONTROLS.translate(None, _WHITESPACE)))
    counts["control_characters"] += strange
    text = text.translate(_BLANKS)
    text, count = _BARE_VALUE.subn(rb"\1null", text)
    counts["bare_numbers"] += count
    text = _ESCAPE.sub(lambda match: _escaped(match, counts), text)
    try:
        text.decode()
    except UnicodeDecodeError:
        mended = text.decode("utf-8", "replace")
        counts["bad_utf8"] += mended.count("\ufffd") - text.count("\ufffd".encode())
        text = mended.encode()
    return text


def items(text: bytes, counts: Counter[str]) -> bytes:
    """The text with bare nan and inf in lists read as null."""
    return _BARE_ITEM.sub(lambda match: _nulled(match, counts), text)


def names(text: bytes, counts: Counter[str]) -> bytes:
    """The text of one event with the quotes inside its name escaped: a name ends where a key of the format follows."""
    return _NAME.sub(lambda match: match[1] + _quoted(match[2], counts), text, count=1)


def _escaped(match: re.Match[bytes], counts: Counter[str]) -> bytes:
    if match[1]:
        return match[0]
    counts["invalid_escapes"] += 1
    return rb"\\"


def _nulled(match: re.Match[bytes], counts: Counter[str]) -> bytes:
    if match[1] is None:
        return match[0]
    counts["bare_numbers"] += 1
    return match[1] + b"null"


def _quoted(name: bytes, counts: Counter[str]) -> bytes:
    bare = sum(match[1] is None for match in _QUOTE.finditer(name))
    counts["stray_quotes"] += bare
    return _QUOTE.sub(lambda match: match[1] or rb"\"", name)
