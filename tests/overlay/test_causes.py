"""The causes of every interval: disjoint, in order, and by cause the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.overlay.reading import Drawn, drawn, ns, total_ns
from tests.simulator import Run, kineto, nsight
from tests.simulator.programs import ACTIONS, CASES, any_steps, simulated
from tests.simulator.samples import SAMPLES
from trace_doctor.overlay.causes import held_by
from trace_doctor.reporter.text import WALLS

NET = {
    ("mfu", "model FLOPs"), ("recompute", "recompute"), ("compute", "precision gain"), ("unattributed", "model error"),
}  # fmt: skip
"""The two rows that may be negative, which can't be drawn, and those that are drawn without that time."""
ROUNDING_NS = 2
"""The ledger shares out the remainders of each class of the sweep, by less than 1 ns a row."""


def check(found: Drawn) -> None:
    """What must hold of any document that is drawn."""
    for place, gpu in enumerate(found.diagnosis.report.gpus):
        slices = found.causes(place)
        ends = [event["ts"] + event["dur"] for event in slices]
        assert all(end <= event["ts"] for end, event in zip(ends, slices[1:], strict=False))
        assert total_ns(slices) == gpu.window.duration_ns
        spans = found.diagnosis.analyses[place].spans
        edges = {ns(event["ts"]) for event in slices} | {ns(end) for end in ends}
        assert set(spans["start_ns"]) | set(spans["end_ns"]) <= edges
        wanted: Counter[str] = Counter()
        for row in gpu.ledger:
            wanted["net" if (row.wall, row.cause) in NET else name_of(row.wall, row.cause)] += row.time_ns
        shown: Counter[str] = Counter()
        for event in slices:
            shown["net" if event["name"] in NET_NAMES else event["name"]] += ns(event["dur"])  # type: ignore[assignment]
        assert {name for name in shown | wanted if abs(shown[name] - wanted[name]) > ROUNDING_NS} == set()


def name_of(wall: str, cause: str) -> str:
    label = WALLS[wall].label  # type: ignore[index]
    return label if wall == "mfu" or cause == label else f"{label}: {cause}"


NET_NAMES = {name_of(*key) for key in NET}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_causes_of_a_sample_are_its_ledger(name: str, tmp_path: Path) -> None:
    check(drawn(kineto.write(SAMPLES[name](), tmp_path / "trace.json.gz")))


@pytest.mark.parametrize("name", CASES)
def test_the_causes_of_every_case_are_its_ledger(name: str, tmp_path: Path) -> None:
    check(drawn(kineto.write(simulated(name), tmp_path / "trace.json")))


def test_the_causes_of_several_gpus_are_their_ledgers(tmp_path: Path) -> None:
    names = ["gpt-launch-bound", "gpt-input-starved"]
    found = drawn(nsight.write(tmp_path / "two.sqlite", *(SAMPLES[name]() for name in names)))
    assert len(found.diagnosis.report.gpus) == 2
    check(found)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(st.sampled_from(ACTIONS), max_size=12), min_size=2, max_size=2))
def test_the_causes_of_any_two_steps_are_their_ledger(
    tmp_path: Path, steps: list[list[Callable[[Run], object]]]
) -> None:
    check(drawn(kineto.write(any_steps(steps), tmp_path / "trace.json")))


def test_of_several_at_once_each_has_its_share() -> None:
    """Class 0 before class 1; two of class 0 overlap from 10 to 15; a class 1 kernel shows only where no class 0 runs."""
    pieces = pl.DataFrame(
        [(0, 0, 15, 0), (1, 10, 20, 0), (2, 12, 30, 1), (3, 25, 25, 1)],
        schema={"activity": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "class": pl.Int32},
        orient="row",
    )
    held = held_by(pieces).sort("start_ns", "activity").select("start_ns", "end_ns", "activity", "share")
    assert held.rows() == [(0, 10, 0, 1.0), (10, 15, 0, 0.5), (10, 15, 1, 0.5), (15, 20, 1, 1.0), (20, 30, 2, 1.0)]
