"""Sizes that the name of a trace tells, such as batch_64 or tp8."""

from __future__ import annotations

import re

SETTING = re.compile(
    r"(?<![A-Za-z])(?P<name>batch(?:_?size)?|bsz?|mbs|gbs|seq(?:_?len)?|sequence|tokens|tp|pp|dp|ep|cp|num_workers|workers|layers|hidden)"
    r"[_=-]?(?P<value>\d+)(?![A-Za-z\d])",
    re.IGNORECASE,
)
NAMES = {
    "batch_size": "batch", "batchsize": "batch", "bs": "batch", "bsz": "batch", "seq": "sequence", "seqlen": "sequence",
    "seq_len": "sequence", "num_workers": "workers",
}  # fmt: skip


def settings(name: str) -> dict[str, float]:
    """Sizes that a file's name tells, such as batch_64 or tp8."""
    found = {match["name"].lower(): float(match["value"]) for match in SETTING.finditer(name)}
    return {NAMES.get(key, key): value for key, value in found.items()}


def words(name: str) -> list[str]:
    """The parts of a file's name that tell its sizes, and nothing else of it."""
    return [match[0] for match in SETTING.finditer(re.split(r"[\\/]", name)[-1])]
