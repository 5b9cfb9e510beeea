from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.reporter import samples
from trace_doctor.report import DeviceRow, Finding, Metrics, Report, Workload
from trace_doctor.reporter import text, verdict


def said(report: Report) -> str:
    return text.plain(
        "\n".join([verdict.headline(report), *verdict.sentences(report), verdict.next_step(report) or ""])
    )


def with_metrics(report: Report, **changed: Any) -> Report:
    return replace(report, metrics=replace(report.metrics, **changed))


def test_the_headline_says_mfu_device_peak_and_basis() -> None:
    assert text.plain(verdict.headline(samples.healthy())) == (
        "MFU 52.0 % (NVIDIA H100 80GB HBM3, bf16 dense 989 TFLOP/s; measured from op shapes)"
    )


@pytest.mark.parametrize(
    ("mfu", "shown"),
    [(0.0, "0.00 %"), (0.000045, "under 0.01 %"), (0.0019, "0.19 %"), (0.0141, "1.4 %"), (0.173, "17.3 %")],
)
def test_a_small_mfu_keeps_its_digits(mfu: float, shown: str) -> None:
    assert text.plain(verdict.headline(with_metrics(samples.healthy(), mfu=mfu))).startswith(f"MFU {shown} (")


@pytest.mark.parametrize(
    ("mfu", "words"),
    [
        (0.0, "below what untuned"), (0.25, "what untuned training runs reach"), (0.4, "between untuned and tuned"),
        (0.52, "what tuned training runs reach"), (0.65, "better than most tuned"), (0.75, "at the practical limit"),
        (0.9, "above the practical limit"), (1.2, "can't be"),
    ],
)  # fmt: skip
def test_it_says_where_mfu_stands_with_the_whole_scale(mfu: float, words: str) -> None:
    first = text.plain(verdict.sentences(with_metrics(samples.healthy(), mfu=mfu))[0])
    assert words in first
    assert first.endswith(
        "for scale: untuned runs reach 20-30 %, tuned ones 50 %, a node's practical limit is 70-80 %, this GPU's best matmul 81 %."
    )


def test_a_range_says_what_is_proven_and_what_may_be() -> None:
    assert (
        "This much is proven; it may be up to 20.5 %, as the FLOPs of 16 % of the time in tensor kernels are not known."
        in said(samples.busy_but_slow())
    )


def test_utilisation_and_mfu_are_reconciled_from_the_largest_losses() -> None:
    assert (
        "The GPU was busy 93.0 % of the time, but of the peak's 100 points 38.0 went to kernels bound by memory, 20.5 to"
        " communication that no compute covered and 8.2 to tensor kernels slower than the peak."
    ) in said(samples.busy_but_slow())


def test_an_unknown_gpu_gives_the_bound_the_reason_and_the_flags() -> None:
    words = said(samples.poor())
    assert words.startswith(
        "MFU unknown, at most 35.0 % (if all tensor kernels ran at the peak)\nNo peak: the name is missing; give --device"
    )
    assert "trace-doctor devices" in words


@pytest.mark.parametrize(
    ("covered", "shapes", "words"),
    [
        (None, None, "the trace holds no op shapes"),
        (0.0, 0.8, "no formula fits the ops"),
        (0.31, 0.8, "FLOPs are known for only 31 % of the time in tensor kernels; MFU needs half."),
    ],
)
def test_without_flops_it_says_why_and_what_would_give_them(
    covered: float | None, shapes: float | None, words: str
) -> None:
    report = with_metrics(samples.healthy(), mfu=None, mfu_low=None, mfu_high=None)
    report = replace(
        report, workload=Workload(covered_share=covered), coverage=replace(report.coverage, shapes_share=shapes)
    )
    assert words in said(report)
    assert "record_shapes=True" in said(report)
    assert "--params N --tokens-per-step T" in said(report)


def test_without_tensor_kernels_there_is_nothing_to_ask_for() -> None:
    report = with_metrics(samples.healthy(), mfu=None, mfu_low=None, mfu_high=None, tensor_share=0.0)
    assert verdict.headline(report) == "MFU unknown"
    assert "No tensor kernel" in said(report)
    assert verdict.next_step(report) is None


def test_an_empty_report_has_a_verdict_too() -> None:
    assert verdict.headline(Report()) == "MFU unknown"
    assert said(Report(device=DeviceRow(peak_flops={"bf16": 1e12}), metrics=Metrics())).startswith(
        "MFU unknown\nHow many FLOPs"
    )


def remark(points: float) -> Finding:
    return Finding(
        code="unexplained-idle", title="Most of the idle time can't be explained from this file", wall="unattributed",
        cause="queued but not started", severity="info", confidence="high", lost_ns=1, mfu_points=points,
    )  # fmt: skip


def test_the_largest_finding_stands_in_the_verdict() -> None:
    assert (
        "Exposed communication: all-reduce of group 0 is not overlapped with compute. This is the largest finding, 18.0 points."
        in said(samples.busy_but_slow())
    )
    assert "largest finding" not in said(samples.healthy())


@pytest.mark.parametrize(("points", "is_told"), [(61.6, True), (17.0, False)])
def test_what_weighs_more_but_is_unexplained_is_told_before_it(points: float, is_told: bool) -> None:
    report = samples.busy_but_slow()
    words = said(replace(report, findings=[*report.findings, remark(points)]))
    told = "Most of the idle time can't be explained from this file. That is 61.6 points. Exposed communication"
    assert (told in words) == is_told


def test_distrust_stands_in_the_verdict() -> None:
    assert "idle time can't be believed" in said(samples.poor())
    assert "idle time can't be believed" not in said(samples.healthy())
