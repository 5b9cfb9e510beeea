"""`trace-doctor analyze`: parse, call, print, exit. No arithmetic but that of units."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trace_doctor.cli.analysis import analysis_options, options_of, progress
from trace_doctor.cli.gates import exit_code, gate_options, gates_of, today, waivers_of
from trace_doctor.cli.options import SectionCommand, SectionOption
from trace_doctor.cli.output import FORMATS, HTML, PERFETTO, Drawn, output_of, output_options
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trace_doctor.classifiers.ledger import Analysis
    from trace_doctor.comparing.gates import Gate, NewFinding
    from trace_doctor.comparing.waivers import Waiver
    from trace_doctor.report import Report


@click.command(cls=SectionCommand, short_help="Say the MFU of a run and where the rest of the time went.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@gate_options
@output_options
@click.option(
    "--post-mortem",
    cls=SectionOption,
    section="Report",
    is_flag=True,
    help="Of Markdown write the post-mortem: what was slow and since when, proof, cost, fixes.  [alone: on stdout]",
)
@click.option(
    "--overlay-only",
    cls=SectionOption,
    section="Report",
    is_flag=True,
    help="Of a timeline write trace-doctor's tracks alone, without the trace.",
)
@analysis_options
@click.pass_context
def analyze(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    fail_on: tuple[str, ...],
    allow_inconclusive: bool,  # noqa: FBT001
    format_: str | None,
    as_json: bool,  # noqa: FBT001
    outputs: tuple[str, ...],
    force: bool,  # noqa: FBT001
    colour: bool | None,  # noqa: FBT001
    overlay_only: bool,  # noqa: FBT001
    post_mortem: bool,  # noqa: FBT001
    quiet: bool,  # noqa: FBT001
    **chosen: Any,
) -> None:
    """Say the MFU of a run and where the rest of the time went.

    PATH is a trace of the PyTorch profiler (.json, .json.gz, .json.zst) or of Nsight Systems (.sqlite, .nsys-rep, a folder of Parquet
    or Arrow files), a folder of them, a glob, or '-' for stdin.
    """  # fmt: skip
    output = output_of(
        format_,
        outputs,
        as_json=as_json,
        force=force,
        colour=colour,
        formats=(*FORMATS, HTML, PERFETTO),
        default="markdown" if post_mortem else "terminal",
    )
    if post_mortem and not output.wants("markdown"):
        msg = "--post-mortem is a Markdown document, and none is written"
        raise UsageError(msg, hint="add -o post-mortem.md")
    has_timeline = output.wants(PERFETTO)
    if overlay_only and not has_timeline:
        msg = "--overlay-only is about the timeline, and none is written"
        raise UsageError(msg, hint="add -o overlay.perfetto.json.gz")
    gates, waivers = gates_of(ctx, fail_on, has_base=False), waivers_of(chosen["config"])
    options = options_of(ctx, chosen)

    from trace_doctor import pipeline

    if has_timeline:
        from trace_doctor.overlay import document

        overlay_only = overlay_only or options.redact
        document.check(paths, alone=overlay_only)
    with progress(quiet=quiet) as advance:
        if has_timeline:
            report, analyses = pipeline.diagnose(paths, options, progress=advance)
        else:
            report, analyses = pipeline.analyze(paths, options, progress=advance), ()
    output.deliver(drawn(report, analyses, post_mortem=post_mortem, overlay_only=overlay_only, redact=options.redact))
    if gates:
        ctx.exit(_judged(report, gates, waivers, allow_inconclusive=allow_inconclusive))


def _judged(
    report: Report, gates: Sequence[Gate | NewFinding], waivers: Sequence[Waiver], *, allow_inconclusive: bool
) -> int:
    """The exit code of absolute limits; what they say goes to stderr, for the report is the same with and without them."""
    from trace_doctor.comparing.assembly import judge_alone
    from trace_doctor.comparing.waivers import waive
    from trace_doctor.reporter.comparison_view import gate_line

    results = waive(judge_alone(report, gates), waivers, today())
    for result in results:
        click.echo(gate_line(result), err=True)
    return exit_code(results, can_compare=True, allow_inconclusive=allow_inconclusive)


def drawn(
    report: Report, analyses: Sequence[Analysis], *, post_mortem: bool, overlay_only: bool, redact: bool
) -> Drawn:
    """The report in every format; its timeline is drawn from the analyses."""
    from trace_doctor import pipeline, redaction
    from trace_doctor.overlay import document
    from trace_doctor.report import to_json
    from trace_doctor.reporter import html, markdown, terminal
    from trace_doctor.reporter import post_mortem as template

    shown = redaction.namer(pipeline.kernel_names(analyses)) if redact else str
    document_of = template.render if post_mortem else markdown.render
    return Drawn(
        terminal=partial(terminal.render, report),
        content={
            "json": lambda: to_json(report),
            "markdown": lambda: document_of(report).encode(),
            "html": lambda: html.render(report).encode(),
            "perfetto": lambda: document.draw(report, analyses, alone=overlay_only, shown=shown),
            "terminal": lambda: terminal.render(report).encode(),
        },
    )
