"""`trace-doctor rules`: the rules and what each says."""

from __future__ import annotations

import click

from trace_doctor.fixes import pages
from trace_doctor.fixes.pages import Page


@click.command(short_help="List the rules that findings come from.")
@click.option(
    "-f", "--format", "format_", type=click.Choice(("terminal", "json")), default="terminal", help="What to print."
)
def rules(format_: str) -> None:
    """List the rules that findings come from: code, wall of the ledger, severities, from which loss on, and what happens.

    Codes are what --select, --ignore and trace-doctor explain take.
    """
    found = sorted(pages.pages().values(), key=lambda page: (page.walls[0], page.code))
    click.echo(_json(found) if format_ == "json" else _table(found))


def _table(found: list[Page]) -> str:
    head = ("code", "wall", "severity", "reported from", "what happens")
    rows = [
        head,
        *((p.code, p.walls[0], _span(p.severities), p.least.removesuffix(" of the window"), p.summary) for p in found),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _span(severities: tuple[str, ...]) -> str:
    return severities[0] if len(severities) == 1 else f"{severities[0]} to {severities[-1]}"


def _json(found: list[Page]) -> str:
    import json

    keys = ("code", "summary", "walls", "severities", "least")
    return json.dumps([{key: getattr(page, key) for key in keys} for page in found], indent=2)
