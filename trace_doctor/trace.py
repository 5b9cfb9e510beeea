"""What every loader must deliver: a `Trace`, that is meta data and six Polars frames.

Times are integer nanoseconds on the trace's own clock, exact from the file on. Null is unknown. Row ids (`activity`,
`op`, `call`) are positions in their frame, so that frames can be joined or gathered by them. A thread is a number that is
unique over all processes of the file: `meta.threads[thread]` says which process it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import polars as pl

ACTIVITY_KINDS = pl.Enum(["compute", "communication", "copy", "set", "graph"])
CALL_KINDS = pl.Enum(
    ["launch", "graph_launch", "copy", "set", "synchronisation", "malloc", "free", "event_wait", "other"]
)
ANNOTATION_KINDS = pl.Enum(["user", "overhead", "python"])


class Column(NamedTuple):
    """Type and meaning of a frame's column."""

    dtype: pl.DataType | type[pl.DataType]
    meaning: str


ACTIVITIES: dict[str, Column] = {
    "activity": Column(pl.UInt32, "row number; activities stand in the order of their start"),
    "process": Column(pl.UInt16, "host process that drives the device: position in meta.processes"),
    "device": Column(pl.UInt16, "position in meta.devices"),
    "stream": Column(pl.Int64, "stream or queue of the device"),
    "start_ns": Column(pl.Int64, "start on the trace's clock"),
    "duration_ns": Column(pl.Int64, "length, 0 or more"),
    "name": Column(pl.Categorical, "kernel name as recorded, or the profiler's name of a copy"),
    "kind": Column(
        ACTIVITY_KINDS, "loaders say compute for every kernel; work.kernels finds the communication among them"
    ),
    "correlation": Column(pl.Int64, "id shared with the launching call, unique within a process only"),
    "call": Column(pl.UInt32, "row of the call that launched it; null where no launch was recorded"),
    "op": Column(pl.UInt32, "row of the innermost op around the launch"),
    "bytes": Column(pl.Int64, "bytes of a copy or set"),
    "grid": Column(pl.Categorical, "launch grid as JSON text, e.g. [18, 1, 1]; work-items on ROCm"),
    "block": Column(pl.Categorical, "thread block as JSON text"),
}
OPS: dict[str, Column] = {
    "op": Column(pl.UInt32, "row number"),
    "thread": Column(pl.UInt32, "position in meta.threads"),
    "start_ns": Column(pl.Int64, "start on the trace's clock"),
    "duration_ns": Column(pl.Int64, "length, 0 or more"),
    "name": Column(
        pl.Categorical, "dispatcher op (ns::op), autograd node, triton_* kernel wrapper, or a record_function"
    ),
    "parent": Column(pl.UInt32, "row of the innermost op that encloses it on its thread"),
    "shapes": Column(pl.Categorical, "`Input Dims` as the JSON text of the file"),
    "dtypes": Column(pl.Categorical, "`Input type` as the JSON text of the file"),
    "concrete": Column(pl.Categorical, "`Concrete Inputs` as the JSON text of the file"),
    "sequence": Column(pl.Int64, "autograd sequence number"),
    "forward_thread": Column(pl.Int64, "`Fwd thread id`: above 0 on backward nodes of another thread"),
    "external": Column(pl.Int64, "`External id`, the profiler's own link to launches and activities"),
}
CALLS: dict[str, Column] = {
    "call": Column(pl.UInt32, "row number"),
    "thread": Column(pl.UInt32, "position in meta.threads"),
    "start_ns": Column(pl.Int64, "start on the trace's clock"),
    "duration_ns": Column(pl.Int64, "length, 0 or more"),
    "name": Column(pl.Categorical, "runtime or driver API function"),
    "kind": Column(CALL_KINDS, "what the call does, from loaders/calls.toml"),
    "correlation": Column(pl.Int64, "id shared with the activities it launched, unique within a process only"),
    "op": Column(pl.UInt32, "row of the innermost op around its start"),
    "external": Column(pl.Int64, "`External id`"),
}
ANNOTATIONS: dict[str, Column] = {
    "thread": Column(pl.UInt32, "position in meta.threads"),
    "start_ns": Column(pl.Int64, "start on the trace's clock"),
    "duration_ns": Column(pl.Int64, "length, 0 or more"),
    "name": Column(pl.Categorical, "text of the annotation, NVTX range, profiler overhead or Python frame"),
    "kind": Column(
        ANNOTATION_KINDS, "user: record_function and NVTX; overhead: the profiler's own work; python: a stack frame"
    ),
}
COLLECTIVES: dict[str, Column] = {
    "activity": Column(pl.UInt32, "row of the communication kernel"),
    "name": Column(pl.String, "collective as the process group names it, e.g. _allgather_base"),
    "dtype": Column(pl.String, "element type as the process group names it, e.g. BFloat16"),
    "in_elements": Column(pl.Int64, "`In msg nelems`"),
    "out_elements": Column(pl.Int64, "`Out msg nelems`"),
    "group": Column(pl.String, "`Process Group Name`"),
    "group_description": Column(pl.String, "`Process Group Description`"),
    "group_size": Column(pl.Int64, "`Group size`"),
    "ranks": Column(pl.String, "`Process Group Ranks` as JSON text, maybe shortened by the profiler"),
    "sequence": Column(pl.Int64, "`Seq`: pairs the ranks' calls"),
}
METRICS: dict[str, Column] = {
    "device": Column(pl.UInt16, "position in meta.devices"),
    "name": Column(pl.Categorical, "metric as the profiler names it"),
    "at_ns": Column(pl.Int64, "time of the sample"),
    "value": Column(pl.Float64, "value in the metric's own unit"),
}
ALLOCATED, RESERVED = "allocated_bytes", "reserved_bytes"
"""Metrics of the caching allocator: bytes that tensors hold, and that it holds of the device, after each change."""
SCHEMAS: dict[str, dict[str, Column]] = {
    "activities": ACTIVITIES,
    "ops": OPS,
    "calls": CALLS,
    "annotations": ANNOTATIONS,
    "collectives": COLLECTIVES,
    "metrics": METRICS,
}


