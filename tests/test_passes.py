"""FLOPs of the backward pass against the forward's: about twice, or something is frozen or counted wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator import Run, kineto, work
from trace_doctor import analyze

LAYER = work.mm(4096, 4096, 4096)
FLOPS = 2.0 * 4096**3


def uneven(folder: Path, *, gradients: int, again: bool = False, evaluated: int = 0) -> list[str]:
    """Messages about a step of two layers: their forward, `gradients` matmuls backward, `evaluated` ones that autograd never saw."""
    run = Run()
    with run.step():
        run.do(LAYER)
        run.do(LAYER)
        with run.backward("MmBackward0"):
            if again:
                run.do(LAYER, recompute=True)
            for _ in range(gradients):
                run.do(LAYER)
        with run.on_thread(99):
            for _ in range(evaluated):
                run.do(LAYER)
    report = analyze([kineto.write(run, folder / "trace.json")])
    return [warning.message for warning in report.warnings if warning.code == "uneven-passes"]


@pytest.mark.parametrize(("gradients", "again"), [(4, False), (4, True), (3, False), (5, False), (0, False)])
def test_twice_the_forward_is_even_recomputation_aside_and_without_backward_there_is_nothing_to_say(
    gradients: int, again: bool, tmp_path: Path
) -> None:
    assert uneven(tmp_path, gradients=gradients, again=again) == []


@pytest.mark.parametrize(("gradients", "ratio"), [(2, "1.00"), (6, "3.00")])
def test_far_less_or_more_is_told_with_its_numbers(gradients: int, ratio: str, tmp_path: Path) -> None:
    (told,) = uneven(tmp_path, gradients=gradients)
    numbers = f"{gradients * FLOPS:.4g} and {2 * FLOPS:.4g}"
    assert told.startswith(
        f"the backward pass holds {ratio} x the FLOPs of the forward pass ({numbers}), not about 2 x: "
    )


def test_many_flops_outside_both_passes_leave_the_question_open(tmp_path: Path) -> None:
    assert uneven(tmp_path, gradients=2, evaluated=1) == []
