"""The figures of the HTML report as geometry; `templates/figures.html` writes them as SVG, escaped.

Horizontal places are per cent of the figure's width, so that text and strokes keep their size on every screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any, NamedTuple

from trace_doctor.report import WALLS, Finding, Gpu, KernelRow, LedgerRow, Report, Strip, Wall
from trace_doctor.reporter import text
from trace_doctor.reporter.tables import BOUNDS

STRIP_WIDTH = 1_000_000
"""Units of a strip's width: integers that a 32-bit float still tells apart."""
MOST_NAMES = 200
LONGEST_NAME = 80
LONGEST_SEGMENTS = 12
SMALLEST_PART = 5
"""Thousandths of a segment."""
MOST_COLUMNS = 1_024
NUMBERED_COLUMNS = 16
MOST_CAUSES = 16
SHADES = 10
LARGEST_RADIUS = 17.0
SMALLEST_RADIUS = 3.5

UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))

BOUND_WALLS: dict[str | None, Wall] = {
    "compute": "compute", "memory": "memory", "latency": "small_kernels", "neither": "unattributed", None: "unattributed",
}  # fmt: skip
"""The colours of kernels by the roof they stand under."""


class Tick(NamedTuple):
    """A mark on an axis."""

    at: float
    label: str


class Area(NamedTuple):
    """What a wall covers, as an SVG path."""

    wall: Wall
    path: str


class Stretch(NamedTuple):
    """One of the longest segments of the strip."""

    wall: Wall
    name: str
    cause: str
    start: str
    time: str


class StripFigure(NamedTuple):
    """What the GPU did over a step: areas from the top layer down, each drawn over the one before."""

    title: str
    areas: tuple[Area, ...]
    walls: tuple[Wall, ...]
    ticks: tuple[Tick, ...]
    longest: tuple[Stretch, ...]
    sampled: str | None
    data: dict[str, Any]


class Shade(NamedTuple):
    """Cells of one opacity."""

    opacity: float
    path: str


class Cell(NamedTuple):
    """A number written into a cell."""

    at: float
    points: str
    is_dark: bool


class RankRow(NamedTuple):
    """A cause of the ledger over the ranks."""

    wall: Wall
    title: str
    shades: tuple[Shade, ...]
    cells: tuple[Cell, ...]
    mean: str
    lowest: str
    highest: str


class Ranks(NamedTuple):
    """The heat map: a row a cause, a column a GPU."""

    columns: int
    rows: tuple[RankRow, ...]
    ticks: tuple[Tick, ...]
    largest: str
    """What the darkest cell stands for."""
    sampled: str | None
    data: dict[str, Any]


class Roof(NamedTuple):
    """A line of the roofline."""

    kind: str
    label: str
    x1: float
    y1: float
    x2: float
    y2: float


class Point(NamedTuple):
    """A kernel under the roofs."""

    row: int
    wall: Wall
    x: float
    y: float
    radius: float
    label: str


class RooflineFigure(NamedTuple):
    """Intensity against achieved FLOP/s, both logarithmic; places in per cent of the plot."""

    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bounds: tuple[tuple[Wall, str], ...]
    """The colours and what they stand for."""
    streaming: tuple[Point, ...]
    """Kernels without counted FLOPs by their bytes per second, linear."""
    bandwidth_ticks: tuple[Tick, ...]
    unplaced: str | None


class Gain(NamedTuple):
    """What one fix is predicted to give."""

    wall: Wall
    title: str
    step: str | None
    mfu: str | None
    saved: str | None
    money: str | None
    mfu_low: float
    mfu_high: float


# ---- strip


def strip(report: Report) -> StripFigure | None:
    """The strip of a cleaned report; null where it has none."""
    found = report.strip
    if not found or not found.segment_start_ns:
        return None
    parts = _parts(found)
    ends = [*found.segment_start_ns[1:], found.duration_ns]
    lengths = [end - start for start, end in zip(found.segment_start_ns, ends, strict=True)]
    names = _names(found, lengths)
    causes = [text.cause(layer.wall, layer.cause) for layer in found.layers]
    return StripFigure(
        title=_of_which_step(found),
        areas=_areas(found, parts, lengths),
        walls=tuple(wall for wall in WALLS if any(layer.wall == wall for layer in found.layers)),
        ticks=_time_ticks(found.duration_ns),
        longest=_longest(found, parts, lengths, causes),
        sampled=_merged(found),
        data={
            "duration": found.duration_ns,
            "start": found.segment_start_ns,
            "name": [names.get(place, 0) for place in found.segment_name],
            "stretches": found.segment_stretches,
            "names": ["(a kernel of little time)", *(_short(found.names[place]) for place in names)],
            "causes": [[layer.wall, cause] for layer, cause in zip(found.layers, causes, strict=True)],
            "parts": [_thousandths(mix, length) for mix, length in zip(parts, lengths, strict=True)],
        },
    )


