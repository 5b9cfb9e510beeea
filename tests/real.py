"""Other people's traces and cases, where a `shared` folder beside the checkout holds them: `make real`.

For every PyTorch trace: a report, ledgers that sum exactly, `--whole-trace` equal to the partition that was computed independently, MFU
between 0 and 1 or null with a reason, and first findings as FIRST_FINDINGS says. For every case of the loader: what its `expect.json` asks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import polars as pl

from trace_doctor import Report, Trace, load
from trace_doctor.accounts.assembly import assemble
from trace_doctor.errors import NothingToAnalyzeError, TraceDoctorError
from trace_doctor.fixes import registry
from trace_doctor.options import Options
from trace_doctor.pipeline import examine
from trace_doctor.report import Finding, Gpu

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TRACE_DOCTOR_SHARED", ROOT.parent / "shared"))

PARTS = ("compute_ns", "communication_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
WIDER_COMMUNICATION: dict[str, str] = {}
"""Traces whose independent partition knows fewer names of collectives than trace-doctor does, and which those are."""


class Wanted(NamedTuple):
    """What the findings of a trace must say."""

    first: str = ".*"
    """Regular expression of "code: title" of the largest finding."""
    among: Mapping[str, int] = MappingProxyType({})
    """Codes, or regular expressions of "code: title", that must be among so many of the largest."""
    texts: tuple[str, ...] = ()
    """Regular expressions that some finding's title, fix or evidence must match."""
    never: tuple[str, ...] = ()
    """Codes that must not be there with weight."""


WAITS = "waiting-for-ranks: Exposed communication: .*waits for another rank"
LAUNCH_BOUND = "(launch-bound|cuda-graphs): Launch-bound"
FIRST_FINDINGS: dict[str, Wanted] = {
    "bert-small-H100.json.gz": Wanted(LAUNCH_BOUND),
    "batch-size-sweep-A100/batch_2.json.gz": Wanted(LAUNCH_BOUND),
    "resnet50-dataloader-V100/num_workers_0.json.gz": Wanted(among={"input-pipeline": 2}),
    "resnet50-dataloader-V100/num_workers_4.json.gz": Wanted(never=("input-pipeline",)),
    # seven ranks wait for rank 1, whose own communication is the shortest
    "nanogpt-8xH100/rank0.json.gz": Wanted(among={".*: Exposed communication": 2}),
    "nanogpt-8xH100/rank1.json.gz": Wanted("late-at-collectives"),
    "nanogpt-overlap-pair/before.json.gz": Wanted(texts=("^Exposed communication: reduce-scatter",)),
    "megatron-tp8-A100/rank1.json.gz": Wanted(WAITS, texts=("Add the traces of the other ranks",)),
    # ranks 0 and 6 arrive last
    "megatron-tp8-A100/rank0.json.gz": Wanted(among={"late-at-collectives": 2}),
    "megatron-tp8-A100/rank6.json.gz": Wanted(among={"late-at-collectives": 2}),
    "megatron-tp8-A100/rank2.json.gz": Wanted(WAITS, never=("late-at-collectives",)),
    "megatron-2xV100/1375.pt.trace.json": Wanted("unexplained-idle: Most", never=("exposed-communication",)),
    "megatron-2xV100/1376.pt.trace.json": Wanted(WAITS),
    "resnet-checkpoint-8xMI300-rank0.json.gz": Wanted(".*: Exposed communication", among={"recomputation": 5}),
    "segment-anything-75MB-A100.json.gz": Wanted(
        among={r"host-code: .* (in|before) (aten::\w+|Torch-Compiled)": 2, r"host-synchronisation: .* in aten::\w+": 3}
    ),
    "segment-anything-A100.json.gz": Wanted(never=("outlier-step",)),
    "ddp-cudagraph-A100.json.gz": Wanted("unexplained-idle: Most"),
    "lightllm-8xH200-cudagraph/3090494.pt.trace.json.gz": Wanted(".*: Exposed communication: all-to-all"),
    "gpu-only-MI210.json.gz": Wanted(never=("host-code", "input-pipeline", "unfused-optimizer")),
    "transformer-step-A100.sqlite": Wanted("wrong-precision: .*FP32"),
    "llm-2.7B-cudagraph.sqlite": Wanted(
        never=("unexplained-idle", "launch-bound", "host-code", "host-synchronisation")
    ),
}
"""What the issue of the findings asks of real traces, and what their README knows of them."""