class Warning(NamedTuple):
    """Something that the reader of the report must know: a stable code and a sentence with the count."""

    code: str
    message: str


class Thread(NamedTuple):
    """A host thread: its process (position in meta.processes) and the profiler's label."""

    process: int
    label: str


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A GPU as the trace describes it; null where it does not."""

    label: str
    """The profiler's number as text; the file's own label where processes share it, such as "[TP01] 0"."""
    number: int | None = None
    name: str | None = None
    vendor: str | None = None
    """"nvidia", "amd" or "intel", from the API names or properties seen."""
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    compute_capability: str | None = None
    memory_bandwidth: float | None = None
    """B/s, where the profiler knows it (Nsight)."""
    clock_hz: int | None = None
    """Highest clock of the multiprocessors, where the profiler knows it (Nsight)."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What is known of the file, the job and the machine."""

    path: str
    format: str
    """"kineto" or "nsight"."""
    size_bytes: int
    sha256: str
    rank: int | None = None
    world_size: int | None = None
    node_devices: int | None = None
    """GPUs that the profiler lists for the machine: a process group no larger stays inside it."""
    devices: tuple[DeviceInfo, ...] = ()
    processes: tuple[str, ...] = ()
    threads: tuple[Thread, ...] = ()
    has_shapes: bool = False
    has_stacks: bool = False
    has_ops: bool = False
    tables_missing: tuple[str, ...] = ()
    """What the profiler did not record: "op shapes", "host ops", "launch calls", ..."""
    warnings: tuple[Warning, ...] = ()


def empty(schema: dict[str, Column]) -> pl.DataFrame:
    """A frame without rows."""
    return pl.DataFrame(schema={name: column.dtype for name, column in schema.items()})


def matches(names: pl.Series, pattern: str) -> pl.Series:
    """Whether each name of a categorical column matches a regular expression (null: no), which each distinct one is asked once."""
    distinct = names.unique().drop_nulls()
    return names.is_in(distinct.filter(distinct.cast(pl.String).str.contains(pattern)).implode()).fill_null(value=False)


def conform(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """The frame with exactly the columns and types of the schema of that name; columns that it lacks are null."""
    return frame.select(
        (pl.col(column) if column in frame.columns else pl.lit(None)).cast(spec.dtype).alias(column)
        for column, spec in SCHEMAS[name].items()
    )


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One profiler file."""

    meta: Meta
    activities: pl.DataFrame
    """Everything a GPU did; columns: ACTIVITIES."""
    ops: pl.DataFrame = field(default_factory=lambda: empty(OPS))
    """Host ranges that launches nest in; columns: OPS."""
    calls: pl.DataFrame = field(default_factory=lambda: empty(CALLS))
    """Host API calls, launches among them; columns: CALLS."""
    annotations: pl.DataFrame = field(default_factory=lambda: empty(ANNOTATIONS))
    """Other named host ranges; columns: ANNOTATIONS."""
    collectives: pl.DataFrame = field(default_factory=lambda: empty(COLLECTIVES))
    """Sizes and groups of communication kernels, where recorded; columns: COLLECTIVES."""
    metrics: pl.DataFrame = field(default_factory=lambda: empty(METRICS))
    """Sampled GPU metrics, and what the allocator holds; columns: METRICS."""

    def warn(self, *warnings: Warning) -> Trace:
        """The same trace with more warnings."""
        return replace(self, meta=replace(self.meta, warnings=self.meta.warnings + warnings))


@dataclass(frozen=True, kw_only=True)
class Window:
    """The time accounted for, from loaders.steps (ATTRIBUTION section 2)."""

    rule: str
    """How the steps were found, in words for the report."""
    steps: pl.DataFrame
    """device, number (Int64), start_ns, end_ns, used (Boolean), why_not (String); no rows where no steps were found."""
    spans: pl.DataFrame
    """device, number (Int64, null without steps), start_ns, end_ns: what is accounted for. Disjoint, in order, per device."""
    warnings: tuple[Warning, ...] = ()
    trust: str = "good"
    """"good", "partial" or "poor": whether idle can be believed."""
    why: tuple[str, ...] = ()
