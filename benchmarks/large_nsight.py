"""CPU time and memory of `analyze` on a large Nsight Systems export, beside `nsys-ai diagnose`, in one run.

    python benchmarks/large_nsight.py [--export FILE] [--times N] [--nsys-ai PROGRAM] [--runs N]

A real export (`traces/nsys` of a `shared` folder beside the checkout, else a simulated one) is repeated, each time after the one before and
with launch ids of its own. nsys-ai 0.3.0 writes indexes into the file that it is given, so it gets a copy; that trace-doctor leaves its own
unchanged byte for byte is checked. Exit 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.large_trace import SHARED, Cost, measure  # noqa: E402

REAL = SHARED / "traces/nsys/diffusion-2xH100-after.sqlite"
CPU_LIMIT, MEMORY_LIMIT = 1 / 8, 1 / 6
LAUNCH_IDS = 1_000_000
"""No repetition has more."""


def main() -> int:
    """Measure, print, judge."""
    options = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        export = repeated(options.export or _seed(Path(scratch)), Path(scratch) / "large.sqlite", options.times)
        before, size_bytes = _digest(export), export.stat().st_size
        runs: dict[str, list[Cost]] = {}
        for _ in range(options.runs):
            ours = [sys.executable, "-m", "trace_doctor", "analyze", str(export), "--format", "json"]
            runs.setdefault("trace-doctor", []).append(measure(ours))
            if options.nsys_ai:
                copy = Path(shutil.copy(export, Path(scratch) / "copy.sqlite"))
                runs.setdefault("nsys-ai", []).append(
                    measure([options.nsys_ai, "diagnose", "--session", f"{scratch}/session", str(copy)])
                )
        is_unchanged = _digest(export) == before and {file.name for file in export.parent.glob("large*")} == {
            export.name
        }
    costs = {name: Cost(*map(median, zip(*of_one, strict=True))) for name, of_one in runs.items()}
    print(f"{size_bytes / 1e6:.0f} MB, {options.times} times, median of {options.runs}")
    print(f"{'':14}{'CPU s':>8}{'wall s':>8}{'MB':>8}")
    for name, cost in costs.items():
        print(f"{name:14}{cost.cpu_s:>8.1f}{cost.wall_s:>8.1f}{cost.peak_bytes / 1e6:>8.0f}")
    print(f"the export is {'unchanged byte for byte' if is_unchanged else 'CHANGED'}")
    missed = 0
    for what, value, limit in limits(costs):
        missed += value > limit
        print(f"{what:36}{value:>6.2f}  limit {limit:.3f}  {'over' if value > limit else 'ok'}")
    return int(missed > 0 or not is_unchanged)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--export", type=Path, help="repeat this export instead")
    parser.add_argument("--times", type=int, default=250)
    parser.add_argument("--nsys-ai", default=shutil.which("nsys-ai"), help="program, of a venv of its own")
    parser.add_argument("--runs", type=int, default=1)
    return parser.parse_args()


def limits(costs: dict[str, Cost]) -> Iterator[tuple[str, float, float]]:
    """What was measured against what should hold: name, value, limit."""
    ours, peer = costs["trace-doctor"], costs.get("nsys-ai")
    if peer:
        yield "CPU / CPU of nsys-ai diagnose", ours.cpu_s / peer.cpu_s, CPU_LIMIT
        yield "memory / memory of nsys-ai diagnose", ours.peak_bytes / peer.peak_bytes, MEMORY_LIMIT


def _seed(folder: Path) -> Path:
    if REAL.exists():
        return REAL
    from tests.simulator import nsight
    from tests.simulator.samples import SAMPLES

    return nsight.write(folder / "seed.sqlite", SAMPLES["gpt-launch-bound"]())


def repeated(seed: Path, target: Path, times: int) -> Path:
    """The export with its events `times` over."""
    shutil.copy(seed, target)
    target.chmod(0o644)
    database = sqlite3.connect(target)
    database.text_factory = bytes
    database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    tables = [name.decode() for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {t: [row[1].decode() for row in database.execute(f'PRAGMA table_info("{t}")')] for t in tables}
    timed = [table for table in tables if {"start", "end"} <= set(columns[table])]
    spans = [
        database.execute(f'SELECT min(start), max("end") FROM "{table}" WHERE start > 0').fetchone() for table in timed
    ]
    length_ns = max(end or 0 for _, end in spans) - min(start for start, _ in spans if start is not None) + 1_000_000
    for table in timed:
        moved = {"start": "+ :later", "end": "+ :later", "correlationId": "+ :ids"}
        selected = ", ".join(f'"{column}" {moved.get(column, "")}' for column in columns[table])
        database.execute(f'CREATE TEMP TABLE once AS SELECT * FROM "{table}"')
        for number in range(1, times):
            places = {"later": number * length_ns, "ids": number * LAUNCH_IDS}
            database.execute(f'INSERT INTO "{table}" SELECT {selected} FROM once', places)
        database.execute("DROP TABLE once")
    database.commit()
    database.close()
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
