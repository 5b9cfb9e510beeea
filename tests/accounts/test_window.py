"""A slow step beside the median step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulator import MS, Run, kineto
from tests.simulator.programs import ACTIONS, any_steps, matmul_until_idle
from trace_doctor import analyze
from trace_doctor.options import Limits, Options
from trace_doctor.report import Step, StepDifference

ANY_STEP_IS_SLOW = Options(all_steps=True, limits=Limits(outlier_ratio=1.0))


def steps_of(run: Run, folder: Path, options: Options | None = None) -> list[Step]:
    return analyze([kineto.write(run, folder / "trace.json")], options).window.steps


def test_a_slow_step_is_its_pause_longer_than_the_median_step(tmp_path: Path) -> None:
    run = Run()
    for number in range(5):
        with run.step():
            matmul_until_idle(run)
            with run.doing("garbage collection", "Python GC"):
                run.host(5 * MS if number == 2 else 0)
    steps = steps_of(run, tmp_path)
    slow = [step for step in steps if step.differences]
    assert [step.number for step in slow] == [run.steps[2].number]
    assert slow[0].differences == [
        StepDifference(wall="host", cause="garbage collection", time_ns=5 * MS, median_ns=0, name="Python GC")
    ]


def paused(folder: Path, rank: int, pause_ns: int) -> Path:
    """Five steps of one rank of two, the third with a pause."""
    run = Run(rank=rank, world_size=2)
    for number in range(5):
        with run.step():
            matmul_until_idle(run)
            with run.doing("garbage collection", "Python GC"):
                run.host(pause_ns if number == 2 else 0)
    return kineto.write(run, folder / f"rank{rank}.json")


def test_of_two_gpus_the_differences_are_means(tmp_path: Path) -> None:
    steps = analyze([paused(tmp_path, 0, 5 * MS), paused(tmp_path, 1, 3 * MS)]).window.steps
    assert [(step.number, step.differences) for step in steps if step.differences] == [
        (3, [StepDifference(wall="host", cause="garbage collection", time_ns=4 * MS, median_ns=0, name="Python GC")])
    ]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(ACTIONS), max_size=8), min_size=3, max_size=4))
def test_differences_sum_to_the_difference_in_length(
    tmp_path: Path, steps: list[list[Callable[[Run], object]]]
) -> None:
    found = {step.number: step for step in steps_of(any_steps(steps), tmp_path, ANY_STEP_IS_SLOW)}
    for step in found.values():
        if step.median_step is not None:
            longer_ns = step.duration_ns - found[step.median_step].duration_ns
            assert sum(row.time_ns - row.median_ns for row in step.differences) == longer_ns > 0
