"""`trace-doctor compare`: parse, call, print, exit. No arithmetic but that of units."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trace_doctor.cli.analysis import analysis_options, options_of, progress
from trace_doctor.cli.gates import exit_code, gate_options, gates_of, today, waivers_of
from trace_doctor.cli.options import SectionCommand
from trace_doctor.cli.output import Drawn, output_of, output_options

if TYPE_CHECKING:
    from trace_doctor.comparison import Comparison
    from trace_doctor.options import Options
    from trace_doctor.report import Report


@click.command(cls=SectionCommand, short_help="Say what changed between runs, why, and whether that is proven.")
@click.argument("base", metavar="BASE")
@click.argument("new", metavar="NEW [MORE...]", nargs=-1, required=True)
@gate_options
@output_options
@analysis_options
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    base: str,
    new: tuple[str, ...],
    fail_on: tuple[str, ...],
    allow_inconclusive: bool,  # noqa: FBT001
    format_: str | None,
    as_json: bool,  # noqa: FBT001
    outputs: tuple[str, ...],
    force: bool,  # noqa: FBT001
    colour: bool | None,  # noqa: FBT001
    quiet: bool,  # noqa: FBT001
    **chosen: Any,
) -> None:
    """Say what changed between runs, why, and whether that is proven.

    BASE, NEW and MORE are traces, folders of the ranks of one run, or saved JSON reports. The last is held against BASE; of more
    than two all are ranked.
    """  # fmt: skip
    output = output_of(format_, outputs, as_json=as_json, force=force, colour=colour)
    parsed, waivers = gates_of(ctx, fail_on, has_base=True), waivers_of(chosen["config"])
    options = options_of(ctx, chosen)

    from trace_doctor.comparing.assembly import compare as held_against
    from trace_doctor.comparing.waivers import waive

    found = held_against([_report(path, options, quiet=quiet) for path in (base, *new)], parsed)
    found = msgspec.structs.replace(found, gates=waive(found.gates, waivers, today()))
    output.deliver(_drawn(found))
    can_compare = found.comparable.verdict != "no"
    ctx.exit(exit_code(found.gates, can_compare=can_compare, allow_inconclusive=allow_inconclusive))


def _report(path: str, options: Options, *, quiet: bool) -> Report:
    """A saved JSON report, or that of a trace, folder or glob."""
    from trace_doctor import pipeline, redaction
    from trace_doctor.comparing.saved import read

    if saved := read(Path(path)):
        return redaction.redact(saved) if options.redact else saved
    with progress(quiet=quiet) as advance:
        return pipeline.analyze([path], options, progress=advance)


def _drawn(found: Comparison) -> Drawn:
    from trace_doctor.comparison import to_json
    from trace_doctor.reporter import comparison_markdown, comparison_terminal

    return Drawn(
        terminal=partial(comparison_terminal.render, found),
        content={
            "json": lambda: to_json(found),
            "markdown": lambda: comparison_markdown.render(found).encode(),
            "terminal": lambda: comparison_terminal.render(found).encode(),
        },
    )
