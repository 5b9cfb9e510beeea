"""`trace-doctor open`."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trace_doctor import loopback

LINK = "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/x/t.json"


def test_prints_the_address_and_opens_it_when_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, float]] = []
    opened: list[str] = []

    def hand_over(path: Path, announce: Callable[[str], object], *, wait_s: float) -> None:
        asked.append((path, wait_s))
        announce(LINK)

    monkeypatch.setattr(loopback, "hand_over", hand_over)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    file = tmp_path / "t.json"
    file.write_text("{}")
    assert run("open", str(file)) == (0, LINK + "\n", "")
    assert opened == []
    assert run("open", str(file), "--browser", "--wait", "5") == (0, LINK + "\n", "")
    assert (opened, asked) == ([LINK], [(file, loopback.WAIT_S), (file, 5.0)])


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_only_a_file_can_be_opened(run: Run, path: str) -> None:
    ran = run("open", path)
    assert (ran.code, ran.out, "Invalid value for 'FILE'" in ran.err) == (2, "", True)
