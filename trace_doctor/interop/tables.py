"""Frames of a trace and tables of a report, for pandas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

import polars as pl
from msgspec import structs

from trace_doctor.interop.extras import require
from trace_doctor.report import Report, Struct
from trace_doctor.trace import SCHEMAS, Trace

if TYPE_CHECKING:
    import pandas as pd

Path = tuple[str, ...]

_DTYPES = {int: "Int64", float: "float64", bool: "boolean"}
_BITS = (8, 16, 32, 64)


def to_pandas(source: Trace | Report) -> dict[str, pd.DataFrame]:
    """Every frame of a trace, or every table of a report, by name.

    Integers and booleans are pandas' nullable ones, so that nanoseconds stay exact beside unknown ones; names of a trace are
    categories. Of a report each list is a table with a row an entry (`findings`), each other part a table of one row
    (`metrics`); parts of a row are flattened (`step_time_ns_median`), and a list in it is a table of its own (`gpus_ledger`),
    whose column `row` says which row of the outer table an entry belongs to.
    """
    if isinstance(source, Trace):
        return {name: frame_to_pandas(getattr(source, name)) for name in SCHEMAS}
    return dict(_report_tables(source))


def frame_to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """A Polars frame in pandas."""
    pandas, arrow = require("pandas", extra="pandas"), require("pyarrow", extra="pandas")
    types = {getattr(arrow, f"int{bits}")(): getattr(pandas, f"Int{bits}Dtype")() for bits in _BITS}
    types |= {getattr(arrow, f"uint{bits}")(): getattr(pandas, f"UInt{bits}Dtype")() for bits in _BITS}
    types[arrow.bool_()] = pandas.BooleanDtype()
    converted: pd.DataFrame = frame.to_pandas(types_mapper=types.get)
    return converted


class _Shape(NamedTuple):
    """A part of the report as a table."""

    cells: dict[str, tuple[Path, str]]
    """Columns: where their cells stand in the part, and their dtype."""
    tables: dict[str, tuple[Path, type[Struct]]]
    """Lists of other parts."""


def _report_tables(report: Report) -> Iterator[tuple[str, pd.DataFrame]]:
    for field in structs.fields(report):
        value, part = getattr(report, field.name), _part(field.type)
        if part is not None:
            yield from _tables(field.name, part, value if isinstance(value, list) else [value])


def _tables(
    name: str, part: type[Struct], entries: Sequence[Struct], rows: Sequence[int] | None = None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The table of these entries, and those of the lists in them. `rows`: which row of the outer table each belongs to."""
    pandas, shape = require("pandas", extra="pandas"), _shape(part)
    columns = {} if rows is None else {"row": pandas.Series(rows, dtype="Int64")}
    for column, (path, dtype) in shape.cells.items():
        columns[column] = pandas.Series([_at(entry, path) for entry in entries], dtype=dtype)
    yield name, pandas.DataFrame(columns)
    for inner, (path, inner_part) in shape.tables.items():
        lists = [(row, value) for row, entry in enumerate(entries) for value in _at(entry, path) or []]
        yield from _tables(f"{name}_{inner}", inner_part, [value for _, value in lists], [row for row, _ in lists])


def _shape(part: type[Struct]) -> _Shape:
    shape = _Shape({}, {})
    for field in structs.fields(part):
        inner, name = _part(field.type), field.name
        if inner is None:
            shape.cells[name] = ((name,), _dtype(field.type))
        elif get_origin(field.type) is list:
            shape.tables[name] = ((name,), inner)
        else:
            below = _shape(inner)
            shape.cells.update({f"{name}_{key}": ((name, *path), dtype) for key, (path, dtype) in below.cells.items()})
            shape.tables.update(
                {f"{name}_{key}": ((name, *path), type_) for key, (path, type_) in below.tables.items()}
            )
    return shape


def _part(annotation: Any) -> type[Struct] | None:
    """The part that a field holds, alone, in a list, or perhaps."""
    inside = [annotation, *(get_args(annotation) if get_origin(annotation) is not dict else ())]
    return next((each for each in inside if isinstance(each, type) and issubclass(each, Struct)), None)


def _dtype(annotation: Any) -> str:
    """The pandas dtype of a number or a truth that may be unknown; anything else is an object."""
    kinds = set(get_args(annotation) or [annotation]) - {type(None)}
    return _DTYPES.get(kinds.pop(), "object") if len(kinds) == 1 and get_origin(annotation) is not list else "object"


def _at(part: Struct, path: Path) -> Any:
    """What stands at the path; None below a part that is None."""
    return reduce(lambda value, name: None if value is None else getattr(value, name), path, part)
