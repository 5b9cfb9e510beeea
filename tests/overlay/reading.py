"""What is drawn, read back from the JSON document with exact numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from trace_doctor.overlay import document
from trace_doctor.overlay.tracks import CAUSES, FIRST_PID, STEPS, TRACKS
from trace_doctor.pipeline import Diagnosis, diagnose

Event = dict[str, Any]


class Drawn(NamedTuple):
    diagnosis: Diagnosis
    text: bytes
    events: list[Event]

    def ours(self) -> list[Event]:
        return [event for event in self.events if event.get("cat") == "trace_doctor"]

    def others(self) -> list[Event]:
        return [event for event in self.events if event.get("cat") != "trace_doctor"]

    def track(self, number: int, gpu: int = 0) -> list[Event]:
        pid = FIRST_PID + TRACKS * (gpu + 1)
        return [event for event in self.ours() if event["ph"] == "X" and event["tid"] == pid + number]

    def causes(self, gpu: int = 0) -> list[Event]:
        return self.track(CAUSES, gpu)

    def steps(self, gpu: int = 0) -> list[Event]:
        return self.track(STEPS, gpu)

    def curve(self, name: str, gpu: int = 0) -> list[tuple[Decimal, dict[str, Decimal]]]:
        pid = FIRST_PID + TRACKS * (gpu + 1)
        found = [event for event in self.ours() if (event["ph"], event["name"], event["pid"]) == ("C", name, pid)]
        return [(event["ts"], event["args"]) for event in found]


def drawn(*paths: Path, alone: bool = False) -> Drawn:
    diagnosis = diagnose(paths)
    text = b"".join(document.draw(diagnosis.report, diagnosis.analyses, alone=alone))
    return Drawn(diagnosis, text, events_of(text))


def events_of(text: bytes) -> list[Event]:
    """The events of a document; numbers with a point are exact."""
    found = json.loads(text, parse_float=Decimal)
    return list(found if isinstance(found, list) else found["traceEvents"])


def ns(microseconds: Any) -> Decimal:
    return Decimal(1_000) * microseconds


def total_ns(events: Iterable[Event]) -> Decimal:
    return sum((ns(event["dur"]) for event in events), Decimal(0))
