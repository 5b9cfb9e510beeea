"""Claims, order, severity, choice and merging of findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixes.build import analyses_of, findings, ran, report_of
from tests.fixes.examples.host import python_runs_between_launches
from tests.fixes.examples.memory_wall import a_norm
from tests.fixes.examples.small_kernels import large_kernels_one_by_one, small_kernels_one_by_one
from tests.simulator import US, Run, work
from tests.simulator.programs import ACTIONS, MATMUL, any_steps, matmul_until_idle
from trace_doctor.errors import UsageError
from trace_doctor.fixes import registry
from trace_doctor.fixes.registry import RULES
from trace_doctor.options import Limits, Options

TALKATIVE = Limits(least_share=0.0)
any_programs = st.lists(st.lists(st.sampled_from(ACTIONS), max_size=12), min_size=2, max_size=2)


@settings(max_examples=30)
@given(any_programs)
def test_each_nanosecond_belongs_to_one_finding(steps: list[list[Callable[[Run], object]]]) -> None:
    (analysis,) = analyses_of(any_steps(steps))
    found = registry.examine(analysis, RULES, TALKATIVE)
    claims = pl.concat([one.draft.claims.select("row", "time_ns") for one in found])
    claimed = claims.group_by("row").agg(claimed_ns=pl.col("time_ns").sum())
    charges = analysis.account.charges.with_row_index("row").filter(pl.col("wall") != "mfu")
    both = claimed.join(charges, on="row", how="left")
    assert both.filter(pl.col("time_ns").is_null() | (pl.col("claimed_ns") > pl.col("time_ns") + 1e-3)).is_empty()


@settings(max_examples=30)
@given(any_programs)
def test_findings_together(steps: list[list[Callable[[Run], object]]]) -> None:
    report = report_of(any_steps(steps), options=Options(limits=TALKATIVE))
    lost = [finding.lost_ns for finding in report.findings]
    gained_ns = sum(row.time_ns for row in report.ledger if row.time_ns < 0)
    explained_ns = sum(row.time_ns for row in report.ledger if row.wall != "mfu") - gained_ns
    assert lost == sorted(lost, reverse=True)
    # each loss is rounded to a nanosecond of each of two steps
    assert 2 * sum(lost) <= explained_ns + len(lost)
    assert (
        sum(finding.mfu_points for finding in report.findings) <= 100 * explained_ns / report.window.duration_ns + 1e-9
    )
    assert all(finding.severity == "info" for finding in report.findings if finding.wall == "unattributed")
    assert all(finding.evidence for finding in report.findings if finding.lost_ns)


def test_a_more_specific_rule_claims_first() -> None:
    def optimizer_in_a_loop(run: Run) -> None:
        with run.step(), run.range("Optimizer.step#AdamW.step", "user_annotation"):
            for _ in range(60):
                run.do(work.add([8], duration_ns=2 * US))

    found = findings(ran(optimizer_in_a_loop))
    assert list(found) == ["unfused-optimizer"]
    left = findings(ran(optimizer_in_a_loop), options=Options(ignore=("unfused-optimizer",)))
    # 59 gaps of 7 us and the first call with its latency; 60 kernels of 2 us but for the ns of their bytes; 3 us of dispatch
    lost = {code: finding.lost_ns for code, finding in left.items()}
    assert lost == {"launch-bound": 59 * 7 * US + 8 * US, "short-kernels": 60 * 2 * US - 1, "host-code": 3 * US}


def test_a_healthy_run_has_no_finding() -> None:
    assert [finding for finding in findings(ran(large_kernels_one_by_one)).values() if finding.severity != "info"] == []


# ---- severity


def _severity(**shares: float) -> str | None:
    """Of the finding on 406 us of host code, where the limits are these times the finding's share of the window."""
    window_ns = report_of(ran(python_runs_between_launches)).window.duration_ns
    limits = Limits(**{name: times * 406 * US / window_ns for name, times in shares.items()})
    found = findings(ran(python_runs_between_launches), options=Options(limits=limits))
    return found["host-code"].severity if "host-code" in found else None


@pytest.mark.parametrize(
    ("shares", "severity"),
    [
        ({"severe_share": 1.0}, "error"),
        ({"severe_share": 1.001, "weighty_share": 1.0}, "warning"),
        ({"weighty_share": 1.001}, "info"),
        ({"least_share": 1.0}, "error"),
        ({"least_share": 1.001}, None),
    ],
)
def test_severity_at_its_borders(shares: dict[str, float], severity: str | None) -> None:
    assert _severity(**shares) == severity


def test_the_borders_are_those_of_the_contract() -> None:
    assert (Limits().severe_share, Limits().weighty_share) == (0.10, 0.02)