def _parts(found: Strip) -> list[list[tuple[int, int]]]:
    """Of each segment: layer and time."""
    parts: list[list[tuple[int, int]]] = [[] for _ in found.segment_start_ns]
    for place, layer in enumerate(found.layers):
        for segment, time_ns in zip(layer.segments, layer.time_ns, strict=True):
            parts[segment].append((place, time_ns))
    return parts


def _names(found: Strip, lengths: Sequence[int]) -> dict[int, int]:
    """The names that hold most of the time, with their places in the page's own list; 0 is all others."""
    times = dict.fromkeys(range(len(found.names)), 0)
    for place, length in zip(found.segment_name, lengths, strict=True):
        times[place] += length
    ranked = sorted(times, key=lambda place: (-times[place], place))[:MOST_NAMES]
    return {place: number for number, place in enumerate(ranked, 1)}


def _short(name: str) -> str:
    return text.clip(text.kernel(name), LONGEST_NAME)


def _thousandths(mix: Iterable[tuple[int, int]], length: int) -> list[int]:
    """Layer and thousandths of the segment, largest first, flat."""
    ranked = sorted(((round(1000 * time / max(length, 1)), layer) for layer, time in mix), key=lambda part: -part[0])
    told = [part for part in ranked if part[0] >= SMALLEST_PART] or ranked[:1]
    return [number for share, layer in told for number in (layer, share)]


def _of_which_step(found: Strip) -> str:
    what = "the whole window" if found.step is None else f"step {found.step}, the one of median length"
    where = f"rank {found.rank}" if found.rank is not None else f"GPU {text.clip(found.device, 32)}"
    return f"{what}, {text.duration(found.duration_ns)} of {where}"


def _areas(found: Strip, parts: Sequence[Sequence[tuple[int, int]]], lengths: Sequence[int]) -> tuple[Area, ...]:
    """A step curve for each wall: as high as all walls up to it; from the last wall down."""
    heights: dict[Wall, list[float]] = {wall: [0.0] * len(parts) for wall in WALLS}
    for segment, mix in enumerate(parts):
        for layer, time_ns in mix:
            heights[found.layers[layer].wall][segment] += 100 * time_ns / max(lengths[segment], 1)
    edges = [round(start / max(found.duration_ns, 1) * STRIP_WIDTH) for start in found.segment_start_ns]
    areas, tops = [], [0.0] * len(parts)
    for wall in WALLS:
        if any(heights[wall]):
            tops = [top + height for top, height in zip(tops, heights[wall], strict=True)]
            areas.append(Area(wall, _curve(edges, tops)))
    return tuple(reversed(areas))


def _curve(edges: Sequence[int], tops: Sequence[float]) -> str:
    at = [round(100 - min(top, 100.0), 1) for top in tops]
    turns = [f"H{edge}V{y:g}" for edge, (before, y) in zip(edges[1:], pairwise(at), strict=True) if y != before]
    return f"M0 100V{at[0]:g}{''.join(turns)}H{STRIP_WIDTH}V100Z" if at else ""


def _time_ticks(duration_ns: int) -> tuple[Tick, ...]:
    """Five to ten round times, in the unit of the whole; the page's script draws the same when zoomed."""
    step = _round_step(duration_ns / 6)
    if not step:
        return ()
    size, unit = next(((size, unit) for size, unit in UNITS if duration_ns >= size), UNITS[-1])
    decimals = max(0, -math.floor(math.log10(step / size) + 1e-9))
    times = [number * step for number in range(math.floor(duration_ns / step) + 1)]
    return tuple(
        Tick(100 * time / duration_ns, f"{time / size:.{decimals}f}{text.SPACE}{unit}" if time else "0")
        for time in times
    )


def _round_step(about: float) -> float:
    """The next larger of 1, 2, 5 times a power of ten."""
    if about <= 0:
        return 0.0
    power = 10 ** math.floor(math.log10(about))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about))


