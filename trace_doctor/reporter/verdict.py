"""The verdict in words: what MFU is, where that stands, and why a busy GPU may still be far from its peak."""

from __future__ import annotations

from trace_doctor.report import Finding, LedgerRow, Report
from trace_doctor.reporter import text

STANDINGS = (
    (0.20, "below what untuned training runs reach"),
    (0.30, "what untuned training runs reach"),
    (0.45, "between untuned and tuned training runs"),
    (0.60, "what tuned training runs reach"),
    (0.70, "better than most tuned training runs"),
    (0.80, "at the practical limit of a node"),
    (1.00, "above the practical limit of a node: check the peak and the FLOPs"),
)
SCALE = (
    f"untuned runs reach 20-30{text.SPACE}%, tuned ones 50{text.SPACE}%, a node's practical limit is 70-80{text.SPACE}%"
)
MEANING = "MFU is the share of the GPU's peak that went into the model's own arithmetic."
IMPOSSIBLE = "above the peak, which can't be: the device, the peak or the FLOPs are wrong"
LARGEST_LOSSES = 3
WORTH_NAMING = 0.02


def headline(report: Report) -> str:
    """MFU with its peak and basis; the bound where it is unknown."""
    metrics, device = report.metrics, report.device
    if metrics.mfu is None:
        bound = metrics.mfu_high if metrics.mfu_high is not None else metrics.tensor_share
        by_counters = metrics.tensor_active is not None and bound is not None and bound >= metrics.tensor_active
        why = "the tensor pipes were active for no more" if by_counters else "if all tensor kernels ran at the peak"
        return "MFU unknown" + (f", at most {text.percent(bound)} ({why})" if bound else "")
    peak = device.peak_flops.get(device.peak_dtype or "")
    held = f"{device.peak_dtype} dense {text.rate(peak, 'FLOP/s')}" if peak else ""
    against = ", ".join(part for part in (text.clip(device.name or "", 60), held) if part)
    basis = text.BASES.get(report.workload.flops_basis or "", "")
    brackets = "; ".join(part for part in (against, basis) if part)
    return f"MFU {_mfu(metrics.mfu)}" + (f" ({brackets})" if brackets else "")


def _mfu(mfu: float) -> str:
    """One decimal, two where MFU is small: 0.19 % and 0.04 % are different runs."""
    return f"under 0.01{text.SPACE}%" if 0 < mfu < 0.0001 else text.percent(mfu, 1 if mfu >= 0.01 else 2)


def sentences(report: Report) -> tuple[str, ...]:
    """Where MFU stands or why there is none, what it may be at most, and why it differs from GPU utilisation."""
    found: list[str | None] = [_standing(report) if report.metrics.mfu is not None else _why_unknown(report)]
    found += [_range(report), _difference(report), _first(report)]
    if report.coverage.trust != "good":
        found.append("Careful: idle time can't be believed in this trace; the reason stands at the end.")
    return tuple(sentence for sentence in found if sentence)


def _standing(report: Report) -> str:
    mfu = report.metrics.mfu or 0.0
    where = next((words for limit, words in STANDINGS if mfu < limit), IMPOSSIBLE)
    peak = report.device.peak_flops.get(report.device.peak_dtype or "")
    best = report.device.best_matmul_flops
    matmul = f", this GPU's best matmul {text.percent(best / peak, 0)}" if best and peak else ""
    return f"{MEANING} This is {where}; for scale: {SCALE}{matmul}."


def _why_unknown(report: Report) -> str:
    """The first reason that holds."""
    share, covered = report.metrics.tensor_share, report.workload.covered_share
    if not report.device.peak_flops:
        return text.sentence(text.clip(report.device.basis, 400) or "no peak: this GPU is not in the table of devices")
    if share == 0:
        return "No tensor kernel (matmul, convolution, attention) ran in the window, so there is no MFU to speak of."
    if not covered:
        if not report.coverage.shapes_share:
            return "How many FLOPs the tensor kernels did is not known: the trace holds no op shapes for them."
        return "How many FLOPs the tensor kernels did is not known: no formula fits the ops that launched them."
    return f"FLOPs are known for only {text.percent(covered, 0)} of the time in tensor kernels; MFU needs half."


def next_step(report: Report) -> str | None:
    """The flag or the recording option that would give the number; null where it is there."""
    if report.metrics.mfu is not None or report.metrics.tensor_share == 0:
        return None
    if not report.device.peak_flops:
        return "trace-doctor devices lists the names that --device takes"
    ops = "emit_nvtx" if {source.format for source in report.sources} == {"nsight"} else "profile"
    return (
        f"record with {ops}(record_shapes=True), or say what a step computes:"
        " --flops-per-step X, or --params N --tokens-per-step T"
    )


def _range(report: Report) -> str | None:
    mfu, high, covered = report.metrics.mfu, report.metrics.mfu_high, report.workload.covered_share
    if mfu is None or high is None or high - mfu < 0.0005:
        return None
    missing = text.percent(1 - covered, 0) if covered is not None else "part"
    return (
        f"This much is proven; it may be up to {text.percent(high)}, as the FLOPs of {missing} of the time in tensor"
        " kernels are not known."
    )


def _difference(report: Report) -> str | None:
    """Why GPU utilisation and MFU differ: the largest losses of the ledger in words."""
    busy = report.metrics.gpu_utilisation
    losses: dict[str, float] = {}
    for row in report.ledger:
        if row.wall != "mfu":
            losses[_words(row)] = losses.get(_words(row), 0.0) + row.share
    ranked = sorted((item for item in losses.items() if item[1] >= WORTH_NAMING), key=lambda item: (-item[1], item[0]))
    if busy is None or not ranked:
        return None
    (words, share), *others = ranked[:LARGEST_LOSSES]
    losses_named = [f"{text.points(100 * share)} went to {words}"]
    losses_named += [f"{text.points(100 * share)} to {words}" for words, share in others]
    link = "but" if busy >= 0.5 else "and"
    busy_words = f"The GPU was busy {text.percent(busy)} of the time"
    return f"{busy_words}, {link} of the peak's 100 points {text.listing(losses_named)}."


def _first(report: Report) -> str | None:
    """The finding to look at first, and before it what weighs more but the trace can't explain."""
    worth = [finding for finding in report.findings if finding.severity != "info"][:1]
    unexplained = [one for one in report.findings if one.severity == "info" and one.wall == "unattributed"][:1]
    largest = worth[0].mfu_points if worth else WORTH_NAMING * 100
    told = [
        f"{_titled(one)} That is {text.points(one.mfu_points)} points."
        for one in unexplained
        if one.mfu_points > largest
    ]
    told += [f"{_titled(one)} This is the largest finding, {text.points(one.mfu_points)} points." for one in worth]
    return " ".join(told) or None


def _titled(finding: Finding) -> str:
    return text.sentence(text.clip(finding.title, 120))


def _words(row: LedgerRow) -> str:
    return text.SENTENCES.get((row.wall, row.cause), text.WALLS[row.wall].sentence)
