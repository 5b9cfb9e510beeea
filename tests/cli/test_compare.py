"""`trace-doctor compare` and the gates of `analyze`: exit codes, waivers, formats."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.compare.build import report, row
from trace_doctor.cli import gates
from trace_doctor.report import DeviceRow, Report, to_json

FAST = report(row("communication", "wire time", 10, 10, 10, names=("ncclKernel",)), mfu=0.4)
SLOW = report(row("communication", "wire time", 12, 12, 12, names=("ncclKernel",)), mfu=0.35)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with fast.json and slow.json, in which the command runs."""
    for name, one in {"fast": FAST, "slow": SLOW}.items():
        (tmp_path / f"{name}.json").write_bytes(to_json(one))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gates, "today", lambda: date(2026, 6, 15))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["fast.json", "slow.json"], 0),
        (["fast.json", "slow.json", "--fail-on", "step_time>+5%"], 1),
        (["slow.json", "fast.json", "--fail-on", "step_time>+5%"], 0),
        (["fast.json", "slow.json", "--fail-on", "tokens_per_s<-5%"], 3),
        (["fast.json", "slow.json", "--fail-on", "tokens_per_s<-5%", "--allow-inconclusive"], 0),
        (["fast.json", "slow.json", "--fail-on", "tokens_per_s<-5%", "--fail-on", "mfu<-1pt"], 1),
        (["fast.json", "slow.json", "--fail-on", "speed>3"], 2),
        (["fast.json"], 2),
    ],
)
def test_exit_codes(run: Run, saved: Path, arguments: list[str], code: int) -> None:
    assert run("compare", *arguments).code == code


def test_another_machine_is_not_comparable(run: Run, saved: Path) -> None:
    other = Report(**{**_fields(SLOW), "device": DeviceRow(name="NVIDIA A100-SXM4-80GB", count=1, peak_dtype="bf16")})
    (saved / "other.json").write_bytes(to_json(other))
    ran = run("compare", "fast.json", "other.json", "--fail-on", "step_time>+5%")
    assert ran.code == 3
    assert "can't be compared" in ran.out


def _fields(one: Report) -> dict[str, object]:
    return {name: getattr(one, name) for name in Report.__struct_fields__}


def test_the_failing_row_is_marked_and_says_what_did_it(run: Run, saved: Path) -> None:
    ran = run("compare", "fast.json", "slow.json", "--fail-on", "step_time>+5%")
    (line,) = [line for line in ran.out.splitlines() if "step_time>+5%" in line]
    assert line.split()[:3] == ["→", "step_time>+5%", "FAIL"]
    assert "ncclKernel" in ran.out


def test_formats_agree_and_are_the_same_bytes_twice(run: Run, saved: Path) -> None:
    flags = ("fast.json", "slow.json", "--fail-on", "step_time>+5%")
    for format_ in ("terminal", "markdown", "json"):
        assert run("compare", *flags, "-f", format_).out == run("compare", *flags, "-f", format_).out
    found = json.loads(run("compare", *flags, "--json").out)
    assert found["step_time"]["change"] == pytest.approx(0.2)
    assert run("compare", *flags, "-f", "markdown").out.startswith("<!-- trace-doctor:compare -->\n")


def test_gates_and_waivers_of_the_config_file(run: Run, saved: Path) -> None:
    config = saved / "trace-doctor.toml"
    config.write_text('fail-on = ["step_time>+5%"]')
    assert run("compare", "fast.json", "slow.json").code == 1
    waiver = '[[waivers]]\ngate = "step_time > +5%"\nreason = "new loss"\nexpires = {}\n'
    config.write_text('fail-on = ["step_time>+5%"]\n' + waiver.format("2026-06-15"))
    ran = run("compare", "fast.json", "slow.json", "-f", "markdown")
    assert (ran.code, ran.err) == (0, "")
    assert "waived: new loss (until 2026-06-15)" in ran.out
    config.write_text('fail-on = ["step_time>+5%"]\n' + waiver.format("2026-06-14"))
    ran = run("compare", "fast.json", "slow.json")
    assert ran.code == 1
    assert ran.err == "warning: the waiver of step_time > +5% expired on 2026-06-14: new loss\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[waivers]]\ngate = "mfu<-1pt"\nreason = "x"', "missing required field `expires`"),
        ('[[waivers]]\ngate = "mfu<-1pt"\nreason = "x"\nexpires = "soon"', "waivers"),
        ('[[waivers]]\ngates = "mfu<-1pt"', "nothing is called waivers.gates"),
    ],
)
def test_a_waiver_that_is_none_is_an_error(run: Run, saved: Path, text: str, message: str) -> None:
    (saved / "trace-doctor.toml").write_text(text)
    ran = run("compare", "fast.json", "slow.json")
    assert ran.code == 2
    assert message in ran.err


def test_analyze_holds_a_trace_against_absolute_limits(run: Run) -> None:
    failing = run("analyze", "t.json", "--fail-on", "mfu<99%")
    assert failing.code == 1
    assert failing.err.startswith("mfu<99%: FAIL, ")
    assert failing.out == run("analyze", "t.json").out
    assert run("analyze", "t.json", "--fail-on", "mfu<1%").code == 0


def test_analyze_has_no_base_for_a_change(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("analyze", "t.json", "--fail-on", "mfu<-1pt")
    assert ran.code == 2
    assert "it needs a base to compare with" in ran.err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace-doctor.toml").write_text('fail-on = ["mfu<-1pt"]')
    assert run("analyze", "t.json").code == 0


def test_a_broken_saved_report_is_no_traceback(run: Run, saved: Path) -> None:
    (saved / "broken.json").write_text('{"schema_version": "1.0", "ledger": 5}')
    ran = run("compare", "broken.json", "slow.json")
    assert ran.code == 2
    assert "make it anew" in ran.err


@pytest.mark.parametrize(
    "text", ['{"schema_version": "1.0"}', '{"schema_version": "1.0", "comparable": {}, "reports": []}']
)
def test_what_is_no_report_of_a_trace_is_refused(run: Run, saved: Path, text: str) -> None:
    (saved / "other.json").write_text(text)
    ran = run("compare", "other.json", "slow.json")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "error: other.json: is no saved report of a trace: it has no window",
    )


def test_a_comparison_has_no_page_and_says_so_before_the_work(run: Run) -> None:
    ran = run("compare", "no-such-trace.json", "nor-this.json", "-f", "html")
    assert ran.code == 2
    assert "a page can be written of an analysis only" in ran.err