def _longest(
    found: Strip, parts: Sequence[Sequence[tuple[int, int]]], lengths: Sequence[int], causes: Sequence[str]
) -> tuple[Stretch, ...]:
    ranked = sorted(range(len(lengths)), key=lambda segment: (-lengths[segment], segment))[:LONGEST_SEGMENTS]
    rows = []
    for segment in ranked:
        layer, time_ns = max(parts[segment], key=lambda part: part[1], default=(None, 0))
        if layer is not None:
            share = time_ns / max(lengths[segment], 1)
            rows.append(
                Stretch(
                    wall=found.layers[layer].wall,
                    name=_short(found.names[found.segment_name[segment]]),
                    cause=causes[layer] + (f" ({text.percent(share, 0)})" if share < 0.995 else ""),
                    start=text.duration(found.segment_start_ns[segment]),
                    time=text.duration(lengths[segment]),
                )
            )
    return tuple(rows)


def _merged(found: Strip) -> str | None:
    if found.merged_below_ns is None:
        return None
    return (
        f"Sampled: {sum(found.segment_stretches):,} stretches are drawn as"
        f" {text.plural(len(found.segment_start_ns), 'segment')}; neighbours shorter than"
        f" {text.duration(found.merged_below_ns)} are merged, their areas kept."
    )


# ---- ranks


def ranks(report: Report) -> Ranks | None:
    """Causes over GPUs, shaded by the points that each took; null where there is one GPU."""
    rows = _worth_drawing(report)
    if len(report.gpus) < 2 or not rows:
        return None
    groups = _columns(report.gpus)
    shares = [[_mean_points(gpus, row) for gpus in groups] for row in rows]
    largest = max(max(points) for points in shares)
    names = [_column_name(gpus) for gpus in groups]
    return Ranks(
        columns=len(groups),
        rows=tuple(_rank_row(row, points, names, largest) for row, points in zip(rows, shares, strict=True)),
        ticks=_rank_ticks(names),
        largest=text.points(largest),
        sampled=_grouped(report.gpus, groups),
        data={
            "names": names,
            "rows": [text.cause(row.wall, row.cause) for row in rows],
            "tenths": [[round(10 * point) for point in points] for points in shares],
        },
    )


def _worth_drawing(report: Report) -> list[LedgerRow]:
    """The largest rows of the ledger, in its order."""
    ranked = sorted(report.ledger, key=lambda row: -abs(row.share))[:MOST_CAUSES]
    smallest = abs(ranked[-1].share) if ranked else 0.0
    return [row for row in report.ledger if abs(row.share) >= max(smallest, 0.0005)][:MOST_CAUSES]


def _columns(gpus: Sequence[Gpu]) -> list[Sequence[Gpu]]:
    size = math.ceil(len(gpus) / MOST_COLUMNS)
    return [gpus[start : start + size] for start in range(0, len(gpus), size)]


def _mean_points(gpus: Sequence[Gpu], row: LedgerRow) -> float:
    found = [
        other.mfu_points for gpu in gpus for other in gpu.ledger if (other.wall, other.cause) == (row.wall, row.cause)
    ]
    return sum(found) / len(gpus)


def _column_name(gpus: Sequence[Gpu]) -> str:
    first, last = _gpu_name(gpus[0]), _gpu_name(gpus[-1])
    return first if len(gpus) == 1 else f"{first} to {last}"


def _gpu_name(gpu: Gpu) -> str:
    where = f"rank {gpu.rank}" if gpu.rank is not None else PurePath(gpu.source).name
    return text.clip(f"{where}, GPU {gpu.device}" if gpu.device and gpu.rank is None else where, 32)


