"""The range of MFU where FLOPs of some tensor kernels are unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulator import Run, kineto, work
from trace_doctor import Report, analyze

KNOWN = work.mm(4096, 4096, 4096, efficiency=0.6)
PEAK = 989.4e12
HEADS, WIDTH, LONGEST, TOKENS = 8, 128, 512, 1280


def varlen(duration_ns: int) -> work.Op:
    """Packed causal sequences of flash-attention 3, up to 512 of 1280 tokens: two of 512 and one of 256 are the most."""
    empty, lengths = [[]] * 4, [[9], [9]]
    between = [*[""] * 12, str(LONGEST), str(LONGEST), *[""] * 9, "0.1", "True", "-1", "-1"]
    shapes = [*[[TOKENS, HEADS, WIDTH]] * 3, *empty, *lengths, *[[]] * 18]
    dtypes = [*[work.BF16] * 3, *[""] * 4, "int", "int", *[""] * 3, "Scalar", "Scalar", *[""] * 9, *["Scalar"] * 4]
    kernel = work.Activity(name="flash_fwd_kernel", duration_ns=duration_ns, kind="tensor", dtype="bf16")
    return work.Op(name="flash_attn_3::fwd", shapes=shapes, dtypes=dtypes, concrete=between, launches=(kernel,))


MOST = 2.0 * HEADS * (2 * LONGEST**2 + 256**2) / 2 * 2 * WIDTH


def report_of(folder: Path, *ops: work.Op) -> Report:
    run = Run()
    with run.step():
        for op in ops:
            run.do(op)
    return analyze([kineto.write(run, folder / "trace.json")])


def extra_ns(report: Report) -> float:
    """Time at peak between the two ends of the range."""
    low, high = report.metrics.mfu_low, report.metrics.mfu_high
    assert low is not None and high is not None
    return (high - low) * report.window.duration_ns


def test_unknown_lengths_add_no_more_than_the_longest_sequences_hold(tmp_path: Path) -> None:
    report = report_of(tmp_path, KNOWN, varlen(100_000))
    assert extra_ns(report) == pytest.approx(1e9 * MOST / PEAK, rel=1e-3)
    assert report.metrics.mfu == report.metrics.mfu_low


def test_the_kernels_without_flops_are_named_with_the_reason(tmp_path: Path) -> None:
    bare = replace(varlen(100_000), name="mylib::attention", shapes=[], dtypes=[], concrete=None)
    report = report_of(tmp_path, KNOWN, varlen(300_000), bare)
    known_ns = KNOWN.launches[0].duration_ns
    told = [warning.message for warning in report.warnings if warning.code == "unknown-flops"]
    shares = [f"{time_ns / (known_ns + 400_000):.1%}" for time_ns in (400_000, 300_000, 100_000)]
    assert told == [
        f"FLOPs are unknown for {shares[0]} of the time in tensor kernels:"
        f" {shares[1]} flash_attn_3::fwd: flash_fwd_kernel (mask or sequence lengths not recorded);"
        f" {shares[2]} mylib::attention: flash_fwd_kernel (no shapes recorded)"
    ]


def test_a_few_percent_without_flops_are_not_worth_a_word(tmp_path: Path) -> None:
    report = report_of(tmp_path, KNOWN, varlen(5_000))
    assert "unknown-flops" not in {warning.code for warning in report.warnings}


def test_a_short_kernel_adds_what_the_others_efficiency_gives(tmp_path: Path) -> None:
    report = report_of(tmp_path, KNOWN, varlen(1_000))
    assert extra_ns(report) == pytest.approx(0.6 * 1_000, rel=1e-2)


def test_without_shapes_there_is_no_such_bound(tmp_path: Path) -> None:
    report = report_of(tmp_path, KNOWN, replace(varlen(100_000), shapes=[], dtypes=[], concrete=None))
    assert extra_ns(report) == pytest.approx(0.6 * 100_000, rel=1e-2)


def test_below_half_the_time_covered_the_bound_holds_too(tmp_path: Path) -> None:
    report = report_of(tmp_path, KNOWN, varlen(3 * KNOWN.launches[0].duration_ns))
    assert report.metrics.mfu is None
    assert extra_ns(report) == pytest.approx(1e9 * MOST / PEAK, rel=1e-3)
