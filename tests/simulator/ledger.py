"""The ledger of a simulated run, from what its parts were built as: ATTRIBUTION sections 2 to 5 in plain Python.

Slow and obvious on purpose, one elementary interval and one gap at a time, and without a look at names, shapes or links: what
trace_doctor has to find out, this knows.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import median

from tests.simulator.machine import US, Ran, Run

Ledger = dict[tuple[str, str], float]
Rounded = dict[tuple[str, str], int]
Span = tuple[int, int]

CLASSES = ("tensor", "compute", "communication", "copy", "idle")
FLOOR_NS = 3 * US
DEVICE_GAP_NS, BLOCKED_CALL_NS, LAUNCH_SPACING_NS = 20 * US, 50 * US, 200 * US

HOST_CAUSES = (
    ("memory", "allocator"),
    ("host", "initialisation"),
    ("unattributed", "profiler overhead"),
    ("host", "input pipeline"),
    ("host", "compilation"),
    ("host", "checkpoint saving"),
    ("host", "garbage collection"),
    ("host", "evaluation"),
    ("host", "logging"),
)
"""In the order in which the first match wins."""


def of(run: Run, window: Span | None = None) -> Rounded:
    """The nanoseconds of every cause, rounded; rows that vanish are left out."""
    start_ns, end_ns = window or used_window(run)
    rows: Ledger = defaultdict(float)
    held, seen, gaps = sweep(run, start_ns, end_ns)
    for place, ran in enumerate(run.ran):
        if place in held:
            for row, time_ns in charges(run, ran, held[place], seen[place], (start_ns, end_ns)).items():
                rows[row] += time_ns
    for row, time_ns in explain(run, gaps, busy_spans(run, start_ns, end_ns)).items():
        rows[row] += time_ns
    return {row: rounded for row, time_ns in rows.items() if (rounded := round(time_ns))}


def near(found: Rounded, known: Rounded) -> Rounded:
    """`found`, with what lies within rounding of `known` taken as equal: a row is rounded by less than 1 ns."""
    rows = found | {row: 0 for row in known if row not in found}
    close = {
        row: known.get(row, 0) if abs(time_ns - known.get(row, 0)) <= 1 else time_ns for row, time_ns in rows.items()
    }
    return {row: time_ns for row, time_ns in close.items() if row in known or time_ns}


# ---- section 2


def used_window(run: Run) -> Span:
    """From the first step's border to the last one's; without steps the hull of GPU activity."""
    if not run.steps:
        return min(ran.start_ns for ran in run.ran), max(ran.end_ns for ran in run.ran)
    first, last = run.steps[0], run.steps[-1]
    compute = [ran for ran in run.ran if ran.work.kind in ("tensor", "compute")]
    before = [ran.end_ns for ran in compute if launched_ns(ran) < first.start_ns]
    opening = max([first.start_ns, *before])
    is_cold = not any(ran.end_ns > opening for ran in run.ran if launched_ns(ran) < first.start_ns)
    closers = run.ran if is_cold else compute
    inside = [
        ran.end_ns for ran in closers if any(step.start_ns <= launched_ns(ran) < step.end_ns for step in run.steps)
    ]
    return opening, max([last.end_ns, *inside])


def launched_ns(ran: Ran) -> int:
    """When it was launched; its own start where nobody knows."""
    return ran.call.start_ns if ran.call else ran.start_ns


# ---- section 3


def sweep(run: Run, start_ns: int, end_ns: int) -> tuple[dict[int, float], dict[int, int], list[Span]]:
    """Exclusive time and time under no higher class of each activity (by place in `run.ran`), and the gaps."""
    inside = {
        place: (max(ran.start_ns, start_ns), min(ran.end_ns, end_ns))
        for place, ran in enumerate(run.ran)
        if ran.start_ns < end_ns and ran.end_ns > start_ns
    }
    borders = sorted({start_ns, end_ns, *(at for span in inside.values() for at in span)})
    begins, ends = defaultdict(list), defaultdict(list)
    for place, (from_ns, to_ns) in inside.items():
        begins[from_ns].append(place)
        ends[to_ns].append(place)
    running: set[int] = set()
    held: dict[int, float] = dict.fromkeys(inside, 0.0)
    seen: dict[int, int] = dict.fromkeys(inside, 0)
    gaps: list[Span] = []
    for a, b in pairwise(borders):
        running.difference_update(ends[a])
        running.update(begins[a])
        best = min((class_of(run.ran[place]) for place in running), default=CLASSES.index("idle"))
        top = [place for place in running if class_of(run.ran[place]) == best]
        for place in top:
            held[place] += (b - a) / len(top)
            seen[place] += b - a
        if not top:
            gaps.append((a, b))
    return held, seen, gaps


def class_of(ran: Ran) -> int:
    """Place in the order of the sweep; memsets go with the copies."""
    return CLASSES.index("copy" if ran.work.kind == "set" else ran.work.kind)


def busy_spans(run: Run, start_ns: int, end_ns: int) -> list[Span]:
    """When anything ran, inside the window."""
    merged: list[Span] = []
    for ran in sorted(run.ran, key=lambda ran: ran.start_ns):
        a, b = max(ran.start_ns, start_ns), min(ran.end_ns, end_ns)
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        elif a < b:
            merged.append((a, b))
    return merged


# ---- section 4


def charges(run: Run, ran: Ran, held_ns: float, seen_ns: int, window: Span) -> Ledger:
    """What one activity's exclusive time is charged to."""
    inside_ns = min(ran.end_ns, window[1]) - max(ran.start_ns, window[0])
    part = inside_ns / (ran.end_ns - ran.start_ns) if ran.end_ns > ran.start_ns else 1.0
    if ran.work.kind == "tensor":
        return tensor_charges(run, ran, held_ns, part)
    if ran.work.kind == "compute":
        return compute_charges(run, ran, held_ns, part, seen_ns / inside_ns)
    if ran.work.kind == "communication":
        return communication_charges(run, ran, held_ns, part)
    wall = {"input transfer": "host", "synchronisation": "host", "peer-to-peer copy": "communication"}
    return {(wall.get(ran.work.cause, "memory"), ran.work.cause): held_ns}


