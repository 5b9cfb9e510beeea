"""`trace-doctor open`: parse, call, print, exit."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from trace_doctor import loopback
from trace_doctor.cli.options import SectionCommand, SectionOption


@click.command(cls=SectionCommand, short_help="Show a timeline in the Perfetto UI.")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--browser", cls=SectionOption, is_flag=True, help="Open the address in the browser.")
@click.option(
    "--wait",
    cls=SectionOption,
    type=click.FloatRange(min=0, min_open=True),
    default=loopback.WAIT_S,
    show_default=True,
    metavar="S",
    help="Give up when nobody has fetched the file after so many seconds.",
)
def open(file: Path, browser: bool, wait: float) -> None:  # noqa: FBT001
    """Show a timeline in the Perfetto UI.

    FILE is what `trace-doctor analyze -o annotated.perfetto.json.gz` wrote, or any trace that the UI reads. It is served once, to this
    machine alone, and read by the page at https://ui.perfetto.dev in your browser; it is sent nowhere.
    """  # fmt: skip

    def announce(link: str) -> None:
        click.echo(link)
        if browser:
            webbrowser.open(link)

    loopback.hand_over(file, announce, wait_s=wait)
