"""What findings on compute say: words and evidence, worked out by hand."""

from __future__ import annotations

import pytest

from tests.fixes.build import Program, findings, ran
from tests.fixes.examples import compute as examples
from tests.simulator import Run
from tests.simulator.programs import MATMUL
from trace_doctor.options import Options


@pytest.mark.parametrize(
    ("program", "code", "title"),
    [
        (examples.a_matmul_in_tf32, "wrong-precision", "Matmuls run in TF32 where BF16 is twice as fast"),
        (
            examples.the_vocabulary_is_odd,
            "badly-shaped-matmul",
            "Matmuls in awkward shapes: a dimension of 50257 is no multiple of 8",
        ),
        (examples.too_few_tiles_for_the_gpu, "badly-shaped-matmul", "Matmuls in awkward shapes: 64 tiles for 132 SMs"),
        (
            examples.the_kernel_reads_unaligned_rows,
            "badly-shaped-matmul",
            "Matmuls in awkward shapes: rows aligned to 2 of 8 elements",
        ),
        (
            examples.flash_attention_2_on_hopper,
            "old-attention-kernel",
            "FlashAttention 2 on Hopper, where newer kernels are faster",
        ),
    ],
)
def test_the_title_names_the_reason(program: Program, code: str, title: str) -> None:
    assert findings(ran(program))[code].title == title


def test_memory_efficient_attention_is_called_so_on_every_gpu() -> None:
    on_ampere = findings(ran(examples.memory_efficient_attention_on_ampere, examples.a100))["old-attention-kernel"]
    assert on_ampere.title == "Memory-efficient attention where FlashAttention runs"

    def on_hopper(run: Run) -> None:
        with run.step():
            run.do(examples.in_kernel(examples.ATTENTION, examples.MEMORY_EFFICIENT))

    found = findings(ran(on_hopper))["old-attention-kernel"]
    assert found.title == "Memory-efficient attention on Hopper, where newer kernels are faster"


def test_the_slowest_shape_is_named_in_the_fix() -> None:
    fix = findings(ran(examples.the_vocabulary_is_odd))["badly-shaped-matmul"].fix
    assert fix is not None
    assert "Slowest shape: [[4096, 1024], [1024, 50257]]; to try: pad 50257 to 50304" in fix.summary


def test_the_evidence_is_the_matmul_itself() -> None:
    run = ran(examples.the_vocabulary_is_odd)
    shape, evidence = findings(run)["badly-shaped-matmul"].evidence
    assert (shape.kind, shape.count) == ("shape", 1)
    assert shape.name == ("[[4096, 1024], [1024, 50257]]: a dimension of 50257 is no multiple of 8; pad 50257 to 50304")
    assert (evidence.kind, evidence.step, evidence.count) == ("activity", 1, 1)
    assert evidence.duration_ns == run.ran[0].end_ns - run.ran[0].start_ns
    assert evidence.name.startswith("aten::mm")


def test_unknown_flops_lower_the_confidence() -> None:
    known = findings(ran(examples.a_matmul_in_tf32))["wrong-precision"]
    unknown = findings(ran(examples.a_matmul_of_unknown_flops_in_tf32, examples.without_shapes))["wrong-precision"]
    assert known.confidence.startswith("high:")
    assert unknown.confidence.startswith("medium:")


def test_fp8_is_a_remark_without_a_loss() -> None:
    found = findings(ran(examples.matmuls_in_bf16_fill_the_time))["fp8-opportunity"]
    assert (found.severity, found.lost_ns, found.mfu_points) == ("info", 0, 0)


def test_below_the_roofline_without_a_reason_is_no_finding() -> None:
    def slow(run: Run) -> None:
        with run.step():
            run.do(MATMUL)
            run.do(examples.PADDED)

    report = findings(ran(slow), options=Options(ignore=("fp8-opportunity",)))
    assert not {found.code for found in report.values() if found.cause == "below the roofline"}
