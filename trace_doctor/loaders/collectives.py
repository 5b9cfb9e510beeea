"""What the profiler says of collectives: sizes, element types and groups, in the arguments of kernels or of the ops around."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from trace_doctor.loaders.numerals import integers

_TEXTS = {
    "name": ("Collective name",),
    "dtype": ("dtype",),
    "group": ("Process Group Name",),
    "group_description": ("Process Group Description",),
    "ranks": ("Process Group Ranks",),
}
_NUMBERS = {
    "in_elements": ("In msg nelems", "In msg size"),
    "out_elements": ("Out msg nelems", "Out msg size"),
    "group_size": ("Group size",),
    "sequence": ("Seq",),
}


def told(activities: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """What kernels say of their collective, else what the op with their external id says of it; columns: COLLECTIVES.

    Both frames need `external` and `collective`, the JSON text of the arguments.
    """
    by_op = ops.filter(pl.col("collective").is_not_null()).select("external", by_op="collective").drop_nulls()
    told = (
        activities.filter(pl.col("kind") == "compute")
        .select("activity", "external", "collective")
        .join(by_op.unique("external", keep="last"), on="external", how="left")
        .select("activity", text=pl.coalesce("collective", "by_op"))
        .drop_nulls()
        .sort("activity")
    )
    rows = [json.loads(text) for text in told["text"]]
    texts = {column: [_text(_first_of(row, keys)) for row in rows] for column, keys in _TEXTS.items()}
    numbers = {column: integers([_first_of(row, keys) for row in rows]) for column, keys in _NUMBERS.items()}
    return pl.DataFrame(
        {"activity": told["activity"]} | {k: pl.Series(v, dtype=pl.String) for k, v in texts.items()} | numbers
    )


def _first_of(row: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((row[key] for key in keys if key in row), None)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
