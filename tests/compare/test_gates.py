"""Gates: how they are read, and what comes of them."""

from __future__ import annotations

import pytest

from tests.compare.build import MS, finding, report, row
from trace_doctor import errors
from trace_doctor.comparing import gates
from trace_doctor.comparing.assembly import compare
from trace_doctor.comparison import GateResult
from trace_doctor.report import Report


def steps(*lengths_ms: float, mfu: float | None = 0.4) -> Report:
    return report(row("communication", "wire time", *lengths_ms, names=("ncclKernel",)), mfu=mfu)


def judged(expression: str, base: Report, new: Report) -> GateResult:
    return compare([base, new], [expression]).gates[0]


SHORT, LONG = steps(10, 10, 10), steps(12, 12, 12, mfu=0.35)


@pytest.mark.parametrize(
    ("expression", "limit", "how", "less"),
    [
        ("mfu<-1pt", -0.01, "change", True),
        ("step_time>+3%", 0.03, "relative", False),
        ("exposed_communication > +5ms", 5e6, "change", False),
        ("mfu<40%", 0.4, "absolute", True),
        ("idle>20%", 0.2, "absolute", False),
        ("step_time>250ms", 2.5e8, "absolute", False),
        ("tokens_per_s<12K", 12e3, "absolute", True),
        ("hfu<-0.5pt", -0.005, "change", True),
    ],
)
def test_expressions(expression: str, limit: float, how: str, less: bool) -> None:
    found = gates.parse(expression)
    assert isinstance(found, gates.Gate)
    assert (found.limit, found.how, found.less) == (pytest.approx(limit), how, less)


@pytest.mark.parametrize(
    "expression",
    ["", "mfu", "mfu<", "mfu=40%", "speed>3%", "mfu<40", "step_time>3pt", "mfu<5ms", "new:", "mfu<-1pt; rm -rf /"],
)
def test_what_is_no_gate_is_an_error(expression: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        gates.parse(expression)
    assert caught.value.where == "--fail-on"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("expression", "result", "value"),
    [
        ("step_time>+15%", "fail", 0.2),
        ("step_time>+25%", "pass", 0.2),
        ("step_time>+1ms", "fail", 2 * MS),
        ("step_time>11ms", "fail", 12 * MS),
        ("mfu<-4pt", "fail", -0.05),
        ("mfu<-6pt", "pass", -0.05),
        ("mfu<30%", "pass", 0.35),
        ("exposed_communication>+1ms", "fail", 2 * MS),
        ("communication_wall>+10%", "fail", 0.2),
        ("exposed_communication>50%", "fail", 1.0),
    ],
)
def test_few_steps_are_judged_on_the_medians(expression: str, result: str, value: float) -> None:
    found = judged(expression, SHORT, LONG)
    assert (found.result, found.tested) == (result, False)
    assert found.value == pytest.approx(value)


def test_a_failed_gate_names_what_did_it() -> None:
    assert judged("step_time>+15%", SHORT, LONG).culprits == ["communication / wire time: ncclKernel"]


def test_a_change_inside_the_noise_is_inconclusive_and_a_proven_one_fails() -> None:
    noisy = steps(10, 14, 9, 13, 11), steps(12, 10, 13, 15, 11.5)
    assert judged("step_time>+3%", *noisy) == GateResult(
        expression="step_time>+3%",
        value=pytest.approx(1 / 11),
        limit=0.03,
        result="inconclusive",
        tested=True,
        culprits=["communication / wire time: ncclKernel"],
        why="inside the noise of the steps",
    )
    proven = judged("step_time>+3%", steps(10, 10.1, 10.2, 10.3, 10.4), steps(12, 12.1, 12.2, 12.3, 12.4))
    assert (proven.result, proven.tested) == ("fail", True)


def test_what_is_not_known_is_inconclusive() -> None:
    found = judged("mfu<-1pt", SHORT, steps(10, 10, 10, mfu=None))
    assert (found.result, found.why) == ("inconclusive", "mfu is not known")


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("new:error", "fail"),
        ("new:warning", "fail"),
        ("new:slow-link", "fail"),
        ("new:allocator", "pass"),
        ("new:any", "fail"),
    ],
)
def test_new_findings(expression: str, result: str) -> None:
    base = report(row("host", "x", 1), findings=[finding("allocator", 20, severity="error")])
    new = report(row("host", "x", 1), findings=[*base.findings, finding("slow-link", 12, severity="error")])
    found = judged(expression, base, new)
    assert found.result == result
    assert found.culprits == (["slow-link of 12"] if result == "fail" else [])


def test_a_severity_stands_for_it_and_all_above() -> None:
    base = report(row("host", "x", 1))
    new = report(row("host", "x", 1), findings=[finding("slow-link", 3, severity="warning")])
    assert [judged(f"new:{word}", base, new).result for word in ("error", "warning", "info")] == [
        "pass",
        "fail",
        "fail",
    ]