def is_told(run: Run, ran: Ran) -> bool:
    """Whether the trace tells the shapes of the op that launched it."""
    return ran.is_described and run.records_shapes and run.records_host


def tensor_charges(run: Run, ran: Ran, held_ns: float, part: float) -> Ledger:
    """First table of section 4."""
    work, peaks = ran.work, run.gpu.peak_flops
    if work.flops is None or not is_told(run, ran):
        return {("unattributed", "tensor work without FLOPs"): held_ns}
    ideal = 1e9 * work.flops * part / peaks["bf16"]
    own = 1e9 * work.flops * part / peaks[work.dtype]
    memory = 1e9 * (work.bytes_moved or 0) * part / run.gpu.bandwidth
    model = ("recompute", "recompute") if ran.recompute else ("mfu", "model FLOPs")
    left = held_ns - ideal
    if left < 0:
        return {model: ideal, ("compute", "precision gain") if own < ideal else ("unattributed", "model error"): left}
    precision = min(max(own - ideal, 0), left)
    low_intensity = min(max(memory - max(own, ideal), 0), left - precision)
    return {
        model: ideal,
        ("compute", "precision"): precision,
        ("memory", "low arithmetic intensity"): low_intensity,
        ("compute", "below the roofline"): left - precision - low_intensity,
    }


def compute_charges(run: Run, ran: Ran, held_ns: float, part: float, seen: float) -> Ledger:
    """Second table of section 4."""
    work, floor = ran.work, floor_ns(run)
    too_short = ("small_kernels", "too short to fill the GPU")
    if work.bytes_moved is None or not is_told(run, ran):
        if ran.end_ns - ran.start_ns <= 2 * floor:
            return {too_short: held_ns}
        return {("unattributed", "unknown kernel") if work.cause == "unknown" else ("memory", work.cause): held_ns}
    traffic = min(held_ns, 1e9 * work.bytes_moved * part * seen / run.gpu.bandwidth)
    short = min(held_ns - traffic, floor * part)
    return {
        ("memory", work.cause): traffic,
        too_short: short,
        ("memory", "poor access pattern"): held_ns - traffic - short,
    }


def floor_ns(run: Run) -> float:
    """Median duration of the kernels that move next to nothing."""
    tiny = [
        ran.end_ns - ran.start_ns
        for ran in run.ran
        if ran.work.kind == "compute"
        and ran.work.bytes_moved is not None
        and is_told(run, ran)
        and 1e9 * ran.work.bytes_moved / run.gpu.bandwidth < 300
    ]
    return median(tiny) if len(tiny) >= 20 else FLOOR_NS


