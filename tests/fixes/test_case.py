"""What the rules see of a GPU: losses, and what is left of them once claimed."""

from __future__ import annotations

import polars as pl
import pytest

from tests.build import Row, launched, mark, op, step, trace
from tests.fixes.build import analyses_of, ran
from tests.fixes.examples.host import python_runs_between_launches
from tests.simulator.programs import MATMUL_NS
from trace_doctor.fixes.case import Case, case_of, launched_inside
from trace_doctor.loaders.linking import link
from trace_doctor.options import Limits

US = 1_000


@pytest.fixture
def case() -> Case:
    """Two matmuls, 406 us of host code and 16 us of launching, in one step."""
    (analysis,) = analyses_of(ran(python_runs_between_launches))
    return case_of(analysis, Limits())


def test_losses_are_all_but_the_model_flops(case: Case) -> None:
    known = {"below the roofline": 2 * (MATMUL_NS - 138_911), "host code": 406 * US, "launch-bound": 16 * US}
    sums = case.lost().group_by(pl.col("cause").cast(pl.String)).agg(pl.col("time_ns").sum().round())
    # each matmul's time at the peak is 138 911.4 ns
    assert dict(sums.iter_rows()) == known | {"below the roofline": known["below the roofline"] - 1}
    assert (case.window_ns, case.steps, case.per, case.where) == (
        422 * US + 2 * MATMUL_NS,
        1,
        "a step",
        "inside the steps",
    )


def test_what_is_claimed_is_gone(case: Case) -> None:
    claims = case.caused("host code")
    left = case.without(claims.with_columns(time_ns=pl.col("time_ns") * 0.25))
    assert left.caused("host code")["time_ns"].sum() == pytest.approx(0.75 * 406 * US)
    assert left.caused("launch-bound").equals(case.caused("launch-bound"))
    assert left.without(left.caused("host code")).caused("host code").is_empty()
    assert case.caused("host code").equals(claims)


def test_shares_and_what_is_worth_saying(case: Case) -> None:
    claims = case.caused("host code")
    share = 406 * US / case.window_ns
    assert case.share(claims) == pytest.approx(share)
    limits = Limits(least_share=share * 1.001, weighty_share=share * 0.999)
    assert not case._replace(limits=limits).is_worth_saying(claims)
    assert case._replace(limits=limits).is_weighty(claims)
    nothing = case._replace(limits=Limits(least_share=0.0, weighty_share=0.0))
    assert not nothing.is_worth_saying(claims.clear())
    assert not nothing.is_weighty(claims.clear())


def test_without_steps_words_speak_of_the_window() -> None:
    (analysis,) = analyses_of(link(trace(launched(10, 5, at_ns=0, correlation=1))))
    case = case_of(analysis, Limits())
    assert (case.steps, case.per, case.where) == (1, "in the window", "in the window")


@pytest.mark.parametrize(
    ("around", "is_inside"),
    [
        (mark(0, 10, "Optimizer.step#AdamW.step"), True),
        (mark(0, 10, "optimizer_step"), True),
        (op(0, 10, "## optimizer.step ##"), True),
        (mark(0, 3, "Optimizer.step#AdamW.step"), False),
        (mark(0, 10, "Optimizer.zero_grad#AdamW.zero_grad"), False),
        (mark(0, 10, "Optimizer.step#AdamW.step", kind="overhead"), False),
        (mark(0, 10, "Optimizer.step#AdamW.step", thread=1), False),
    ],
)
def test_kernels_launched_inside_a_range(around: Row, is_inside: bool) -> None:
    linked = link(trace(step(1, 0, 40), around, launched(20, 5, at_ns=5, correlation=1), threads=2))
    (analysis,) = analyses_of(linked)
    assert case_of(analysis, Limits()).kernels["in_optimizer"].to_list() == [is_inside]


def test_no_kernel_is_inside_a_range_that_does_not_exist(case: Case) -> None:
    assert launched_inside(case.analysis.trace, case.kernels, "no such name").to_list() == [False, False]
