"""What every communication kernel sent: operation, message size and bytes on the wire, as nccl-tests counts them."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

import polars as pl

from trace_doctor.trace import Trace
from trace_doctor.work.ancestors import at, named, nearest
from trace_doctor.work.shapes import DTYPES, integer, parse, read

_COMMUNICATION_OP = (
    r"^(nccl|rccl|mpi|ucc|gloo|xccl|hccl):|^(c10d|_c10d_functional|c10d_functional|symm_mem)::|(?i)all_?(2|to)_?all"
)
_RECORDED_OP = r"^record_param_comms$"
_FACTORS = {
    "1": pl.lit(1.0),
    "(n-1)/n": (pl.col("group_size") - 1) / pl.col("group_size"),
    "2(n-1)/n": 2 * (pl.col("group_size") - 1) / pl.col("group_size"),
}


def estimate(trace: Trace) -> pl.DataFrame:
    """One row per communication activity, with the columns listed below.

    activity, operation, group, group_size, ranks, message_bytes, bus_factor, wire_bytes, is_pipeline. An unknown one is null.
    `message_bytes` is the total buffer S of nccl-tests (of an all-gather the output, of a reduce-scatter the input),
    `bus_factor` its bus bandwidth factor and `wire_bytes` their product; null where size or group are not recorded.
    `is_pipeline`: a send or receive that is no part of an all-to-all. Source: nccl-tests doc/PERFORMANCE.md.
    Needs `linking.link` and `kernels.classify` to have run.
    """
    kernels = trace.activities.filter(pl.col("kind") == "communication").select("activity", "name", "op")
    told = trace.collectives.unique("activity", keep="first").rename({"name": "collective"})
    rows = kernels.join(told, on="activity", how="left", maintain_order="left")
    rows = pl.concat([rows, _recorded(trace.ops, kernels)], how="horizontal")
    rows = rows.with_columns(pl.coalesce("group_size", "recorded_size").alias("group_size"))
    rows = rows.with_columns(_op_names(trace.ops, kernels["op"]))
    rows = rows.with_columns(_operations_of(rows))
    return rows.with_columns(message_bytes=_message_bytes(), bus_factor=_bus_factor()).select(
        "activity",
        "operation",
        "group",
        "group_size",
        "ranks",
        "message_bytes",
        "bus_factor",
        (pl.col("message_bytes") * pl.col("bus_factor")).alias("wire_bytes"),
        pl.col("operation").eq("send_recv").fill_null(value=False).alias("is_pipeline"),
    )


def operation_of(name: str) -> str | None:
    """The operation that a collective, op or kernel of this name does, or null."""
    plain = re.sub("[_:]", "", name.lower())
    found = (str(entry["name"]) for entry in _operations() if re.search(str(entry["pattern"]), plain))
    return next(found, None)


@cache
def _operations() -> tuple[dict[str, Any], ...]:
    text = resources.files("trace_doctor.work").joinpath("collectives.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["operation"])


def _operations_of(rows: pl.DataFrame) -> pl.Series:
    """The operation: as the process group or the op says, else as the kernel is called.

    NCCL runs whatever it has no kernel of its own for under the name of its default kernel (SendRecv, later Generic). So a
    name that the other kernels of the trace are told to be otherwise is believed only as far as those agree.
    """
    proven = pl.coalesce(_looked_up(rows["collective"]), _looked_up(rows["op_name"]))
    named = rows.select("name", proven.alias("proven"), _looked_up(rows["name"]).alias("called"))
    others = pl.col("proven").drop_nulls().unique().over("name", mapping_strategy="join")
    agreed = pl.when(others.list.len() == 1).then(others.list.first())
    believed = pl.when((others.list.len() == 0) | others.list.contains(pl.col("called"))).then("called")
    return named.select(pl.coalesce("proven", agreed, believed).alias("operation"))["operation"]


def _looked_up(names: pl.Series) -> pl.Series:
    """The operation for each name; each distinct name is looked up once."""
    distinct = [name for name in names.unique().cast(pl.String) if name is not None]
    known = {name: operation_of(name) for name in distinct}
    return names.cast(pl.String).replace_strict(known, default=None, return_dtype=pl.String)


def _op_names(ops: pl.DataFrame, launched_by: pl.Series) -> pl.Series:
    """Name of the nearest communication op around each launch: the kernel of an all-to-all is called SendRecv."""
    row = at(nearest(ops["parent"], named(ops["name"], _COMMUNICATION_OP)), launched_by)
    return at(ops["name"], row).cast(pl.String).alias("op_name")


def _recorded(ops: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """What the `record_param_comms` op around each launch recorded: recorded_bytes of the input, recorded_size of the group.

    For traces older than the kernels' own arguments. A list of tensors has no dtype; then the kernel's name tells it.
    """
    row = at(nearest(ops["parent"], named(ops["name"], _RECORDED_OP)), kernels["op"])
    texts = {column: at(ops[column], row).cast(pl.String) for column in ("shapes", "dtypes", "concrete")}
    table = pl.DataFrame({"name": kernels["name"].cast(pl.String), **texts})
    known = {text: _input_and_group(*text) for text in table.unique().iter_rows()}
    schema = {"recorded_bytes": pl.Float64, "recorded_size": pl.Int64}
    return pl.DataFrame([known[text] for text in table.iter_rows()], schema=schema, orient="row")


def _input_and_group(
    kernel: str, shapes: str | None, dtypes: str | None, concrete: str | None
) -> tuple[float | None, int | None]:
    """Source: RECORD_PARAM_COMMS of torch ParamCommsUtils.hpp: the input first, the group's size after the split sizes."""
    call = parse("", shapes, dtypes, concrete)
    if call is None or not (call.arguments[0].members or call.shape(0) is not None):
        return None, None
    typed, untyped = read(call, 0)
    width = _width_of_kernel(kernel) if untyped else 0.0
    lists = [position for position, argument in enumerate(call.arguments) if argument.dtype == "ScalarList"]
    behind = [integer(argument) for argument in call.arguments[lists[-1] + 1 :]] if lists else []
    sizes = [size for size in behind if size is not None]
    return None if width is None else typed + untyped * width, sizes[-1] if sizes and sizes[-1] > 1 else None