def main() -> int:
    """Print what fails; 1 where anything does."""
    failed = 0
    truth = json.loads((SHARED / "traces/truth.json").read_text())["pytorch"]
    for name in sorted(truth):
        wrong = list(_wrong_with(SHARED / "traces/pytorch" / name, truth[name], name))
        failed += bool(wrong)
        for problem in wrong:
            print(f"FAIL {name}: {problem}", flush=True)
    print(f"real traces: {len(truth) - failed} passed, {failed} failed", flush=True)
    return max(int(failed > 0), _exports(), _cases())


def _wrong_with(path: Path, truth: dict[str, Any], name: str) -> Iterator[str]:
    try:
        trace = load(path)
        default, whole = (_report(trace, options) for options in (Options(), Options(whole_trace=True)))
    except TraceDoctorError as problem:
        yield f"no report: {problem}"
        return
    except Exception as bug:  # noqa: BLE001  a bug in one file must not hide the others
        yield f"{type(bug).__name__}: {bug}"
        return
    for report in (default, whole):
        yield from _broken_sums(report)
        yield from _odd_mfu(report)
    yield from _other_findings(default.findings, FIRST_FINDINGS.get(name, Wanted()))
    if name not in WIDER_COMMUNICATION:
        yield from _other_partition(whole, truth)


def _report(trace: Trace, options: Options) -> Report:
    """What `analyze` gives, for a file that is loaded once."""
    analyses = examine(trace, options)
    return registry.diagnose(assemble(analyses, options), analyses, options)


def _other_findings(findings: list[Finding], wanted: Wanted) -> Iterator[str]:
    named = [f"{finding.code}: {finding.title}" for finding in findings]
    if not re.match(wanted.first, next(iter(named), "")):
        yield f"the first finding is {named[:1]}, not {wanted.first}"
    for pattern, most in wanted.among.items():
        if not any(re.match(pattern, name) for name in named[:most]):
            yield f"{pattern} is not among {named[:most]}"
    text = "\n".join(
        line
        for finding in findings
        for line in (finding.title, finding.fix.summary if finding.fix else "", *(one.name for one in finding.evidence))
    )
    for pattern in wanted.texts:
        if not re.search(pattern, text, re.MULTILINE):
            yield f"no finding says {pattern}"
    for finding in findings:
        if finding.code in wanted.never and finding.severity != "info":
            yield f"{finding.code}: {finding.title} must not be found"
    points = sum(finding.mfu_points for finding in findings)
    if points > 100 + 1e-6:
        yield f"findings hold {points} points, more than the window"


def _broken_sums(report: Report) -> Iterator[str]:
    rows: list[tuple[str, Report | Gpu]] = [("report", report), *((f"gpu {gpu.device}", gpu) for gpu in report.gpus)]
    for place, row in rows:
        parts = row.partition
        window_ns = parts.compute_ns + parts.exposed_communication_ns + parts.exposed_copy_ns + parts.idle_ns
        total_ns = sum(entry.time_ns for entry in row.ledger)
        if not total_ns == window_ns == row.window.duration_ns:
            yield f"{place}: ledger {total_ns}, partition {window_ns}, window {row.window.duration_ns} ns"


def _odd_mfu(report: Report) -> Iterator[str]:
    mfu = report.metrics.mfu
    if mfu is None and not (report.coverage.abstained or report.coverage.tables_missing or report.warnings):
        yield "no MFU, and no reason"
    if mfu is not None and not 0 <= mfu <= 1:
        yield f"MFU {mfu}"


def _other_partition(report: Report, truth: dict[str, Any]) -> Iterator[str]:
    found = {str(gpu.device): gpu for gpu in report.gpus}
    for device, want in truth.items():
        gpu = found.get(device)
        if gpu is None:
            yield f"no row for device {device}, only {sorted(found)}"
            continue
        off = {part: getattr(gpu.partition, part) - want[part] for part in PARTS}
        if any(off.values()):
            yield f"device {device}: off by { ({part: by for part, by in off.items() if by}) } ns"


