"""`trace-doctor analyze`: parse, call, print, exit. No arithmetic but that of units."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trace_doctor.cli.analysis import analysis_options, options_of, progress
from trace_doctor.cli.options import SectionCommand
from trace_doctor.cli.output import Drawn, output_of, output_options

if TYPE_CHECKING:
    from trace_doctor.report import Report


@click.command(cls=SectionCommand, short_help="Say the MFU of a run and where the rest of the time went.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@output_options
@analysis_options
@click.pass_context
def analyze(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    format_: str | None,
    as_json: bool,  # noqa: FBT001
    outputs: tuple[str, ...],
    force: bool,  # noqa: FBT001
    colour: bool | None,  # noqa: FBT001
    quiet: bool,  # noqa: FBT001
    **chosen: Any,
) -> None:
    """Say the MFU of a run and where the rest of the time went.

    PATH is a trace of the PyTorch profiler (.json, .json.gz, .json.zst) or of Nsight Systems (.sqlite, .nsys-rep, a folder of Parquet
    or Arrow files), a folder of them, a glob, or '-' for stdin.
    """  # fmt: skip
    output = output_of(format_, outputs, as_json=as_json, force=force, colour=colour)
    options = options_of(ctx, chosen)

    from trace_doctor import pipeline

    with progress(quiet=quiet) as advance:
        report = pipeline.analyze(paths, options, progress=advance)
    output.deliver(drawn(report))


def drawn(report: Report) -> Drawn:
    """The report in every format."""
    from trace_doctor.report import to_json
    from trace_doctor.reporter import markdown, terminal

    return Drawn(
        terminal=partial(terminal.render, report),
        content={
            "json": lambda: to_json(report),
            "markdown": lambda: markdown.render(report).encode(),
            "terminal": lambda: terminal.render(report).encode(),
        },
    )
