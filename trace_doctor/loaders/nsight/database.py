"""Opens SQLite exports: read-only, unlocked, nothing written to or beside the file; columns come as Arrow through ADBC.

Of 2.7 million kernels, ADBC reads 15 columns in a third of the CPU time that sqlite3 and tuples take (docs/reference/nsight.md).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from trace_doctor.errors import CorruptTraceError, InputError
from trace_doctor.loaders.nsight.tables import READ, Tables

MAGIC = b"SQLite format 3\x00"
PART_ROWS = 1 << 17
_BATCH_ROWS = PART_ROWS // 4
Query = Callable[[str], pl.DataFrame]
_SAMPLE = 64
"""Rows that show which columns vary at all."""
_AGAIN = "export it again: nsys export --type sqlite --force-overwrite true --output {name} REPORT.nsys-rep"
_WAIT = "wait until the export has ended, or close the program that has it open"


def open_(path: Path) -> Tables:
    """The tables of a SQLite export.

    Raises CorruptTraceError where the file is truncated or damaged, InputError where it is still being written or is no export.
    """
    _refuse_damaged(path)
    columns: dict[str, frozenset[str]] = {}
    with _connected(path) as query:
        listed = query(_LISTING)
    for table, column in listed.select(_decoded(column) for column in listed).iter_rows():
        columns[table] = columns.get(table, frozenset()) | {column}
    if not columns:
        msg = "a SQLite database, but no export of Nsight Systems: it has none of its tables"
        raise InputError(msg, where=str(path), hint="nsys export --type sqlite REPORT.nsys-rep makes one")

    def fetch(table: str, integers: Sequence[str], texts: Sequence[str]) -> Iterator[pl.DataFrame]:
        return _parts(path, table, integers, texts)

    return Tables(columns=columns, fetch=fetch)


_LISTING = (
    "SELECT CAST(m.name AS BLOB) AS table_name, CAST(c.name AS BLOB) AS column_name "
    "FROM sqlite_master AS m, pragma_table_info(m.name) AS c "
    f"WHERE m.type = 'table' AND m.name IN ({', '.join(repr(table) for table in READ)})"
)


def _parts(path: Path, table: str, integers: Sequence[str], texts: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The rows by ranges of rowid, so that no more than a part is ever held as text."""
    # a cast gives each column one type, whatever a row holds, and text as bytes, whatever its encoding
    columns = {name: f'CAST("{name}" AS INTEGER)' for name in integers}
    columns |= {name: f"ifnull(CAST(\"{name}\" AS BLOB), x'')" for name in texts}
    after: int | None = -(1 << 63)
    with _connected(path) as query:
        while after is not None:
            rows = f'FROM "{table}" WHERE rowid > {after}'
            last = query(f"SELECT rowid AS _row {rows} ORDER BY rowid LIMIT 1 OFFSET {PART_ROWS - 1}")
            after = last["_row"][0] if len(last) else None
            rows += "" if after is None else f" AND rowid <= {after}"
            same = _constants(query, columns, rows)
            varying = ["rowid AS _row"] if len(same) == len(columns) else []
            varying += [f'{columns[name]} AS "{name}"' for name in columns if name not in same]
            part = query(f"SELECT {', '.join(varying)} {rows} ORDER BY rowid")
            part = part.with_columns(_decoded(part[name]) for name in texts if name not in same)
            yield part.with_columns(
                pl.lit(value, pl.Int64 if name in integers else pl.String).alias(name) for name, value in same.items()
            ).select(list(columns))


def _constants(query: Query, columns: dict[str, str], rows: str) -> dict[str, int | None]:
    """The columns that hold one number, or empty text (None), in all of these rows.

    Comparing a value costs SQLite a fifth of handing it over. Each query leaves out what it finds to differ, and the next one
    goes on from the row where it was found.
    """
    select = "SELECT " + ", ".join(["rowid AS _row", *(f'{value} AS "{name}"' for name, value in columns.items())])
    found = query(f"{select} {rows} ORDER BY rowid LIMIT {_SAMPLE}")
    same: dict[str, Any] = {name: found[name][0] for name in columns if found[name].n_unique() == 1}
    same = {name: value for name, value in same.items() if not value or isinstance(value, int)}
    while same and len(found):
        differs = " OR ".join(f"{columns[name]} IS NOT {_literal(value)}" for name, value in same.items())
        found = query(f"{select} {rows} AND rowid >= {found['_row'][-1]} AND ({differs}) ORDER BY rowid LIMIT 1")
        same = {name: value for name, value in same.items() if found.is_empty() or found[name][0] == value}
    return {name: None if value == b"" else value for name, value in same.items()}


def _literal(value: int | bytes | None) -> str:
    return "NULL" if value is None else "x''" if isinstance(value, bytes) else str(value)


@contextmanager
def _connected(path: Path) -> Iterator[Query]:
    # imported here: only who reads an export pays for it
    import adbc_driver_manager
    import adbc_driver_sqlite

    def query(sql: str) -> pl.DataFrame:
        with adbc_driver_manager.AdbcStatement(connection) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            # a part has several batches, so this takes it out of the driver's memory, which then serves the next part
            return pl.DataFrame(stream).rechunk()

    try:
        with (
            adbc_driver_sqlite.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1") as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
        ):
            yield query
    except (adbc_driver_manager.Error, pl.exceptions.PolarsError, OSError) as problem:
        raise _refusal(path, str(problem)) from None


def _decoded(texts: pl.Series) -> pl.Series:
    """Bytes as text, what is no UTF-8 replaced; empty ones null."""
    if texts.dtype != pl.Binary:  # no rows: the driver knows no type
        return pl.Series(texts.name, [], dtype=pl.String)
    try:
        decoded = texts.cast(pl.String)
    except pl.exceptions.ComputeError:
        decoded = pl.Series(texts.name, [text.decode("utf-8", "replace") for text in texts], dtype=pl.String)
    return decoded.set(decoded == "", None)


def _refusal(path: Path, problem: str) -> InputError:
    # the driver's words may hold the query but no value of the file
    if "locked" in problem or "busy" in problem:
        return InputError("the database is locked: another program writes it", where=str(path), hint=_WAIT)
    if "not a database" in problem:
        return InputError("not a SQLite database", where=str(path), hint=_AGAIN.format(name=shlex.quote(path.name)))
    return CorruptTraceError(
        "the database is damaged or cut short", where=str(path), hint=_AGAIN.format(name=shlex.quote(path.name))
    )


def _refuse_damaged(path: Path) -> None:
    """What SQLite itself would find late or, told that nobody writes, not at all."""
    with path.open("rb") as file:
        header = file.read(100)
    size_bytes = path.stat().st_size
    hint = _AGAIN.format(name=shlex.quote(path.name))
    if not header.startswith(MAGIC):
        what = "its header is empty: the export was interrupted" if not header.strip(b"\0") else "not a SQLite database"
        raise CorruptTraceError(what, where=str(path), hint=hint)
    page_bytes = int.from_bytes(header[16:18], "big")
    whole_bytes = (65_536 if page_bytes == 1 else page_bytes) * int.from_bytes(header[28:32], "big")
    if size_bytes < max(whole_bytes, 512):
        msg = f"the database is truncated: {size_bytes} of {whole_bytes} bytes are there"
        raise CorruptTraceError(msg, where=str(path), hint=hint)
    for suffix in ("-journal", "-wal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            msg = f"the database is locked or was left unfinished: {beside.name} lies beside it"
            raise InputError(msg, where=str(path), hint=_WAIT)