def communication_charges(run: Run, ran: Ran, held_ns: float, part: float) -> Ledger:
    """Third table of section 4, as one rank sees it."""
    work = ran.work
    if work.cause:
        return {("communication", work.cause): held_ns}
    collective = work.collective or {}
    bandwidth = run.gpu.link_bandwidth
    if collective["Group size"] > run.node_devices:
        group = collective["Process Group Name"]
        bandwidth = max(
            1e9 * other.work.wire_bytes / (other.end_ns - other.start_ns)
            for other in run.ran
            if other.work.wire_bytes and (other.work.collective or {})["Process Group Name"] == group
        )
    wire = min(held_ns, 1e9 * (work.wire_bytes or 0) * part / bandwidth)
    return {("communication", "wire time"): wire, ("communication", "waiting or slow"): held_ns - wire}


# ---- section 5


def explain(run: Run, gaps: list[Span], busy: list[Span]) -> Ledger:
    """What the gaps are charged to, in order of time, with the debt of the host's waits carried along."""
    rows: Ledger = defaultdict(float)
    waits = merged([(call.start_ns, call.end_ns) for call in run.calls if call.waits and run.records_host])
    debts = sorted((max(a, c), min(b, d)) for a, b in waits for c, d in busy if max(a, c) < min(b, d))
    debt, paid_in = 0, 0
    for g0, g1 in gaps:
        while paid_in < len(debts) and debts[paid_in][0] < g0:
            debt += debts[paid_in][1] - debts[paid_in][0]
            paid_in += 1
        for row, length_ns in explain_gap(run, g0, g1):
            if row in (("small_kernels", "before launch"), ("host", "host code")):
                paid = min(debt, length_ns)
                debt -= paid
                rows["host", "synchronisation"] += paid
                length_ns -= paid
                row = ("small_kernels", "launch-bound") if row[0] == "small_kernels" else row
            rows[row] += length_ns
    return rows


def merged(spans: list[Span]) -> list[Span]:
    """Disjoint spans of the same cover."""
    whole: list[Span] = []
    for a, b in sorted(spans):
        if whole and a <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], b))
        else:
            whole.append((a, b))
    return whole


def explain_gap(run: Run, g0: int, g1: int) -> list[tuple[tuple[str, str], int]]:
    """The parts of one gap: what the host did before the launch, the launch call, what came after it."""
    starting = [ran for ran in run.ran if ran.start_ns == g1]
    if not starting:
        return host_parts(run, g0, g1)
    next_one = min(starting, key=lambda ran: ran.call.start_ns if ran.call else -1)
    call = next_one.call
    graph_runs = call is not None and any(ran.call is call and ran.start_ns < g0 for ran in run.ran)
    if call is None or call.end_ns <= g0 or graph_runs:
        soon = min(g1, g0 + DEVICE_GAP_NS)
        return [
            (("small_kernels", "device-side gap"), soon - g0),
            (("unattributed", "queued but not started"), g1 - soon),
        ]
    l0, l1 = max(call.start_ns, g0), min(call.end_ns, g1)
    blocked = min(max(call.start_ns + BLOCKED_CALL_NS, l0), l1)
    soon = min(g1, l1 + DEVICE_GAP_NS)
    return [
        *(host_parts(run, g0, l0) if g0 < l0 else []),
        (("small_kernels", "launch-bound"), blocked - l0),
        (("host", "launch call blocked"), l1 - blocked),
        (("small_kernels", "launch-bound"), soon - l1),
        (("unattributed", "queued but not started"), g1 - soon),
    ]


def host_parts(run: Run, start_ns: int, end_ns: int) -> list[tuple[tuple[str, str], int]]:
    """What the host was doing, first match wins; `before launch` is launch-bound time that a debt may still claim."""
    launches = sorted(call.start_ns for call in run.calls if call.launches)
    if not launches or not run.records_host:
        return [(("unattributed", "no host events"), end_ns - start_ns)]
    close = [(a, b) for a, b in pairwise(launches) if b - a < LAUNCH_SPACING_NS]
    labels = [(label.cause, label.start_ns, label.end_ns) for label in run.labels]
    marks = {at for _, a, b in labels for at in (a, b)} | {at for span in close for at in span}
    borders = [start_ns, *sorted(at for at in marks if start_ns < at < end_ns), end_ns]
    return [(doing(a, labels, close), b - a) for a, b in pairwise(borders)]


def doing(at_ns: int, labels: list[tuple[str, int, int]], close: list[Span]) -> tuple[str, str]:
    """The row that the host's doing at one moment stands for."""
    open_causes = {cause for cause, a, b in labels if a <= at_ns < b}
    for row in HOST_CAUSES:
        if row[1] in open_causes:
            return row
    is_launching = any(a <= at_ns < b for a, b in close)
    return ("small_kernels", "before launch") if is_launching else ("host", "host code")