# ---- Nsight Systems


def _exports() -> int:
    """Every export gives a report or an honest refusal, and the partition of the table in the traces' README."""
    folder = SHARED / "traces/nsys"
    table, failed = _table(SHARED / "traces/README.md"), 0
    for path in sorted(folder.iterdir()):
        wrong = list(_wrong_with_export(path, table.get(path.name, {})))
        failed += bool(wrong)
        for problem in wrong:
            print(f"FAIL {path.name}: {problem}", flush=True)
    print(f"Nsight exports: {len(list(folder.iterdir())) - failed} passed, {failed} failed", flush=True)
    return int(failed > 0)


def _table(readme: Path) -> dict[str, dict[tuple[str, str], list[str]]]:
    """The README's table of exports: by file and (process, device) its cells."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for line in readme.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if cells[0].endswith(".sqlite") and len(cells) == len(EXPORT_CELLS) + 2:
            process, device = cells[1].split("/")
            found.setdefault(cells[0], {})[process, device] = cells[2:]
    return found


def _wrong_with_export(path: Path, table: dict[tuple[str, str], list[str]]) -> Iterator[str]:
    try:
        trace = load(path)
        default, whole = (_report(trace, options) for options in (Options(), Options(whole_trace=True)))
    except NothingToAnalyzeError as problem:
        if table or "no GPU activity" not in problem.what:
            yield f"refused: {problem}"
        return
    except Exception as bug:  # noqa: BLE001  a bug in one file must not hide the others
        yield f"{type(bug).__name__}: {bug}"
        return
    for report in (default, whole):
        yield from _broken_sums(report)
        yield from _odd_mfu(report)
    yield from _other_findings(default.findings, FIRST_FINDINGS.get(path.name, Wanted()))
    found = {(gpu.process, gpu.device): gpu for gpu in whole.gpus}
    if table and set(found) != set(table):
        yield f"devices {sorted(found)}, not {sorted(table)}"
        return
    for key, cells in table.items():
        told = dict(zip(EXPORT_CELLS, cells, strict=True))
        printed = _printed(found[key], _on_device(trace, key[1]))
        off = {name: (value, told[name]) for name, value in printed.items() if value != told[name]}
        if off:
            yield f"{key}: {off}"


EXPORT_CELLS = (
    "span", "busy", "compute", "nccl", "exposed nccl", "exposed copies", "graph", "idle", "kernels", "short",
)  # fmt: skip


def _on_device(trace: Trace, label: str) -> pl.DataFrame:
    device = [info.label for info in trace.meta.devices].index(label)
    return trace.activities.filter(pl.col("device") == device)


def _printed(gpu: Gpu, activities: pl.DataFrame) -> dict[str, str]:
    """A GPU's partition as the table prints it; whole graphs run one after the other."""
    parts, window_ns = gpu.partition, gpu.window.duration_ns
    busy_ns = window_ns - parts.idle_ns
    graphs_ns = activities.filter(pl.col("kind") == "graph")["duration_ns"].sum()
    short = activities.filter((pl.col("kind") == "compute") & (pl.col("duration_ns") < 10_000))["duration_ns"]
    times = {
        "span": window_ns,
        "busy": busy_ns,
        "compute": parts.compute_ns - graphs_ns,
        "nccl": parts.communication_ns,
        "exposed nccl": parts.exposed_communication_ns,
        "exposed copies": parts.exposed_copy_ns,
        "graph": graphs_ns,
    }
    return {
        **{name: f"{time_ns / 1e6:.3f}" for name, time_ns in times.items()},
        "idle": f"{parts.idle_ns / 1e6:.3f} ({100 * parts.idle_ns / window_ns:.1f}%)",
        "kernels": str(gpu.counts.kernels),
        "short": f"{len(short)} ({100 * short.sum() / busy_ns:.1f}%)",
    }


def _cases() -> int:
    """Run the judge that comes with the cases."""
    tool = f"{sys.executable} -m trace_doctor"
    return subprocess.run([sys.executable, SHARED / "cases/check.py", "--tool", tool], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
