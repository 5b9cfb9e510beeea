"""Opens exports of `--type parquetdir` and `arrowdir`: a file a table, with the same columns as SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from trace_doctor.errors import CorruptTraceError
from trace_doctor.loaders.nsight.tables import READ, STRINGS, Tables

SUFFIXES = (".parquet", ".arrow")


def is_export(path: Path) -> bool:
    """Whether a folder is such an export: the table of strings is always there."""
    return any((path / f"{STRINGS}{suffix}").is_file() for suffix in SUFFIXES)


def open_(path: Path) -> Tables:
    """The tables of such a folder. Raises CorruptTraceError where a file of it cannot be read."""
    places = ((table, path / f"{table}{suffix}") for table in READ for suffix in SUFFIXES)
    found = {table: file for table, file in places if file.is_file()}
    scans = {table: _scan(file) for table, file in found.items()}

    def fetch(table: str, integers: Sequence[str], texts: Sequence[str]) -> Iterator[pl.DataFrame]:
        wanted = [pl.col(column).cast(pl.Int64, strict=False) for column in integers]
        wanted += [_text(pl.col(column)) for column in texts]
        with _readable(found[table]):
            yield scans[table].select(wanted).collect()

    columns = {}
    for table, scan in scans.items():
        with _readable(found[table]):
            columns[table] = frozenset(scan.collect_schema().names())
    return Tables(columns=columns, fetch=fetch)


def _scan(file: Path) -> pl.LazyFrame:
    if file.suffix == ".parquet":
        return pl.scan_parquet(file)
    with file.open("rb") as start:
        is_file = start.read(6) == b"ARROW1"
    with _readable(file):
        return pl.scan_ipc(file) if is_file else pl.read_ipc_stream(file).lazy()


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, OSError):
        msg = "this table of the export is damaged or cut short"
        raise CorruptTraceError(msg, where=str(file), hint="export it again with nsys export") from None


def _text(column: pl.Expr) -> pl.Expr:
    text = column.cast(pl.String, strict=False)
    return pl.when(text != "").then(text)
