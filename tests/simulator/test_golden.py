"""The golden reports of the samples, and the README's, are what the tool says today: `make golden`, then read the diff."""

from __future__ import annotations

import pytest

from tests.simulator.golden import ROOT, reports


def test_golden_reports_are_what_the_tool_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stale = [str(path) for path, text in reports() if path.read_text(encoding="utf-8") != text]
    assert stale == []
