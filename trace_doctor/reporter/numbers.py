"""The numbers beside MFU in words: step time, utilisations with what they rest on, and why a slow step is slow."""

from __future__ import annotations

from typing import NamedTuple

from trace_doctor.report import Gpu, Memory, Metrics, Report, Step, StepDifference, Utilisation
from trace_doctor.reporter import text

MOST_STEPS = 6
MOST_DIFFERENCES = 3
SMALLEST_DIFFERENCE = 0.02
"""Of what the slow step took longer."""
LONGEST_WORDS = 160
LONGEST_NAME = 48
LONGEST_LINE = 400


class Number(NamedTuple):
    """A row of the numbers."""

    label: str
    value: str
    meaning: str
    basis: str


class Words(NamedTuple):
    """How a utilisation is called, and what of its limit was used."""

    label: str
    meaning: str


UTILISATIONS = {
    "gpu": Words("GPU utilisation", "of the time something ran"),
    "tensor": Words("in tensor kernels", "of the time a tensor kernel ran"),
    "memory_bandwidth": Words("memory bandwidth", "of {limit}, by shapes"),
    "pcie": Words("PCIe", "of {limit}, copies"),
    "link": Words("links between GPUs", "of {limit}, {of}"),
    "network": Words("network", "of {limit}"),
}
SAMPLED = {"memory_bandwidth": "of {limit}, by the GPU's counters", "link": "of {limit}, {of}, by the GPU's counters"}
"""Of the utilisations that are modelled where nothing was sampled."""
COUNTERS = {
    "sm_active": Words("SMs active", "of the time, on average over the multiprocessors"),
    "tensor_active": Words("tensor pipes", "active in this share of the cycles: an upper bound for MFU"),
    "clock": Words("clock", "of the highest clock"),
}


def numbers(report: Report) -> tuple[Number, ...]:
    """The numbers that are known or apply, in a fixed order."""
    metrics, basis = report.metrics, report.workload.flops_basis
    flops = {"model": "modelled", "shapes": "modelled", "metadata": "modelled", "gpu_metrics": "estimated"}.get(
        basis or "", ""
    )
    rows = [_time(report), *(_utilisation(one) for one in metrics.utilisations), *_counters(metrics)]
    rows += _memory(report.memory, fullest=len(report.gpus) > 1)
    if metrics.communication_overlap is not None:
        overlap = text.percent(metrics.communication_overlap)
        rows.append(Number("communication hidden", overlap, "of it ran behind compute", "measured"))
    if metrics.achieved_flops is not None:
        achieved = text.rate(metrics.achieved_flops, "FLOP/s")
        rows.append(Number("achieved", achieved, "model FLOPs on each GPU", flops))
    if metrics.hfu is not None and metrics.hfu != metrics.mfu:
        meaning = (
            "of the peak: MFU and recomputation together" if metrics.mfu is not None else "by tensor-pipe activity"
        )
        rows.append(Number("HFU", text.percent(metrics.hfu), meaning, flops))
    if metrics.tokens_per_s is not None:
        rows.append(
            Number("throughput", f"{text.number(metrics.tokens_per_s)} tokens/s", "of the whole job", "measured")
        )
    rows += [
        Number(
            f"MFU against {text.clip(dtype, 12)}",
            text.percent(mfu),
            "of that dtype's peak, which some of the work used",
            flops,
        )
        for dtype, mfu in sorted(metrics.mfu_by_peak.items())[:MOST_STEPS]
    ]
    return tuple(rows)


def _time(report: Report) -> Number:
    time, used = report.window.step_time_ns, sum(step.used for step in report.window.steps)
    if not time.median:
        return Number("window", text.duration(report.window.duration_ns), "no steps were found", "measured")
    spread = f", {text.duration(time.min)} to {text.duration(time.max)}"
    meaning = f"median of {used}{spread}" if used > 1 else "the only step"
    return Number("step time", text.duration(time.median), meaning, "measured")


def _utilisation(one: Utilisation) -> Number:
    label, meaning = UTILISATIONS[one.name]
    if one.value is None:
        rate = "unknown" if one.rate is None else text.rate(one.rate, "B/s")
        return Number(label, rate, text.clip(one.why or "the share is not known", LONGEST_WORDS), "")
    meaning = SAMPLED.get(one.name, meaning) if one.basis == "measured" else meaning
    meaning = meaning.format(limit=text.rate(one.limit, "B/s"), of=text.clip(one.of, LONGEST_NAME))
    return Number(label, text.percent(one.value), meaning, one.basis or "")