def _rank_row(row: LedgerRow, points: Sequence[float], names: Sequence[str], largest: float) -> RankRow:
    levels = [_level(value, largest) for value in points]
    low, high = min(points), max(points)
    numbered = points if len(points) <= NUMBERED_COLUMNS else []
    return RankRow(
        wall=row.wall,
        title=text.cause(row.wall, row.cause),
        shades=tuple(Shade(level / SHADES, _cells(levels, level)) for level in range(1, SHADES + 1) if level in levels),
        cells=tuple(
            Cell(100 * (place + 0.5) / len(points), text.points(value), levels[place] > SHADES // 2)
            for place, value in enumerate(numbered)
        ),
        mean=text.points(sum(points) / len(points)),
        lowest=f"{text.points(low)} ({names[points.index(low)]})",
        highest=f"{text.points(high)} ({names[points.index(high)]})",
    )


def _level(value: float, largest: float) -> int:
    """0 to SHADES; what is there is never invisible."""
    if value < 0.05 or largest <= 0:
        return 0
    return max(1, round(SHADES * value / largest))


def _cells(levels: Sequence[int], level: int) -> str:
    """Runs of cells of this level in a row one high."""
    found, start = [], None
    for place, other in enumerate([*levels, None]):
        if other == level and start is None:
            start = place
        elif other != level and start is not None:
            found.append(f"M{start} 0h{place - start}v1h{start - place}z")
            start = None
    return "".join(found)


def _rank_ticks(names: Sequence[str]) -> tuple[Tick, ...]:
    count = len(names)
    places = (
        range(count) if count <= NUMBERED_COLUMNS else sorted({0, count // 4, count // 2, 3 * count // 4, count - 1})
    )
    return tuple(Tick(100 * (place + 0.5) / count, names[place].removeprefix("rank ")) for place in places)


def _grouped(gpus: Sequence[Gpu], groups: Sequence[Sequence[Gpu]]) -> str | None:
    if len(groups) == len(gpus):
        return None
    return f"Sampled: {len(gpus):,} GPUs are drawn as {len(groups):,} columns, each the mean of {len(groups[0])} neighbours."


# ---- roofline


def roofline(report: Report) -> RooflineFigure | None:
    """Kernels by intensity and achieved FLOP/s under the device's roofs; null where no kernel has known work or no peak is known."""
    device = report.device
    placed = [(place, row) for place, row in enumerate(report.kernels.rows) if row.intensity and row.achieved_flops]
    bandwidth = device.memory_bandwidth
    streaming = _streaming(report.kernels.rows) if bandwidth else []
    # caches carry more than the memory does
    widest = max([bandwidth or 0.0, *(moved for _, _, moved in streaming)])
    if not device.peak_flops or not (placed or streaming):
        return None
    flat = _flat_roofs(report, [row for _, row in placed])
    xs = [1.0, *(row.intensity or 1.0 for _, row in placed), *(roof / bandwidth for _, _, roof in flat if bandwidth)]
    ys = [*(row.achieved_flops or 1.0 for _, row in placed), *(roof for _, _, roof in flat)]
    x = _Axis.over(xs)
    y = _Axis.over([*ys, *([bandwidth * 10**x.low] if bandwidth else [])])
    return RooflineFigure(
        roofs=tuple([*_slope(bandwidth, max(roof for _, _, roof in flat), x, y), *_flats(flat, bandwidth, x, y)]),
        points=tuple(_point(place, row, x, y) for place, row in sorted(placed, key=lambda item: -item[1].share)),
        x_ticks=tuple(Tick(x.place(10**power), _power(10**power)) for power in x.powers),
        y_ticks=tuple(Tick(100 - y.place(10**power), _power(10**power, "FLOP/s")) for power in y.powers),
        bounds=tuple((BOUND_WALLS[bound], words) for bound, words in BOUNDS.items()),
        streaming=_spread(streaming, widest),
        bandwidth_ticks=_bandwidth_ticks(bandwidth, widest) if bandwidth else (),
        unplaced=_unplaced(report, {*(place for place, _ in placed), *(place for place, _, _ in streaming)}),
    )


class _Axis(NamedTuple):
    """Whole decades."""

    low: int
    high: int

    @classmethod
    def over(cls, values: Sequence[float]) -> _Axis:
        return cls(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))))

    @property
    def powers(self) -> range:
        step = math.ceil((self.high - self.low) / 8) or 1
        return range(self.low, self.high + 1, step)

    def place(self, value: float) -> float:
        """Per cent of the way."""
        return 100 * (math.log10(value) - self.low) / (self.high - self.low)


def _power(value: float, unit: str = "") -> str:
    """A power of ten without decimals that say nothing: 1 TFLOP/s, 0.1."""
    written = text.rate(value, unit) if unit else text.number(value)
    return re.sub(r"\.0+(?!\d)|(?<=\.\d)0+(?!\d)", "", written)


def _flat_roofs(report: Report, rows: Sequence[KernelRow]) -> list[tuple[str, str, float]]:
    """Peaks of the dtypes that matter, those of the same height as one, and the best matmul: kind, label, FLOP/s."""
    device = report.device
    used = dict.fromkeys([device.peak_dtype, *(row.dtype for row in rows)])
    by_peak: dict[float, list[str]] = {}
    for dtype in used:
        if dtype in device.peak_flops:
            by_peak.setdefault(device.peak_flops[dtype], []).append(dtype)
    roofs = [
        ("peak", f"{text.listing([text.clip(dtype, 12) for dtype in dtypes])} dense {text.rate(peak, 'FLOP/s')}", peak)
        for peak, dtypes in by_peak.items()
    ]
    best = device.best_matmul_flops
    return [*roofs, *([("best", f"best measured matmul {text.rate(best, 'FLOP/s')}", best)] if best else [])]


