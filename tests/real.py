"""Other people's traces and cases, where a `shared` folder beside the checkout holds them: `make real`.

For every PyTorch trace: a report, ledgers that sum exactly, `--whole-trace` equal to the partition that was computed independently, MFU
between 0 and 1 or null with a reason. For every case of the loader: what its `expect.json` asks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trace_doctor import Report, Trace, load
from trace_doctor.accounts.assembly import assemble
from trace_doctor.errors import TraceDoctorError
from trace_doctor.options import Options
from trace_doctor.pipeline import examine
from trace_doctor.report import Gpu

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TRACE_DOCTOR_SHARED", ROOT.parent / "shared"))

LATER_CASES = {"26"}
"""Of the cases up to 65: those that need what later versions bring (Nsight exports, comparison)."""
PARTS = ("compute_ns", "communication_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
WIDER_COMMUNICATION: dict[str, str] = {}
"""Traces whose independent partition knows fewer names of collectives than trace-doctor does, and which those are."""


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
    return max(int(failed > 0), _cases())


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
    if name not in WIDER_COMMUNICATION:
        yield from _other_partition(whole, truth)


def _report(trace: Trace, options: Options) -> Report:
    """What `analyze` gives, for a file that is loaded once."""
    return assemble(examine(trace, options), options)


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


def _cases() -> int:
    """Run the judge that comes with the cases."""
    folders = sorted(path.parent.name for path in (SHARED / "cases").glob("*/expect.json"))
    wanted = [name for name in folders if name[:2] <= "65" and name[:2] not in LATER_CASES]
    tool = f"{sys.executable} -m trace_doctor"
    return subprocess.run([sys.executable, SHARED / "cases/check.py", "--tool", tool, *wanted], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
