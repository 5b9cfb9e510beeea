"""Steps from the kernels alone."""

from __future__ import annotations

from tests.build import Row, launched, trace
from trace_doctor.loaders import steps
from trace_doctor.loaders.linking import link
from trace_doctor.options import Options
from trace_doctor.trace import Window

LAYER = [f"gemm_{n}" for n in range(10)]
ADAM = ["multi_tensor_apply_kernel<FusedAdamMathFunctor>"]


def window(names: list[str]) -> Window:
    """Kernels of 8 ns every 10 ns, each launched 5 ns before."""
    rows: list[Row] = []
    for n, name in enumerate(names):
        rows += launched(10 * n + 5, 8, at_ns=10 * n, correlation=n + 1, name=name)
    return steps.find(link(trace(rows)), Options())


def test_what_the_optimizer_ends_is_a_step() -> None:
    found = window(["embedding", *(LAYER * 3), "loss", *ADAM] * 4)
    assert found.steps["number"].to_list() == [1, 2, 3, 4]
    assert found.spans["start_ns"].to_list() == [0, 333, 663, 993]  # the ends of the kernels before
    assert found.rule == (
        "period of the kernel sequence, no step marks: 33 kernels, the optimizer's among them, come 4 times (confidence 1.00)"
    )


def test_a_step_begins_after_the_optimizer_wherever_the_recording_begins() -> None:
    step = ["embedding", *(LAYER * 3), "loss", *(ADAM * 3)]
    found = window(step[-12:] + step * 4)
    assert len(found.steps) == 4
    assert found.spans["start_ns"][0] == 123  # the twelfth kernel's end


def test_layers_are_no_steps() -> None:
    """However often they repeat: nothing tells a layer from an inference step."""
    found = window(["embedding", *(LAYER * 3) * 12, "head"])
    assert (len(found.steps), len(found.spans)) == (0, 1)


def test_layers_of_one_training_step_are_no_steps() -> None:
    assert len(window(["embedding", *(LAYER * 3) * 12, *ADAM]).steps) == 0


def test_two_repeats_and_short_blocks_are_no_evidence() -> None:
    assert len(window((LAYER * 3 + ADAM) * 2).steps) == 0
    assert len(window((LAYER + ADAM) * 8).steps) == 0


def test_blocks_that_differ_are_no_evidence() -> None:
    names = [name for turn in range(4) for name in [f"{name}_{turn}" for name in LAYER] + LAYER + ADAM]
    assert len(window(names).steps) == 0