def _width_of_kernel(name: str) -> float | None:
    found = re.search(r"_(?:Sum|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv)_(\w+?)(?:_|\(|$)", name)
    return _KERNEL_WIDTHS.get(found[1]) if found else None


# Element types in the names of NCCL's reducing kernels. Source: NCCL src/device/generate.py.
_KERNEL_WIDTHS = {
    "f16": 2.0,
    "half": 2.0,
    "bf16": 2.0,
    "f32": 4.0,
    "float": 4.0,
    "f64": 8.0,
    "double": 8.0,
    "f8e4m3": 1.0,
    "f8e5m2": 1.0,
}


def _message_bytes() -> pl.Expr:
    """S of nccl-tests from the process group's element counts, else from the op's recorded input."""
    width = pl.col("dtype").str.to_lowercase().replace_strict(_WIDTHS, default=None, return_dtype=pl.Float64)
    given, taken, ranks = pl.col("in_elements"), pl.col("out_elements"), pl.col("group_size")
    elements = (
        pl.when(_size("output"))
        .then(pl.coalesce(taken, given * ranks))
        .when(_size("larger"))
        .then(pl.max_horizontal(given, taken))
        .when(pl.col("operation") == "reduce_scatter")
        .then(pl.coalesce(given, taken * ranks))
        .otherwise(pl.coalesce(given, taken))
    )
    recorded = pl.when(_size("output")).then(pl.col("recorded_bytes") * ranks).otherwise(pl.col("recorded_bytes"))
    return pl.coalesce(elements * width, recorded)


def _size(kind: str) -> pl.Expr:
    return pl.col("operation").is_in([entry["name"] for entry in _operations() if entry["size"] == kind])


def _bus_factor() -> pl.Expr:
    chain: pl.Expr = pl.lit(None, dtype=pl.Float64)
    for entry in _operations():
        factor = (
            pl.when(pl.col("group_size") > 0).then(_FACTORS[entry["factor"]]) if "n" in entry["factor"] else pl.lit(1.0)
        )
        chain = pl.when(pl.col("operation") == entry["name"]).then(factor).otherwise(chain)
    return chain


# Dtypes as the process group names them ("BFloat16", "Float", "Long"), in lower case.
_WIDTHS = {name.removeprefix("c10::").lower(): float(width) for name, (width, _) in DTYPES.items()}
