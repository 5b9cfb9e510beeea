"""Reports as they are meant to look; `TRACE_DOCTOR_UPDATE_GOLDEN=1 pytest tests/reporter` writes them anew, to be read."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")


def hold(name: str, drawn: str) -> None:
    """Compare with the stored report, byte for byte."""
    path = FOLDER / f"{name}.golden"
    if os.environ.get("TRACE_DOCTOR_UPDATE_GOLDEN"):
        path.write_bytes(drawn.encode())
    assert path.read_bytes().decode() == drawn


def without_colour(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", drawn)
