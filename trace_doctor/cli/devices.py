"""`trace-doctor devices`: the table of GPUs whose peaks are known."""

from __future__ import annotations

import click

from trace_doctor.errors import UsageError

SIXTEEN_BIT = ("bf16", "fp16")


@click.command(short_help="List the GPUs whose peaks are known.")
@click.argument("name", required=False)
def devices(name: str | None) -> None:
    """List the GPUs whose peaks are known; with NAME, those whose name contains it.

    The first column is what --device takes.
    """
    from trace_doctor.hardware.devices import catalogue

    wanted = (name or "").lower()
    rows = [row for row in catalogue() if any(wanted in known.lower() for known in (row.id, *row.names))]
    if not rows:
        msg = f"no known device is called {name!r}"
        raise UsageError(
            msg, hint="trace-doctor devices lists them all; --peak-flops and --memory-bandwidth need no device"
        )
    table = [("device", "16-bit peak", "memory", "link", "confidence")]
    for row in rows:
        peak = next((row.peak_tflops[dtype] for dtype in SIXTEEN_BIT if dtype in row.peak_tflops), None)
        table.append(
            (
                row.id,
                _known(peak, "TFLOP/s"),
                _known(row.memory_gb_s, "GB/s"),
                f"{row.link} {row.link_gb_s:g} GB/s" if row.link_gb_s else row.link,
                row.confidence,
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        cells = [
            cell.rjust(w) if column in (1, 2) else cell.ljust(w)
            for column, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def _known(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:g} {unit}"
