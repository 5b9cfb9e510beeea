"""The report as one HTML file: opens from a mail attachment, offline, under 1 MB, with the terminal's words in its order.

Nothing is fetched and nothing of the trace can run: a content security policy admits our own style and script by their hashes alone,
jinja2 escapes every word, and the figures' data is JSON without "<".
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trace_doctor.report import KernelRow, Report
from trace_doctor.reporter import figures, text
from trace_doctor.reporter.tables import BOUNDS
from trace_doctor.reporter.view import Bar, View, step_ns, view

BELOW_BYTES = 1_000_000
LONGEST_NAME = 70
LONGEST_FULL_NAME = 240
MOST_CAUSES_NAMED = 3

BASES = {
    "measured": "read off the trace's own timestamps",
    "modelled": "computed from FLOPs, bytes and the device's specification",
    "estimated": "from the kind of a kernel, or a rule of thumb",
    "residual": "what is left when the other causes are charged",
}
POINTS = "points: per cent of the peak, which is per cent of the time"


class Column(NamedTuple):
    """A column of the kernel table."""

    label: str
    meaning: str
    is_number: bool = True


class Cell(NamedTuple):
    """What a cell shows, and the number it is sorted by."""

    words: str
    value: float = 0.0


class Kernel(NamedTuple):
    """A row of the kernel table."""

    name: str
    full_name: str
    kind: str
    cells: tuple[Cell, ...]


def render(report: Report) -> str:
    """The report as one HTML document of less than a megabyte."""
    report = text.cleaned(report)
    shown = view(report)
    found = _figures(report)
    data = {name: figure.data for name, figure in (("strip", found["strip"]), ("ranks", found["ranks"])) if figure}
    assets = _assets()
    page = _environment().get_template("report.html")
    return page.render(
        report=report,
        shown=shown,
        headline=shown.headline.partition(" ("),
        bars=[(bar, _explained(bar, shown, report)) for bar in shown.bars],
        columns=_columns(report, shown),
        kernels=[_kernel(row, report, shown) for row in report.kernels.rows],
        kinds=sorted({row.family for row in report.kernels.rows if row.family}),
        walls=text.WALLS,
        bases=BASES,
        points_mean=POINTS,
        version=report.tool.version or version("trace-doctor"),
        policy=policy(assets),
        style=Markup(assets["style"]),
        script=Markup(assets["script"]),
        data=Markup(as_json(data)),
        **found,
    )


def _figures(report: Report) -> dict[str, Any]:
    return {
        "strip": figures.strip(report),
        "ranks": figures.ranks(report),
        "roofline": figures.roofline(report),
        "gains": figures.gains(report.findings, report),
    }


def as_json(data: object) -> str:
    """JSON that no HTML parser takes for a tag, whatever strings it holds."""
    dumped = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(assets: Mapping[str, str]) -> str:
    """The content security policy: nothing but these very texts, and the page's own icon."""
    return (
        f"default-src 'none'; style-src {_hash(assets['style'])}; script-src {_hash(assets['script'])};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trace_doctor.reporter"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"points": text.points, "place": lambda value: f"{value:.2f}".rstrip("0").rstrip(".")}
    return environment


@cache
def _assets() -> dict[str, str]:
    """Style and script as the page holds them."""
    folder = resources.files("trace_doctor.reporter") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    colours = "".join(f".w-{wall}{{--wall:{words.colour}}}" for wall, words in text.WALLS.items())
    return {"style": f"{colours}\n{style}", "script": script}


def _explained(bar: Bar, shown: View, report: Report) -> str:
    """What a row of the waterfall means, and its largest causes."""
    time = f"{text.points(bar.points)} points, {shown.column.show(bar.time_ns)} {shown.column.unit} a {shown.per}"
    if bar.wall is None:
        return f"The whole {shown.per} at the peak: {time}"
    ranked = sorted((row for row in report.ledger if row.wall == bar.wall), key=lambda row: -abs(row.mfu_points))
    causes = [f"{text.clip(row.cause, 60)} {text.points(row.mfu_points)}" for row in ranked[:MOST_CAUSES_NAMED]]
    words = text.WALLS[bar.wall].sentence
    return f"{bar.label}: {time}. {text.sentence(words)}" + (
        f" Largest: {', '.join(causes)}" if len(causes) > 1 else ""
    )


# ---- kernel table


def _columns(report: Report, shown: View) -> tuple[Column, ...]:
    return (
        Column(
            report.kernels.group_by,
            "name without template arguments and parameters; the whole name on hover",
            is_number=False,
        ),
        Column("kind", "what most of its time is", is_number=False),
        Column("dtype", "the dtype most of its tensor time ran in", is_number=False),
        Column("times", f"launches a {shown.per} and GPU, as a mean"),
        Column("points", f"per cent of the time in which it held the GPU: measured; {POINTS}"),
        Column(f"{shown.column.unit}/{shown.per}", f"the same as time a {shown.per}, mean over GPUs"),
        Column("median", "median duration of one launch: measured"),
        Column("TFLOP/s", "FLOPs by shapes ÷ time: modelled"),
        Column("GB/s", "bytes it must move at least, by shapes, ÷ time: modelled"),
        Column("FLOP/B", "arithmetic intensity: FLOPs ÷ bytes, modelled"),
        Column("of ideal", "ideal time by the device's specification ÷ time: modelled"),
        Column("bound by", "the roof it stands under; inefficient: far from both", is_number=False),
    )


def _kernel(row: KernelRow, report: Report, shown: View) -> Kernel:
    per_ns = step_ns(report)
    units = report.window.duration_ns / per_ns if per_ns else 1.0
    times = row.count / units / max(1, len(report.gpus))
    op = f", launched by {text.clip(row.op, 80)}" if row.op else ""
    bound = BOUNDS.get(row.bound or "", "–")
    return Kernel(
        name=text.clip(text.kernel(row.name), LONGEST_NAME),
        full_name=text.clip(row.name, LONGEST_FULL_NAME) + op,
        kind=row.family or "",
        cells=(
            Cell(row.family or ""),
            Cell(row.dtype or ""),
            Cell(text.count(times), times),
            Cell(text.points(100 * row.share), row.share),
            Cell(shown.column.show(row.time_ns / units), row.time_ns),
            _known(row.duration_ns.median, text.duration),
            _known(row.achieved_flops, lambda value: text.number(value / 1e12)),
            _known(row.achieved_bandwidth, lambda value: text.number(value / 1e9)),
            _known(row.intensity, text.number),
            _known(row.efficiency, lambda value: text.percent(value, 0)),
            Cell(bound),
        ),
    )


def _known(value: float | None, show: Callable[[float], str]) -> Cell:
    return Cell("–", -1.0) if value is None else Cell(show(value), value)
