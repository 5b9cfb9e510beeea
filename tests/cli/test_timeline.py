"""Timelines on the command line."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.simulator import kineto
from tests.simulator.samples import SAMPLES
from trace_doctor.overlay import document


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return kineto.write(SAMPLES["gpt-launch-bound"](), tmp_path / "trace.json")


def events(text: bytes) -> int:
    return len(json.loads(text)["traceEvents"])


@pytest.mark.parametrize(
    "flags", [("-o", "t.perfetto.json.gz"), ("-f", "perfetto", "-o", "t.json.gz"), ("-f", "perfetto", "-o", "t.json")]
)
def test_a_timeline_is_written_and_nothing_printed(flags: tuple[str, ...], trace: Path, run: Run) -> None:
    assert run("analyze", str(trace), *flags) == (0, "", "")
    written = trace.with_name(flags[-1]).read_bytes()
    text = gzip.decompress(written) if flags[-1].endswith("gz") else written
    assert events(text) > events(trace.read_bytes())
    assert sorted(path.name for path in trace.parent.iterdir()) == sorted(["trace.json", flags[-1]])


def test_the_same_file_every_time(trace: Path, run: Run) -> None:
    for name in ("a", "b"):
        run("analyze", str(trace), "-o", f"{name}.perfetto.json.gz")
    assert trace.with_name("a.perfetto.json.gz").read_bytes() == trace.with_name("b.perfetto.json.gz").read_bytes()


def test_a_timeline_goes_to_stdout_but_to_no_terminal(trace: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("analyze", str(trace), "-f", "perfetto", "--overlay-only")
    assert (ran.code, ran.err, events(ran.out.encode()) > 100) == (0, "", True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ran = run("analyze", str(trace), "-f", "perfetto")
    assert (ran.code, ran.out, "-o annotated.perfetto.json.gz" in ran.err) == (2, "", True)


def test_one_analysis_feeds_report_and_timeline(trace: Path, run: Run) -> None:
    ran = run("analyze", str(trace), "-o", "t.perfetto.json", "-o", "r.json", "-f", "markdown")
    assert (ran.code, ran.out.startswith("<!-- trace-doctor -->")) == (0, True)
    assert json.loads(trace.with_name("r.json").read_text())["schema_version"] == "1.0"
    assert events(trace.with_name("t.perfetto.json").read_bytes()) > 1


def test_a_trace_may_be_replaced_by_its_annotated_self(trace: Path, run: Run) -> None:
    before = events(trace.read_bytes())
    assert run("analyze", str(trace), "-f", "perfetto", "-o", "trace.json").code == 2
    assert events(trace.read_bytes()) == before
    assert run("analyze", str(trace), "-f", "perfetto", "-o", "trace.json", "--force").code == 0
    assert events(trace.read_bytes()) > before


def test_a_failure_while_drawing_leaves_no_file(trace: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> object:
        yield b"{"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(document, "draw", failing)
    ran = run("analyze", str(trace), "-o", "t.perfetto.json.gz")
    assert (ran.code, "No space left on device" in ran.err) == (2, True)
    assert [path.name for path in trace.parent.iterdir()] == ["trace.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("analyze", "trace.json", "trace2.json", "-o", "t.perfetto.json"), "added to one trace, and 2 were given"),
        (("analyze", "trace.json", "--overlay-only"), "--overlay-only is about the timeline, and none is written"),
        (("compare", "trace.json", "trace.json", "-o", "t.perfetto.json"), "a timeline can be written of an analysis only"),
        (("compare", "trace.json", "trace.json", "-f", "perfetto"), "a timeline can be written of an analysis only"),
        (("analyze", "trace.json", "-o", "t.json.gz"), "don't know which report to write"),
    ],
)  # fmt: skip
def test_what_can_t_be_is_said_before_the_work(arguments: tuple[str, ...], message: str, trace: Path, run: Run) -> None:
    trace.with_name("trace2.json").write_bytes(trace.read_bytes())
    ran = run(*arguments, does=lambda *_, **__: pytest.fail("analysed"))
    assert (ran.code, ran.out, message in ran.err, "next: " in ran.err) == (2, "", True, True)
