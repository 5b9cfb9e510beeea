"""Host processes and threads: an export names a thread by one number, its globalTid."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.devices import pid_of
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.trace import Thread


class Host(NamedTuple):
    """The host side of a file."""

    processes: tuple[str, ...]
    threads: tuple[Thread, ...]
    owners: pl.DataFrame
    """owner, process: position in `processes`."""
    numbers: pl.DataFrame
    """tid (the globalTid), thread: position in `threads`."""


def owner_of(tid: pl.Expr) -> pl.Expr:
    """The process of a globalTid or globalPid: all but its lowest 24 bits."""
    return tid.floordiv(1 << 24)


def find(tables: Tables, strings: pl.DataFrame, owners: pl.Series, tids: list[pl.Series]) -> Host:
    """Numbers the processes, and those of the threads that belong to one of them."""
    processes = owners.unique().drop_nulls().sort()
    owned = pl.concat([tid.unique() for tid in tids]).unique().drop_nulls().sort().to_frame("tid")
    owned = owned.filter(owner_of(pl.col("tid")).is_in(processes.implode()))
    places = pl.DataFrame({"owner": processes, "process": pl.int_range(len(processes), dtype=pl.UInt16, eager=True)})
    names = dict(_names(tables, strings).iter_rows())
    threads = owned.with_columns(owner=owner_of(pl.col("tid"))).join(places, on="owner", maintain_order="left")
    return Host(
        tuple(str(pid_of(owner)) for owner in processes),
        tuple(
            Thread(process, names.get(tid) or str(tid & 0xFFFFFF))
            for tid, process in threads.select("tid", "process").iter_rows()
        ),
        places,
        threads.select("tid", thread=pl.int_range(len(threads), dtype=pl.UInt32, eager=True)),
    )


def _names(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    """What threads call themselves, as pt_autograd_0: tid, name."""
    rows = export.read(tables, export.THREADS, integers=["globalTid", "nameId"])
    return rows.select("globalTid", name=export.named(rows["nameId"], strings).cast(pl.String)).drop_nulls()
