"""`trace-doctor explain` and `trace-doctor rules`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from tests.cli.conftest import Ran, Run
from trace_doctor.cli import cli
from trace_doctor.fixes import pages


def test_piped_the_page_is_the_markdown_itself(run: Run) -> None:
    assert run("explain", "launch-bound") == Ran(0, pages.find("launch-bound").text, "")
    assert run("explain", "Launch-Bound").out == pages.find("launch-bound").text


def test_rendered_the_page_has_its_words_and_no_marks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = run("explain", "launch-bound", "--color").out
    plain = re.sub("\x1b\\[[0-9;]*m", "", out)
    assert out != plain
    assert max(map(len, plain.splitlines())) <= 80
    assert "What it sees" in plain
    assert "##" not in plain
    assert "```" not in plain


def test_an_unknown_code_exits_2_and_names_those_near_it(run: Run) -> None:
    assert run("explain", "input-pipelin") == Ran(
        2,
        "",
        "error: no rule is called 'input-pipelin'\n  next: did you mean input-pipeline? trace-doctor rules lists them\n",
    )


def test_nothing_in_a_code_steers_the_terminal(run: Run) -> None:
    assert "\x1b" not in run("explain", "\x1b[31mx").err


def test_the_list_has_a_line_a_rule(run: Run) -> None:
    head, *lines = run("rules").out.splitlines()
    assert re.split(r"\s{2,}", head) == ["code", "wall", "severity", "reported from", "what happens"]
    assert sorted(line.split()[0] for line in lines) == sorted(pages.pages())
    assert re.split(r"\s{2,}", next(line for line in lines if line.startswith("unfused-loss"))) == [
        "unfused-loss", "memory", "warning to error", "weighty-share (0.02)",
        "The loss passes over the logits of a large vocabulary several times.",
    ]  # fmt: skip


def test_the_list_as_json(run: Run) -> None:
    rows = {row["code"]: row for row in json.loads(run("rules", "-f", "json").out)}
    assert sorted(rows) == sorted(pages.pages())
    assert rows["untrusted-trace"] == {
        "code": "untrusted-trace",
        "summary": "The trace contradicts itself: nothing may be concluded from part of it.",
        "walls": ["mfu"],
        "severities": ["info"],
        "least": "the first contradiction",
    }


@pytest.mark.parametrize(
    "arguments", [["explain"], ["analyze", "--select"], ["analyze", "--ignore"]], ids=lambda words: " ".join(words)
)
def test_codes_complete(arguments: list[str]) -> None:
    shell = ShellComplete(cli, {}, "trace-doctor", "_TRACE_DOCTOR_COMPLETE")
    assert [item.value for item in shell.get_completions(arguments, "unfused")] == [
        "unfused-attention", "unfused-loss", "unfused-optimizer",
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [["rules"], ["explain", "launch-bound"]], ids=lambda words: words[0])
def test_pages_need_no_frames(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom trace_doctor.__main__ import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "print(sorted({'polars', 'pandas', 'torch', 'rich', 'msgspec'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
