"""Each simulated step exists as Kineto and as Nsight, and both give the ledger that is known by construction."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulator import Run, kineto, ledger, nsight
from tests.simulator.programs import ACTIONS, CASES, any_steps, simulated
from tests.simulator.samples import SAMPLES
from trace_doctor import Report, analyze

OF_FLOPS = [
    ("mfu", "model FLOPs"),
    ("recompute", "recompute"),
    ("compute", "precision"),
    ("compute", "precision gain"),
    ("unattributed", "model error"),
    ("unattributed", "tensor work without FLOPs"),
]
"""Rows that follow from shapes alone; bytes need dtypes, which NVTX does not tell."""


def rows(report: Report) -> ledger.Rounded:
    found: ledger.Rounded = {(str(row.wall), row.cause): row.time_ns for row in report.ledger}
    assert sum(found.values()) == report.window.duration_ns
    return found


def exported(run: Run, folder: Path, **how: object) -> Report:
    return analyze([nsight.write(folder / "run.sqlite", run, **how)])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_ledger_is_the_constructed_one(name: str, tmp_path: Path) -> None:
    run = simulated(name)
    run.records_shapes = False
    known = ledger.of(run)
    assert ledger.near(rows(exported(run, tmp_path)), known) == known


@pytest.mark.parametrize("name", CASES)
def test_shapes_of_emitted_ops_give_the_flops_that_kineto_gives(name: str, tmp_path: Path) -> None:
    """Whether attention is causal stands in no input that NVTX tells; the flash kernel's name does."""
    run = simulated(name)
    known = {row: time_ns for row, time_ns in ledger.of(run).items() if row in OF_FLOPS}
    found = {row: time_ns for row, time_ns in rows(exported(run, tmp_path)).items() if row in OF_FLOPS}
    assert ledger.near(found, known) == known


@pytest.mark.parametrize("schema", nsight.SCHEMAS)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_schema_gives_the_same_ledger(name: str, schema: nsight.Schema, tmp_path: Path) -> None:
    run = SAMPLES[name]()
    run.records_shapes = False
    known = ledger.of(run)
    report = exported(run, tmp_path, schema=schema)
    assert ledger.near(rows(report), known) == known
    assert report.device.name == "NVIDIA H100 80GB HBM3"
    assert report.coverage.kernels_linked_share == 1


@pytest.mark.parametrize("name", SAMPLES)
def test_counts_and_steps_are_those_of_kineto(name: str, tmp_path: Path) -> None:
    run = SAMPLES[name]()
    by_nsight, by_kineto = exported(run, tmp_path), analyze([kineto.write(run, tmp_path / "run.json")])
    assert by_nsight.counts == by_kineto.counts
    assert by_nsight.partition == by_kineto.partition
    assert by_nsight.metrics.mfu_low <= by_kineto.metrics.mfu <= by_nsight.metrics.mfu_high  # type: ignore[operator]
    assert [step.duration_ns for step in by_nsight.window.steps] == [s.duration_ns for s in by_kineto.window.steps]
    assert [(c.name, c.count, c.message_bytes, c.bus_bandwidth) for c in by_nsight.collectives] == [
        (c.name, c.count, c.message_bytes, c.bus_bandwidth) for c in by_kineto.collectives
    ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(ACTIONS), max_size=12), min_size=2, max_size=2))
def test_ledger_of_any_two_steps_is_the_constructed_one(tmp_path: Path, steps: list[list[object]]) -> None:
    run = any_steps(steps)  # type: ignore[arg-type]
    run.records_shapes = False
    known = ledger.of(run)
    assert ledger.near(rows(exported(run, tmp_path)), known) == known


def test_samples_on_disk_are_what_the_simulator_writes(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "sample_traces"
    stale = [
        name
        for name, program in SAMPLES.items()
        if dumped(folder / f"{name}.sqlite") != dumped(nsight.write(tmp_path / f"{name}.sqlite", program()))
    ]
    assert stale == []


def dumped(path: Path) -> list[str]:
    """The statements that make the database anew."""
    database = sqlite3.connect(path)
    try:
        return list(database.iterdump())
    finally:
        database.close()
