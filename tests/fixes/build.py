"""Findings of simulated programs, and the table of programs that fire a rule or must not: `tests.fixes.examples` fills it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.simulator import Run, kineto
from trace_doctor import Report, load
from trace_doctor.accounts.assembly import assemble
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.fixes import registry
from trace_doctor.options import Options
from trace_doctor.pipeline import examine
from trace_doctor.report import Finding
from trace_doctor.trace import Trace

Program = Callable[[Run], None]


class Example(NamedTuple):
    """A program and what the finding that it is about costs a step; null where there must be no such finding."""

    code: str
    program: Program
    lost_ns: int | None
    made: Callable[[], Run] = Run


EXAMPLES: dict[str, Example] = {}


def fires(code: str, *, lost_ns: int, made: Callable[[], Run] = Run) -> Callable[[Program], Program]:
    """Register a program that loses `lost_ns` a step to what rule `code` is about."""
    return _registered(code, lost_ns, made)


def spares(code: str, *, made: Callable[[], Run] = Run) -> Callable[[Program], Program]:
    """Register a program that is close to one that fires rule `code`, but must not."""
    return _registered(code, None, made)


def _registered(code: str, lost_ns: int | None, made: Callable[[], Run]) -> Callable[[Program], Program]:
    def register(program: Program) -> Program:
        name = f"{code}: {program.__name__}"
        assert name not in EXAMPLES, name
        EXAMPLES[name] = Example(code, program, lost_ns, made)
        return program

    return register


def ran(program: Program, made: Callable[[], Run] = Run) -> Run:
    """The run of a program."""
    run = made()
    program(run)
    return run


def analyses_of(*sources: Run | Trace, options: Options | None = None) -> list[Analysis]:
    """The analyses of simulated ranks, written out and read back, and of traces of `tests.build`."""
    with TemporaryDirectory() as folder:
        traces = [
            load(kineto.write(source, Path(folder) / f"rank{place}.json")) if isinstance(source, Run) else source
            for place, source in enumerate(sources)
        ]
    return [analysis for trace in traces for analysis in examine(trace, options or Options())]


def report_of(*sources: Run | Trace, options: Options | None = None) -> Report:
    """The report of one simulated rank or more, or of traces of `tests.build`."""
    options = options or Options()
    analyses = analyses_of(*sources, options=options)
    return registry.diagnose(assemble(analyses, options), analyses, options)


def findings(*sources: Run | Trace, options: Options | None = None) -> dict[str, Finding]:
    """The findings by code, largest first; where a rule has several (a family, a process group), its largest."""
    found: dict[str, Finding] = {}
    for finding in report_of(*sources, options=options).findings:
        found.setdefault(finding.code, finding)
    return found
