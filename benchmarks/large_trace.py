"""CPU time and memory of `analyze` on a large trace, beside a bare JSON parse and HTA, in one run.

    python benchmarks/large_trace.py [--size MB] [--runs N] [--trace FILE] [--only NAME ...]

The trace is a real one repeated (`traces/grow.py` of a `shared` folder beside the checkout), or a simulated training of many steps.
Exit 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TRACE_DOCTOR_SHARED", ROOT.parent / "shared"))
POLL_S = 0.02

HTA = """
import sys, pathlib, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=str(pathlib.Path(sys.argv[1]).parent))
for ask in ("get_temporal_breakdown", "get_comm_comp_overlap", "get_idle_time_breakdown"):
    try:
        getattr(trace, ask)(visualize=False)
    except Exception as problem:
        print(f"{ask}: {type(problem).__name__}", file=sys.stderr)
"""
CONTENDERS = {
    "trace-doctor": ["-m", "trace_doctor", "analyze", "{trace}", "--format", "json"],
    "orjson": ["-c", "import orjson, pathlib, sys; orjson.loads(pathlib.Path(sys.argv[1]).read_bytes())", "{trace}"],
    "hta": ["-c", HTA, "{trace}"],
}
MODULES = {"trace-doctor": "trace_doctor", "orjson": "orjson", "hta": "hta"}


class Cost(NamedTuple):
    """Of one contender: seconds and bytes."""

    cpu_s: float
    wall_s: float
    peak_bytes: float


def main() -> int:
    """Measure, print, judge."""
    options = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        trace = options.trace or make_trace(Path(scratch) / "large.json", options.size)
        size_bytes = trace.stat().st_size
        names = [name for name in options.only if importlib.util.find_spec(MODULES[name])]
        runs: dict[str, list[Cost]] = {name: [] for name in names}
        for _ in range(options.runs):
            for name in names:
                runs[name].append(
                    measure([sys.executable, *(part.replace("{trace}", str(trace)) for part in CONTENDERS[name])])
                )
    costs = {name: Cost(*map(median, zip(*of_one, strict=True))) for name, of_one in runs.items()}
    print(f"{size_bytes / 1e6:.0f} MB, median of {options.runs}")
    print(f"{'':14}{'CPU s':>8}{'wall s':>8}{'MB':>8}{'x file':>8}")
    for name, cost in costs.items():
        memory = f"{cost.peak_bytes / 1e6:>8.0f}{cost.peak_bytes / size_bytes:>8.2f}"
        print(f"{name:14}{cost.cpu_s:>8.1f}{cost.wall_s:>8.1f}{memory}")
    missed = 0
    for what, value, limit in limits(costs, size_bytes):
        missed += value > limit
        print(f"{what:44}{value:>6.2f}  limit {limit:.2f}  {'over' if value > limit else 'ok'}")
    return int(missed > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=500, help="megabytes")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trace", type=Path, help="take this file instead")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS))
    options = parser.parse_args()
    options.only = options.only or (list(CONTENDERS) if options.size < 1000 else ["trace-doctor"])
    return options


def limits(costs: dict[str, Cost], size_bytes: int) -> Iterator[tuple[str, float, float]]:
    """What was measured against what must hold: name, value, limit."""
    own = costs.get("trace-doctor")
    if own is None:
        return
    yield "memory / file", own.peak_bytes / size_bytes, 1.1 if size_bytes < 1e9 else 0.7
    if orjson := costs.get("orjson"):
        yield "CPU / CPU of orjson.loads", own.cpu_s / orjson.cpu_s, 1.0
        yield "memory / memory of orjson.loads", own.peak_bytes / orjson.peak_bytes, 0.15
    if hta := costs.get("hta"):
        yield "CPU / CPU of HTA", own.cpu_s / hta.cpu_s, 0.1


def make_trace(path: Path, megabytes: int) -> Path:
    """A large trace: real events repeated, or simulated steps."""
    grow, seed = SHARED / "traces/grow.py", SHARED / "traces/pytorch/qwen-0.5b-infer-H100.json.gz"
    if grow.exists() and seed.exists():
        subprocess.run([sys.executable, grow, seed, str(megabytes), path], check=True, stdout=subprocess.DEVNULL)
        return path
    sys.path.insert(0, str(ROOT))
    from tests.simulator import Run, kineto
    from tests.simulator.gpt import Habits, train
    from tests.simulator.samples import BIG

    def simulated(steps: int) -> Path:
        run = Run()
        train(run, BIG, Habits(), steps=steps)
        return kineto.write(run, path)

    probe_steps = 20
    per_step = simulated(probe_steps).stat().st_size / probe_steps
    return simulated(round(1e6 * megabytes / per_step) + 1)


def measure(command: list[str]) -> Cost:
    """Run a command in a fresh process; CPU of it and all its children, peak memory of the whole tree at one time."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    peak, is_done = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(child.pid, peak, is_done))
    watcher.start()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    is_done.set()
    watcher.join()
    if child.returncode:
        msg = f"exit {child.returncode}: {' '.join(command)[:200]}"
        raise SystemExit(msg)
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - start, max(peak[0], usage.ru_maxrss * unit))


def _watch(pid: int, peak: list[float], is_done: threading.Event) -> None:
    while not is_done.wait(POLL_S):
        peak[0] = max(peak[0], sum(_memory_bytes(one) for one in _tree(pid)))


def _tree(pid: int) -> list[int]:
    """The process and all that it started, where /proc tells."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            try:
                waiting += [int(child) for child in task.read_text().split()]
            except OSError:  # it ended meanwhile
                continue
    return found


def _memory_bytes(pid: int) -> int:
    """Proportional set size: pages that processes share count once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    sys.exit(main())
