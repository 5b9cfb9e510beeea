"""Tables that every format draws, and the one of kernels."""

from __future__ import annotations

from typing import NamedTuple

from trace_doctor.report import KernelRow, Report
from trace_doctor.reporter import text

LONGEST_NAME = 60
GROUPS = {"kernel": "kernels", "op": "ops", "module": "modules", "annotation": "annotations"}
BOUNDS = {"compute": "compute", "memory": "memory", "latency": "too short", "neither": "inefficient"}


class Table(NamedTuple):
    """A table whose cells are plain text; `names` are the columns of names from a trace, `right` those of numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    names: frozenset[int] = frozenset()
    is_detail: bool = False
    """Folded where a format can fold, and left out first."""
    more: str | None = None
    """What was left out."""


def kernels(report: Report, column: text.Column, per: str, units: float) -> Table:
    """The largest groups of the kernel table: points, time a step, what was reached, efficiency against the roofline, what binds.

    `units`: steps of the window, or 1.
    """
    table = report.kernels
    shown = table.rows[: table.shown]
    rest = len(table.rows) - len(shown) + table.more
    what = GROUPS[table.group_by]
    return Table(
        title=f"The largest {what}, under their roofline",
        header=(table.group_by, "times", "points", f"{column.unit}/{per}", "reached", "of ideal", "bound by"),
        rows=tuple(_row(row, column, units, len(report.gpus)) for row in shown),
        right=frozenset({1, 2, 3, 4, 5}),
        names=frozenset({0}),
        is_detail=True,
        more=f"{text.plural(rest, table.group_by)} more: --top-kernels N shows more, the JSON report has up to 100"
        if rest > 0
        else None,
    )


def _row(row: KernelRow, column: text.Column, units: float, gpus: int) -> tuple[str, ...]:
    return (
        text.clip(text.kernel(row.name), LONGEST_NAME),
        text.count(row.count / units / max(1, gpus)),
        text.points(100 * row.share),
        column.show(row.time_ns / units),
        _reached(row),
        "–" if row.efficiency is None else text.percent(row.efficiency, 0),
        BOUNDS.get(row.bound or "", "–"),
    )


def _reached(row: KernelRow) -> str:
    """FLOP/s of tensor work, bytes/s of other kernels."""
    if row.achieved_flops is not None:
        return text.rate(row.achieved_flops, "FLOP/s")
    return "–" if row.achieved_bandwidth is None else text.rate(row.achieved_bandwidth, "B/s")