def _counters(metrics: Metrics) -> list[Number]:
    """What the GPU's counters say beyond the utilisations."""
    known = [one for one in metrics.counters if one.value is not None and one.name in COUNTERS]
    rows = [
        Number(COUNTERS[one.name].label, text.percent(one.value), COUNTERS[one.name].meaning, "measured")
        for one in known
    ]
    bound = [one.while_memory_bound for one in metrics.counters if one.name in ("dram_read", "dram_write")]
    shares = [share for share in bound if share is not None]
    if len(shares) == 2:
        meaning = "of the bandwidth while kernels without tensor work ran"
        rows.append(Number("memory, when bound", text.percent(sum(shares)), meaning, "measured"))
    return rows


def _memory(memory: Memory | None, *, fullest: bool) -> list[Number]:
    """The peak against the device, where both are known."""
    if memory is None or memory.share is None:
        return []
    reserved, allocated = text.size(memory.peak_reserved_bytes), text.size(memory.peak_allocated_bytes)
    meaning = f"{reserved} of {text.size(memory.capacity_bytes)} reserved, {allocated} by tensors"
    meaning += ", on the fullest GPU" * fullest
    meaning += f", {memory.retries} allocator {'retry' if memory.retries == 1 else 'retries'}" * bool(memory.retries)
    return [Number("memory peak", text.percent(memory.share), meaning, memory.basis or "")]


def steps(report: Report) -> tuple[str, ...]:
    """How steps were found, those that are slow and why, those left out and why."""
    window = report.window
    if not window.steps:
        return (text.clip(text.sentence(window.rule or "no steps found: the whole trace is one window"), LONGEST_LINE),)
    used = [step for step in window.steps if step.used]
    slow = sorted((step for step in used if step.differences), key=lambda step: (-step.duration_ns, step.number))
    out = [step for step in window.steps if not step.used]
    lines = [f"{len(used)} of {text.plural(len(window.steps), 'step')} used: {window.rule}"]
    lines += [_slow(step, report) for step in slow[:MOST_STEPS]]
    lines += _more(len(slow) - MOST_STEPS, "slow")
    lines += [f"step {step.number} left out: {step.why_not or 'no reason given'}" for step in out[:MOST_STEPS]]
    lines += _more(len(out) - MOST_STEPS, "left out")
    return tuple(text.clip(text.sentence(line), LONGEST_LINE) for line in lines)


def ranks(report: Report) -> tuple[str, ...]:
    """The GPUs that work longer than the others, and why."""
    slow = [gpu for gpu in report.gpus if gpu.differences]
    lines = [_slow_rank(gpu, report.gpus[gpu.median_gpu or 0]) for gpu in slow[:MOST_STEPS]]
    more = (
        [f"{text.plural(len(slow) - MOST_STEPS, 'more GPU')} slow: see the JSON report"]
        if len(slow) > MOST_STEPS
        else []
    )
    return tuple(text.clip(text.sentence(line), LONGEST_LINE) for line in [*lines, *more])


def _slow_rank(gpu: Gpu, median: Gpu) -> str:
    own = [row for row in gpu.differences if row.wall != "communication"]
    longer_ns = max(sum(row.time_ns - row.median_ns for row in own), 1)
    told = [row for row in own if abs(row.time_ns - row.median_ns) >= SMALLEST_DIFFERENCE * longer_ns]
    reasons = text.listing([_change(row) for row in told[:MOST_DIFFERENCES]])
    return (
        f"{_called(gpu)} works {text.duration(longer_ns)} a step longer than {_called(median)}, the median: "
        f"{reasons or 'a little more of everything'}"
    )


def _called(gpu: Gpu) -> str:
    return f"rank {gpu.rank}" if gpu.rank is not None else f"GPU {text.clip(gpu.device, LONGEST_NAME)}"


def _more(count: int, what: str) -> list[str]:
    return [f"{text.plural(count, 'more step')} {what}: see the JSON report"] if count > 0 else []


def _slow(step: Step, report: Report) -> str:
    """Why this step took longer than the step of median length."""
    median = next((other for other in report.window.steps if other.number == step.median_step), step)
    longer_ns = max(step.duration_ns - median.duration_ns, 1)
    told = [row for row in step.differences if abs(row.time_ns - row.median_ns) >= SMALLEST_DIFFERENCE * longer_ns]
    reasons = text.listing([_change(row) for row in told[:MOST_DIFFERENCES]])
    ratio = step.duration_ns / max(median.duration_ns, 1)
    return (
        f"step {step.number} took {text.duration(step.duration_ns)}, {ratio:.2f} × the median step {median.number}"
        f" ({text.duration(median.duration_ns)}): {reasons or 'a little more of everything'}"
    )


def _change(row: StepDifference) -> str:
    change_ns = row.time_ns - row.median_ns
    name = f" ({text.clip(text.kernel(row.name), LONGEST_NAME)})" if row.name else ""
    cause = text.cause(row.wall, text.clip(row.cause, LONGEST_NAME))
    return f"{text.duration(abs(change_ns))} {'more' if change_ns > 0 else 'less'} {cause}{name}"