def _slope(bandwidth: float | None, peak: float, x: _Axis, y: _Axis) -> list[Roof]:
    if not bandwidth:
        return []
    start = max(10**x.low, 10**y.low / bandwidth)
    end = peak / bandwidth
    label = f"memory {text.rate(bandwidth, 'B/s')}"
    ends = (x.place(start), 100 - y.place(bandwidth * start), x.place(end), 100 - y.place(peak))
    return [Roof("memory", label, *ends)]


def _flats(flat: Sequence[tuple[str, str, float]], bandwidth: float | None, x: _Axis, y: _Axis) -> list[Roof]:
    return [
        Roof(kind, label, x.place(peak / bandwidth) if bandwidth else 0.0, height, 100.0, height)
        for kind, label, peak in flat
        for height in (100 - y.place(peak),)
    ]


def _point(place: int, row: KernelRow, x: _Axis, y: _Axis) -> Point:
    intensity, achieved = row.intensity or 1.0, row.achieved_flops or 1.0
    reached = f"{text.number(intensity)} FLOP/B, {text.rate(achieved, 'FLOP/s')}"
    return _disc(place, row, x.place(intensity), 100 - y.place(achieved), reached)


def _disc(place: int, row: KernelRow, x: float, y: float, reached: str) -> Point:
    known = [
        f"{text.percent(row.share)} of the time",
        reached,
        f"{text.percent(row.efficiency, 0)} of ideal" if row.efficiency is not None else "",
        BOUNDS.get(row.bound or "", ""),
    ]
    return Point(
        row=place,
        wall=BOUND_WALLS[row.bound],
        x=x,
        y=y,
        radius=min(SMALLEST_RADIUS + 18 * math.sqrt(max(row.share, 0.0)), LARGEST_RADIUS),
        label=f"{_short(row.name)}: {', '.join(part for part in known if part)}",
    )


def _streaming(rows: Sequence[KernelRow]) -> list[tuple[int, KernelRow, float]]:
    """Kernels without counted FLOPs: place in the table, row, bytes per second."""
    return [
        (place, row, row.achieved_bandwidth)
        for place, row in enumerate(rows)
        if row.achieved_bandwidth and not (row.intensity and row.achieved_flops)
    ]


def _spread(streaming: Sequence[tuple[int, KernelRow, float]], widest: float) -> tuple[Point, ...]:
    """Discs along a line as long as `widest`, spread over its height so that neighbours in the table don't hide each other."""
    return tuple(
        _disc(place, row, 100 * moved / widest, 30 + 20 * (place % 3), text.rate(moved, "B/s"))
        for place, row, moved in streaming
    )


def _bandwidth_ticks(bandwidth: float, widest: float) -> tuple[Tick, ...]:
    """Quarters of the memory's bandwidth."""
    quarters = [part * bandwidth / 4 for part in range(5)]
    return tuple(Tick(100 * rate / widest, text.rate(rate, "B/s") if rate else "0") for rate in quarters)


def _unplaced(report: Report, placed: set[int]) -> str | None:
    rest = sum(row.share for place, row in enumerate(report.kernels.rows) if place not in placed)
    if rest < 0.0005:
        return None
    return f"Not drawn: kernels whose work is not known, {text.percent(rest)} of the time."


# ---- fixes


def gains(findings: Sequence[Finding], report: Report) -> tuple[Gain, ...]:
    """What fixes are predicted to give, for findings that say so."""
    return tuple(_gain(one, report) for one in findings if any(value is not None for value in _numbers(one)))


def _numbers(finding: Finding) -> tuple[float | None, ...]:
    predicted = finding.predicted
    return predicted.step_time_ns, predicted.mfu, predicted.saved_ns_low, predicted.saved_ns_high


def _gain(finding: Finding, report: Report) -> Gain:
    predicted, now = finding.predicted, report.metrics.mfu
    low, high = predicted.saved_ns_low, predicted.saved_ns_high
    saved = [text.duration(value) for value in (low, high) if value is not None]
    return Gain(
        wall=finding.wall,
        title=text.clip(finding.title, 120),
        step=text.duration(predicted.step_time_ns) if predicted.step_time_ns is not None else None,
        mfu=text.percent(predicted.mfu) if predicted.mfu is not None else None,
        saved=" to ".join(dict.fromkeys(saved)) or None,
        money=f"{predicted.money_per_day:,.0f} a day" if predicted.money_per_day is not None else None,
        mfu_low=100 * (now or 0.0),
        mfu_high=100 * (predicted.mfu if predicted.mfu is not None else now or 0.0),
    )
