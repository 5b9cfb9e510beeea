"""`trace-doctor explain`: the page of a rule."""

from __future__ import annotations

import sys

import click

from trace_doctor.cli.options import complete_codes
from trace_doctor.fixes import pages

WIDEST = 100


@click.command(short_help="Explain a rule: what it sees, how, and what to do.")
@click.argument("code", shell_complete=complete_codes)
@click.option("--color/--no-color", "colour", default=None, help="Colour or not.  [default: on a terminal]")
def explain(code: str, colour: bool | None) -> None:  # noqa: FBT001
    """Explain the rule called CODE: what it sees, how it is computed, when it is wrong, the fix, and the sources.

    On a terminal the page is rendered; piped, it is the Markdown that docs/rules holds.
    """
    text = pages.find(code).text
    if colour or sys.stdout.isatty():
        _render(text, colour=colour)
    else:
        click.echo(text, nl=False)


def _render(text: str, *, colour: bool | None) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(force_terminal=True if colour else None, no_color=True if colour is False else None)
    console.print(Markdown(text, hyperlinks=False), width=min(console.width, WIDEST))
