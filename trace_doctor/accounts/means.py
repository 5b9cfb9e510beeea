"""What holds for all GPUs together: means of their windows, partitions and ledgers, sums of their counts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from trace_doctor.classifiers.intervals import share_out
from trace_doctor.classifiers.ledger import Analysis, rows_of, summed, tops
from trace_doctor.classifiers.timeline import COMMUNICATION
from trace_doctor.report import Collective, Counts, Gpu, LedgerRow, Memory, Partition, Spread

MANY_COLLECTIVES = 50
SIGNATURE = ["operation", "group", "group_size", "message_bytes"]


def mean_partition(parts: Sequence[Partition], window_ns: int) -> Partition:
    """The mean partition, rounded so that it sums to the window."""
    if len(parts) == 1:
        return parts[0]

    def mean(name: str) -> float:
        return float(sum(getattr(part, name) for part in parts)) / len(parts)

    names = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]
    shares = share_out(pl.DataFrame({"time_ns": [mean(name) for name in names]}), window_ns)
    rounded = dict(zip(names, shares, strict=True))
    overlapped = round(mean("overlapped_communication_ns"))
    return Partition(
        **rounded,
        overlapped_communication_ns=overlapped,
        communication_ns=rounded["exposed_communication_ns"] + overlapped,
    )


def mean_ledger(analyses: Sequence[Analysis], ledgers: Sequence[list[LedgerRow]], window_ns: int) -> list[LedgerRow]:
    """The mean ledger, rounded so that it sums to the window."""
    if len(ledgers) == 1:
        return ledgers[0]
    rows = pl.DataFrame(
        [(row.wall, row.cause, row.basis, row.time_ns) for rows in ledgers for row in rows],
        schema={"wall": pl.String, "cause": pl.String, "basis": pl.String, "time_ns": pl.Int64},
        orient="row",
    )
    means = summed(rows, "wall", "cause").with_columns(pl.col("time_ns") / len(ledgers)).sort("wall", "cause")
    shares = means.with_columns(time_ns=share_out(means.select("time_ns"), window_ns))
    top = tops(pl.concat([analysis.account.charges for analysis in analyses]), gpus=len(analyses))
    return rows_of(shares, window_ns, top)


def sum_counts(counts: Sequence[Counts]) -> Counts:
    """Counts of all GPUs together."""
    return Counts(**{name: sum(getattr(c, name) for c in counts) for name in Counts.__struct_fields__})


def fullest_memory(gpus: Sequence[Gpu]) -> Memory | None:
    """The memory of the GPU that got fullest, without its timeline; where no share is known, of the first that tells anything."""
    known = [gpu.memory for gpu in gpus if gpu.memory is not None]
    fullest = max(known, key=lambda memory: memory.share or 0.0, default=None)
    return None if fullest is None else msgspec.structs.replace(fullest, timeline=[])


def collectives(analyses: Sequence[Analysis]) -> list[Collective]:
    """The collectives by operation, group and size, most exposed first."""
    columns = ["class", "activity", "duration_ns", "exclusive_ns", *SIGNATURE, "wire_bytes", "expected_bandwidth"]
    of_gpus = [a.account.timeline.pieces.select(columns).filter(pl.col("class") == COMMUNICATION) for a in analyses]
    pieces = pl.concat(of_gpus, how="diagonal_relaxed")
    rate = 1e9 / pl.col("duration_ns").clip(lower_bound=1)
    grouped = (
        pieces.group_by(SIGNATURE)
        .agg(
            count=pl.col("activity").n_unique(),
            median=pl.col("duration_ns").median(),
            p95=pl.col("duration_ns").quantile(0.95, "linear"),
            exposed_ns=pl.col("exclusive_ns").sum().round().cast(pl.Int64),
            bus=(pl.col("wire_bytes") * rate).median(),
            algorithm=(pl.col("message_bytes") * rate).median(),
            expected=pl.col("expected_bandwidth").first(),
        )
        .sort(["exposed_ns", "operation", "group", "message_bytes"], descending=[True, False, False, False])
        .head(MANY_COLLECTIVES)
    )
    return [
        Collective(
            name=row["operation"] or "collective of unknown kind",
            group=row["group"],
            group_size=row["group_size"],
            count=row["count"],
            message_bytes=None if row["message_bytes"] is None else int(row["message_bytes"]),
            duration_ns=Spread(median=row["median"], p95=row["p95"]),
            exposed_ns=row["exposed_ns"],
            bus_bandwidth=row["bus"],
            algorithm_bandwidth=row["algorithm"],
            expected_bus_bandwidth=row["expected"],
        )
        for row in grouped.iter_rows(named=True)
    ]
