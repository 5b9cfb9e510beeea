"""The command line, run in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.reporter import samples
from trace_doctor import pipeline
from trace_doctor.__main__ import main
from trace_doctor.options import Options
from trace_doctor.report import Report


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have chosen options in the environment."""
    for name in [name for name in os.environ if name.startswith("TRACE_DOCTOR_")]:
        monkeypatch.delenv(name)


class Ran(NamedTuple):
    code: object
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process; `analyze` gives the healthy report, or does what `does` says."""

    def go(*arguments: str, does: Callable[..., Report] | None = None) -> Ran:
        monkeypatch.setattr(pipeline, "analyze", does or (lambda paths, options, *, progress: samples.healthy()))
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        return Ran(left.value.code, *capfd.readouterr())

    return go


@pytest.fixture
def options_of(run: Run) -> Callable[..., Options]:
    """The Options that the given flags come to."""

    def go(*flags: str) -> Options:
        seen: list[Options] = []

        def note(paths: object, options: Options, *, progress: object) -> Report:
            seen.append(options)
            return samples.healthy()

        ran = run("analyze", "t.json", *flags, does=note)
        assert (ran.code, ran.err) == (0, "")
        return seen[0]

    return go