@pytest.mark.parametrize("code", ["launch-bound", "short-kernels"])
def test_some_gaps_are_normal(code: str) -> None:
    share = findings(ran(small_kernels_one_by_one))[code].mfu_points / 100
    below, at = (Limits(weighty_gaps_share=times * share) for times in (1.001, 0.999))
    assert findings(ran(small_kernels_one_by_one), options=Options(limits=below))[code].severity == "info"
    assert findings(ran(small_kernels_one_by_one), options=Options(limits=at))[code].severity == "error"


# ---- which rules run


def test_selected_and_ignored_rules() -> None:
    chosen = registry.selected(Options(select=("launch-bound", "short-*"), ignore=("*-kernels",)))
    assert [rule.code for rule in chosen] == ["launch-bound"]
    assert registry.selected(Options()) == RULES


@pytest.mark.parametrize("options", [Options(select=("no-such",)), Options(ignore=("launch_bound",))])
def test_a_code_that_does_not_exist(options: Options) -> None:
    with pytest.raises(UsageError, match="no rule is called"):
        registry.selected(options)


def test_rules_that_lack_something_abstain() -> None:
    def abstained(run: Run) -> dict[str, str]:
        return {entry.code: entry.why for entry in report_of(run).coverage.abstained}

    everything = abstained(ran(a_norm))
    no_shapes = abstained(ran(a_norm, lambda: Run(records_shapes=False)))
    assert {rule.code for rule in RULES} & everything.keys() == {"spare-memory"}
    assert everything["spare-memory"] == "the trace has no memory events (profile_memory=True of torch.profiler)"
    assert no_shapes["badly-shaped-matmul"] == "the trace has no op shapes (record_shapes=True)"

    def without_a_host(run: Run) -> None:
        with run.step():
            run.unrecorded(MATMUL.launches[0])
            run.host(300 * US)
            run.unrecorded(MATMUL.launches[0])

    no_host = abstained(ran(without_a_host, lambda: Run(records_host=False)))
    assert no_host["launch-bound"] == no_host["host-code"] == "the trace has no launch calls"


# ---- several GPUs


def _rank(rank: int, *, pause_us: int) -> Run:
    run = Run(rank=rank, world_size=2)
    with run.step():
        matmul_until_idle(run)
        with run.doing("evaluation", "evaluate"):
            run.host(pause_us * US)
        run.do(MATMUL)
    return run


def test_what_several_ranks_show_is_one_finding_with_their_mean() -> None:
    one = findings(_rank(0, pause_us=500), _rank(1, pause_us=300))["evaluation-in-step"]
    assert (one.lost_ns, one.scope.ranks, one.scope.steps) == (400 * US, [0, 1], [1])
    assert one.evidence[0].duration_ns == 500 * US


def test_a_rank_without_the_loss_lowers_the_mean() -> None:
    one = findings(_rank(0, pause_us=0), _rank(1, pause_us=300))["evaluation-in-step"]
    assert (one.lost_ns, one.scope.ranks) == (150 * US, [1])


def test_families_stay_apart() -> None:
    def norm_and_softmax(run: Run) -> None:
        with run.step():
            run.do(work.layer_norm([4096], 4096))
            run.do(work.softmax([64, 512, 512]))

    found = report_of(ran(norm_and_softmax)).findings
    lost = {finding.cause: finding.lost_ns for finding in found if finding.code == "memory-bound"}
    assert lost == {"normalisation": 20_047, "softmax": 20_032}


# ---- trust


def test_idle_time_that_cant_be_believed_lowers_the_confidence() -> None:
    (analysis,) = analyses_of(ran(python_runs_between_launches))
    doubted = analysis._replace(window=replace(analysis.window, trust="poor", why=("kernels are missing",)))
    report = report_of(ran(python_runs_between_launches))
    found = {finding.code: finding for finding in registry.diagnose(report, [doubted], Options()).findings}
    assert found["host-code"].confidence == "low: idle time can't be believed in this trace"
    assert found["untrusted-trace"].confidence == "high: kernels are missing"
    assert (found["untrusted-trace"].severity, found["untrusted-trace"].lost_ns) == ("info", 0)


def test_work_is_believed_where_idle_time_is_not() -> None:
    def optimizer_in_a_loop(run: Run) -> None:
        with run.step(), run.range("Optimizer.step#AdamW.step", "user_annotation"):
            for _ in range(60):
                run.do(work.add([8], duration_ns=6 * US))  # and 3 us idle before each

    (analysis,) = analyses_of(ran(optimizer_in_a_loop))
    doubted = analysis._replace(window=replace(analysis.window, trust="poor", why=("kernels are missing",)))
    found = registry.examine(doubted, RULES, Limits())
    (one,) = registry.diagnose(
        report_of(ran(optimizer_in_a_loop)), [doubted], Options(select=("unfused-optimizer",))
    ).findings
    assert found[0].code == one.code
    assert one.confidence.startswith("high: ")
