"""Kernels that beat their peak: a wrong peak or count, unless the algorithm does less than is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.simulator import Run, kineto, work
from trace_doctor import Report, analyze

SGEMM = "volta_sgemm_128x64_nn"
WINOGRAD = (
    "void cudnn::winograd_nonfused::winogradForward{}4x4<float, float>(cudnn::winograd_nonfused::Winograd{}Params)"
)
# 2 x 32 x 56 x 56 x 256 x (256 x 3 x 3) FLOP take 1767 us at 67 TFLOP/s
CONVOLUTION = work.Op(
    name="aten::cudnn_convolution",
    shapes=[[32, 256, 56, 56], [256, 256, 3, 3], [], [], [], [], [], [], []],
    dtypes=[work.FP32, work.FP32, *["ScalarList"] * 3, *["Scalar"] * 4],
    concrete=["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"],
)
MULTIPLY = work.Activity(name=SGEMM, duration_ns=800_000, kind="tensor", dtype="fp32")
TRANSFORMS = [
    work.Activity(name=WINOGRAD.format(part, part), duration_ns=40_000, kind="compute")
    for part in ("Filter", "Data", "Output")
]


def convolve(*launches: work.Activity) -> work.Op:
    return replace(CONVOLUTION, launches=launches)


def warnings_of(report: Report) -> dict[str, str]:
    return {warning.code: warning.message for warning in report.warnings}


def report_of(folder: Path, *ops: work.Op) -> Report:
    run = Run()
    with run.step():
        for op in ops:
            run.do(op)
    return analyze([kineto.write(run, folder / "trace.json")])


def test_a_winograd_convolution_may_beat_the_peak_in_a_plain_kernel(tmp_path: Path) -> None:
    filters, data, output = TRANSFORMS
    report = report_of(tmp_path, convolve(filters, data, MULTIPLY, output))
    warned = warnings_of(report)
    assert warned["beats-peak-by-algorithm"] == (
        f"{SGEMM} ran at 2.21 x the fp32 peak: Winograd and FFT convolutions do fewer multiplications than are counted"
    )
    assert not warned.keys() & {"beats-peak", "model-error"}
    assert "untrusted-trace" not in {finding.code for finding in report.findings}


def test_the_same_kernel_of_a_direct_convolution_beats_the_peak_by_a_wrong_count(tmp_path: Path) -> None:
    warned = warnings_of(report_of(tmp_path, convolve(MULTIPLY), convolve(*TRANSFORMS, MULTIPLY)))
    assert warned["beats-peak"] == f"{SGEMM} ran at 2.21 x the fp32 peak: the peak or the FLOP count is wrong"
    assert "beats-peak-by-algorithm" in warned


def test_a_winograd_convolution_far_above_the_peak_is_no_model_error(tmp_path: Path) -> None:
    # at 100 us even the 16-bit peak is beaten: 118.4 GFLOP take 119.6 us there, 1.2 x what the kernels take
    fast = replace(MULTIPLY, duration_ns=100_000)
    whole = report_of(tmp_path, convolve(*TRANSFORMS[:1], fast))
    assert "model-error" not in warnings_of(whole)
    assert "model-error" in warnings_of(report_of(tmp_path, convolve(fast)))
