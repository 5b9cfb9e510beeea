"""The rules in the order in which they claim, and how their drafts become findings.

The most specific rule claims first: a nanosecond of an optimizer that loops over parameters is the optimizer's, not
launch-bound. What a rule has claimed, no later one sees; so findings never add up to more than the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import msgspec
import polars as pl

from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.fixes import (
    advice,
    capacity,
    communication_wall,
    compute,
    fusion,
    host,
    memory_wall,
    pages,
    small_kernels,
    trust,
)
from trace_doctor.fixes.case import Case, case_of
from trace_doctor.fixes.finding import Draft, Need, Rule, contributors, whole
from trace_doctor.options import Limits, Options
from trace_doctor.report import Abstained, Finding, Fix, Report, Scope, Wall
from trace_doctor.trace import ALLOCATED

HOST_EVENTS = Need("the trace has no launch calls", lambda analysis: len(analysis.trace.calls) > 0)
OPS = Need("the trace has no host ops", lambda analysis: len(analysis.trace.ops) > 0)
SHAPES = Need("the trace has no op shapes (record_shapes=True)", lambda analysis: analysis.trace.meta.has_shapes)
PEAK = Need("the peak of the GPU is not known", lambda analysis: analysis.peak_flops is not None)
SIZES = Need(
    "no sizes of collectives are recorded",
    lambda analysis: (
        analysis.account.timeline.communication_ns == 0
        or bool(analysis.account.timeline.pieces["message_bytes"].is_not_null().any())
    ),
)

MEMORY = Need(
    "the trace has no memory events (profile_memory=True of torch.profiler)",
    lambda analysis: ALLOCATED in analysis.trace.metrics["name"].unique().cast(pl.String),
)

RULES: tuple[Rule, ...] = (
    # what the host says of itself
    Rule("input-pipeline", whole("input pipeline", confidence="high: the range of the data loader is recorded"), (HOST_EVENTS,)),
    Rule("recompilation", whole("compilation", confidence="high: the compiler's ranges are recorded"), (HOST_EVENTS,)),
    Rule("checkpoint-in-step", whole("checkpoint saving", confidence="high: the range is recorded"), (HOST_EVENTS,)),
    Rule("evaluation-in-step", whole("evaluation", confidence="high: the range is recorded"), (HOST_EVENTS,)),
    Rule("logging-in-step", whole("logging", confidence="high: the range is recorded"), (HOST_EVENTS,)),
    Rule("garbage-collection", whole("garbage collection", confidence="high: the range is recorded"), (HOST_EVENTS,)),
    Rule("start-up-in-window", whole("initialisation", confidence="high: one-off calls of this length", is_remark=True)),
    Rule("allocator", capacity.allocator, (HOST_EVENTS,)),
    Rule("offload", capacity.offload),
    Rule("pageable-copy", host.pageable_copy),
    Rule("exposed-input-copy", host.exposed_input_copy),
    Rule("outlier-step", host.outlier_step),
    # what a part of the model does
    Rule("unfused-optimizer", memory_wall.unfused_optimizer, (OPS,)),
    Rule("recomputation", capacity.recomputation, (OPS,)),
    Rule("wrong-precision", compute.wrong_precision, (PEAK,)),
    Rule("unfused-attention", memory_wall.unfused_attention, (OPS,)),
    Rule("old-attention-kernel", compute.old_attention, (PEAK,)),
    Rule("unfused-loss", memory_wall.unfused_loss, (OPS,)),
    Rule("layout-conversion", memory_wall.layout_conversion),
    Rule("fusable-chain", fusion.fusable_chain, (OPS, SHAPES, PEAK)),
    # communication
    Rule("pipeline-bubble", whole("pipeline bubble", confidence="high: exposed sends and receives between stages")),
    Rule("communication-on-compute-stream", communication_wall.same_stream),
    Rule("all-reduce-every-micro-batch", communication_wall.repeated_all_reduce, (SIZES, OPS)),
    Rule("late-at-collectives", communication_wall.late_at_collectives, (HOST_EVENTS,)),
    Rule("waiting-for-ranks", communication_wall.waiting_for_ranks),
    Rule("slow-link", communication_wall.slow_link, (SIZES,)),
    Rule("small-collectives", communication_wall.small_collectives, (SIZES,)),
    Rule("exposed-communication", communication_wall.exposed_communication),
    Rule("peer-copies", whole("peer-to-peer copy", confidence="high: measured, nothing else ran")),
    # the rest of the host and of small kernels
    Rule("host-synchronisation", host.host_synchronisation, (HOST_EVENTS,)),
    Rule("blocked-launch", whole("launch call blocked", confidence="medium: the call is recorded, not what it waited for"), (HOST_EVENTS,)),
    Rule("graph-breaks", small_kernels.graph_breaks, (HOST_EVENTS,)),
    Rule("cuda-graphs", small_kernels.cuda_graphs, (HOST_EVENTS,)),
    Rule("launch-bound", small_kernels.launch_bound, (HOST_EVENTS,)),
    Rule("host-code", host.host_code, (HOST_EVENTS,)),
    Rule("short-kernels", small_kernels.short_kernels),
    # the rest of memory and compute
    Rule("low-intensity-matmul", compute.low_intensity_matmul, (SHAPES, PEAK)),
    Rule("slowed-by-communication", compute.slowed_by_communication, (SHAPES, PEAK)),
    Rule("slower-than-best", compute.slower_than_its_best, (SHAPES, PEAK)),
    Rule("badly-shaped-matmul", compute.badly_shaped_matmul, (SHAPES, PEAK)),
    Rule("memory-bound", memory_wall.memory_bound),
    Rule("poor-access-pattern", memory_wall.poor_access, (SHAPES,)),
    Rule("device-copies", whole("copy", confidence="high: measured, nothing else ran")),
    # remarks
    Rule("profiler-overhead", whole("profiler overhead", confidence="high: the profiler's own ranges", is_remark=True)),
    Rule("unexplained-idle", trust.unexplained_idle),
    Rule("untrusted-trace", trust.untrusted_trace),
    Rule("spare-memory", capacity.spare_memory, (MEMORY,)),
    Rule("fp8-opportunity", compute.fp8_opportunity, (SHAPES, PEAK)),
)  # fmt: skip


CLAIMED = ["row", "number", "wall", "cause", "time_ns", "name", "op", "start_ns", "is_idle"]
"""What findings say of the losses they claim, and their rows, which prove that none is claimed twice."""


class Found(NamedTuple):
    """A draft with the GPU and the rule that it comes from; of its claims only what is said, of the case no charges."""

    code: str
    draft: Draft
    case: Case


def diagnose(report: Report, analyses: Sequence[Analysis], options: Options) -> Report:
    """The report with findings, largest loss first, and with the rules that abstained in its coverage."""
    rules = selected(options)
    found = [one for analysis in analyses for one in examine(analysis, rules, options.limits)]
    abstained = [one for analysis in analyses for one in _abstained(analysis, rules)]
    coverage = msgspec.structs.replace(
        report.coverage, abstained=list(dict.fromkeys([*report.coverage.abstained, *abstained]))
    )
    return msgspec.structs.replace(
        report, findings=_merged(found, analyses, report.window.duration_ns, options.limits), coverage=coverage
    )


def selected(options: Options) -> tuple[Rule, ...]:
    """The rules to run; UsageError where a code or glob of --select or --ignore matches none."""
    pages.check(options.select, where="select")
    pages.check(options.ignore, where="ignore")
    return tuple(
        rule
        for rule in RULES
        if (not options.select or _is_one(rule.code, options.select)) and not _is_one(rule.code, options.ignore)
    )


def _is_one(code: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(code, pattern) for pattern in patterns)


def examine(analysis: Analysis, rules: Sequence[Rule], limits: Limits) -> list[Found]:
    """What the rules find on one GPU; each sees what those before it left."""
    case, found, duration_ns = case_of(analysis, limits), [], analysis.trace.activities["duration_ns"]
    plain = case._replace(charges=case.charges.clear())  # what is kept for each draft must be small
    for rule in rules:
        if all(need.is_met(analysis) for need in rule.needs):
            for draft in rule.find(case):
                claims = draft.claims.select(CLAIMED, duration_ns=duration_ns.gather(draft.claims["activity"]))
                found.append(Found(rule.code, draft._replace(claims=claims), plain))
                case = case.without(draft.claims)
    return found


def _abstained(analysis: Analysis, rules: Sequence[Rule]) -> list[Abstained]:
    return [
        Abstained(code=rule.code, why="; ".join(need.why for need in rule.needs if not need.is_met(analysis)))
        for rule in rules
        if not all(need.is_met(analysis) for need in rule.needs)
    ]


def _merged(found: Sequence[Found], analyses: Sequence[Analysis], window_ns: int, limits: Limits) -> list[Finding]:
    """One finding for what several GPUs show: means over all GPUs, as in the ledger."""
    groups: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        groups.setdefault((one.code, _subject(one)), []).append(one)
    findings = [_finding(group, analyses, window_ns, limits) for group in groups.values()]
    return sorted(findings, key=lambda finding: (-finding.lost_ns, finding.code, finding.title))


def _subject(one: Found) -> str:
    """What a finding is about, so that the same on another GPU is merged: the family or the process group."""
    return one.draft.words.get("family", "") or one.draft.words.get("group", "")


def _finding(group: Sequence[Found], analyses: Sequence[Analysis], window_ns: int, limits: Limits) -> Finding:
    largest = max(group, key=lambda one: float(one.draft.claims["time_ns"].sum()))
    draft, analysis = largest.draft, largest.case.analysis
    lost_ns = sum(float(one.draft.claims["time_ns"].sum()) / one.case.steps for one in group) / len(analyses)
    in_window_ns = sum(float(one.draft.claims["time_ns"].sum()) for one in group) / len(analyses)
    share = in_window_ns / window_ns if window_ns else 0.0
    wall, cause = _row(draft)
    told = advice.advise(largest.code, draft.variant, largest.case.frameworks, draft.words)
    rank = analysis.trace.meta.rank
    return Finding(
        code=largest.code,
        title=told.title,
        wall=wall,
        cause=cause,
        severity=_severity(share, is_remark=all(one.draft.is_remark for one in group), limits=limits),
        confidence=_confidence(largest),
        lost_ns=round(lost_ns),
        mfu_points=100 * share,
        scope=Scope(ranks=sorted(_ranks(group)), steps=sorted(_steps(group))),
        evidence=[
            *draft.evidence,
            *contributors(draft.claims, rank=rank, window_ns=largest.case.window_ns),
        ],
        fix=Fix(
            summary=told.fix,
            code=told.snippet,
            language=told.language,
            framework=told.framework,
            risk=told.risk,
            verify=told.verify,
            doc=f"docs/rules/{largest.code}.md",
        ),
    )


def _confidence(one: Found) -> str:
    """The rule's own, unless the loss is idle time that can't be believed."""
    claims = one.draft.claims
    idle_ns = float(claims.filter("is_idle")["time_ns"].sum())
    if one.case.analysis.window.trust != "good" and idle_ns > 0.5 * float(claims["time_ns"].sum()):
        return "low: idle time can't be believed in this trace"
    return one.draft.confidence


def _row(draft: Draft) -> tuple[Wall, str]:
    """The row of the ledger that holds most of the claims."""
    sums = draft.claims.group_by("wall", "cause").agg(pl.col("time_ns").sum())
    if sums.is_empty():
        return "mfu", "model FLOPs"
    wall, cause = sums.sort("time_ns").select("wall", "cause").row(-1)
    return wall, cause


def _severity(share: float, *, is_remark: bool, limits: Limits) -> Literal["error", "warning", "info"]:
    if is_remark or share < limits.weighty_share:
        return "info"
    return "error" if share >= limits.severe_share else "warning"


def _ranks(group: Iterable[Found]) -> set[int]:
    return {rank for one in group if (rank := one.case.analysis.trace.meta.rank) is not None}


def _steps(group: Iterable[Found]) -> set[int]:
    return {step for one in group for step in (one.draft.steps or one.draft.claims["number"].drop_nulls().unique())}
