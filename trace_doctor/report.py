"""The report: one frozen artefact that every format is drawn from (docs/reference/report-json.md).

Times are integer nanoseconds (`_ns`), shares 0 to 1, rates in base units per second. Unknown is null. New fields get
defaults; nothing is renamed; readers ignore what they don't know.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = "1.0"

Wall = Literal["mfu", "recompute", "compute", "memory", "communication", "small_kernels", "host", "unattributed"]
WALLS: tuple[Wall, ...] = (
    "mfu", "recompute", "compute", "memory", "communication", "small_kernels", "host", "unattributed",
)  # fmt: skip
Basis = Literal["measured", "modelled", "estimated", "residual"]
Trust = Literal["good", "partial", "poor"]


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of the report."""


class Tool(Struct, frozen=True, kw_only=True):
    name: str = "trace-doctor"
    version: str = ""
    options: dict[str, Any] = {}
    """What was chosen beyond the defaults, from wherever it came."""


class Source(Struct, frozen=True, kw_only=True):
    """A file that went into the report."""

    path: str
    format: str
    rank: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None


class DeviceRow(Struct, frozen=True, kw_only=True):
    """The GPU model and the peaks that numbers are held against."""

    name: str | None = None
    count: int = 0
    peak_flops: dict[str, float] = {}
    """Dense FLOP/s by dtype; empty where the device is unknown."""
    peak_dtype: str | None = None
    """The dtype MFU is held against."""
    memory_bandwidth: float | None = None
    link_bandwidth: float | None = None
    """B/s of one GPU's links to its node, one direction."""
    link: str | None = None
    """What these links are, e.g. NVLink4."""
    pcie_bandwidth: float | None = None
    """B/s of PCIe, one direction, 16 lanes."""
    best_matmul_flops: float | None = None
    """FLOP/s that the best matmul reaches on this device, where someone measured it."""
    basis: str = ""
    """How the device was recognised and how sure that is."""


class Workload(Struct, frozen=True, kw_only=True):
    """Where the FLOPs come from."""

    flops_basis: Literal["model", "metadata", "shapes", "gpu_metrics"] | None = None
    formula: str | None = None
    model_flops_per_step: float | None = None
    """Of one GPU."""
    tokens_per_step: float | None = None
    covered_share: float | None = None
    """Share of the tensor-kernel time whose FLOPs are known."""
    shape_flops_per_step: float | None = None
    """Of one GPU, by the shapes of the trace: to hold a model's FLOPs against; null where the basis is no model."""
    shape_covered_share: float | None = None
    """Share of the tensor-kernel time whose FLOPs the shapes tell."""


class StepTime(Struct, frozen=True, kw_only=True):
    mean: float | None = None
    median: float | None = None
    min: int | None = None
    max: int | None = None
    p90: float | None = None


class StepDifference(Struct, frozen=True, kw_only=True):
    """A row of a slow step's ledger beside the same row of the median step."""

    wall: Wall
    cause: str
    time_ns: int
    median_ns: int
    """Its time in the median step."""
    name: str | None = None
    """The kernel, op or host range that changed most."""


class Step(Struct, frozen=True, kw_only=True):
    number: int
    start_ns: int
    duration_ns: int
    used: bool = True
    why_not: str | None = None
    median_step: int | None = None
    """Of a slow step: the number of the step it is held against, the one of median length."""
    differences: list[StepDifference] = []
    """Of a slow step: its ledger against the median step's, largest change first; the changes sum to the difference in duration."""


class WindowRow(Struct, frozen=True, kw_only=True):
    rule: str = ""
    start_ns: int = 0
    duration_ns: int = 0
    step_time_ns: StepTime = StepTime()
    steps: list[Step] = []


class Utilisation(Struct, frozen=True, kw_only=True):
    """How much of one resource the GPU used, as a mean over the window."""

    name: Literal["gpu", "tensor", "memory_bandwidth", "pcie", "link", "network"]
    value: float | None = None
    """Share of `limit`, or of the window where there is none."""
    basis: Basis | None = None
    of: str = ""
    """What a value of 1 stands for."""
    rate: float | None = None
    """B/s."""
    limit: float | None = None
    """B/s."""
    why: str | None = None
    """Why the value is null."""


class StepValue(Struct, frozen=True, kw_only=True):
    number: int
    value: float


class Counter(Struct, frozen=True, kw_only=True):
    """One of the GPU's own counters, sampled by Nsight Systems (GPU metrics)."""

    name: str
    """As in docs/reference/nsight.md: sm_active, tensor_active, dram_read, ..."""
    recorded_as: list[str] = []
    """The names in the file; several of one counter are summed."""
    value: float | None = None
    """Mean over the window, as a share of what the hardware can sustain; null where too few samples lie in it."""
    samples: int = 0
    """Of each name."""
    while_memory_bound: float | None = None
    """Mean while kernels ran that do no tensor work: of the DRAM counters the proof for or against the memory wall."""
    steps: list[StepValue] = []
    """Mean over each used step."""


class Metrics(Struct, frozen=True, kw_only=True):
    mfu: float | None = None
    """What is proven: `mfu_low`; null where unknown."""
    mfu_low: float | None = None
    mfu_high: float | None = None
    hfu: float | None = None
    """MFU and recomputation together; where MFU is unknown, what the tensor pipes were active (`tensor_active`)."""
    mfu_by_peak: dict[str, float] = {}
    """MFU against the peak of a faster dtype that did more than a tenth of the tensor FLOPs."""
    achieved_flops: float | None = None
    """Model FLOP/s of one GPU."""
    tokens_per_s: float | None = None
    gpu_utilisation: float | None = None
    """Share of the window in which some activity ran."""
    tensor_share: float | None = None
    memory_bandwidth_utilisation: float | None = None
    pcie_utilisation: float | None = None
    link_utilisation: float | None = None
    communication_overlap: float | None = None
    tensor_active: float | None = None
    """Share of the cycles in which the tensor pipes were active, by the GPU's counters: an upper bound for MFU."""
    utilisations: list[Utilisation] = []
    """The utilisations above, each with what it rests on; those that don't apply (no collectives) are left out."""
    counters: list[Counter] = []
    """What the GPU's own counters say, where Nsight sampled them."""


class Partition(Struct, frozen=True, kw_only=True):
    """The window by what ran; compute + exposed communication + exposed copy + idle = window."""

    compute_ns: int = 0
    communication_ns: int = 0
    exposed_communication_ns: int = 0
    overlapped_communication_ns: int = 0
    exposed_copy_ns: int = 0
    idle_ns: int = 0


class Top(Struct, frozen=True, kw_only=True):
    """One of the largest contributors to a row of the ledger."""

    name: str
    op: str | None = None
    time_ns: int = 0
    count: int = 0
    """As the row, a mean over GPUs."""


class LedgerRow(Struct, frozen=True, kw_only=True):
    wall: Wall
    cause: str
    time_ns: int
    share: float
    mfu_points: float
    """100 x share: what this cause costs in MFU."""
    basis: Basis
    top: list[Top] = []
    """The kernels, ops or host ranges that hold most of it."""
    per_step_ns: list[int] = []
    """What it took in each used step, in their order; of the report's own ledger only, and empty without steps or with very many."""


class Scope(Struct, frozen=True, kw_only=True):
    ranks: list[int] = []
    steps: list[int] = []


class Evidence(Struct, frozen=True, kw_only=True):
    kind: str
    name: str
    rank: int | None = None
    step: int | None = None
    start_ns: int | None = None
    duration_ns: int | None = None
    count: int | None = None
    numbers: dict[str, float] = {}


class Fix(Struct, frozen=True, kw_only=True):
    summary: str
    code: str | None = None
    """A snippet for the framework that the trace shows."""
    language: Literal["python", "shell", "json"] | None = None
    """What the snippet is written in; null where there is none."""
    framework: str | None = None
    """Which framework the snippet is for."""
    risk: str | None = None
    verify: str | None = None
    """How to see that it helped."""
    doc: str | None = None
    """The page of the rule."""


class Predicted(Struct, frozen=True, kw_only=True):
    step_time_ns: float | None = None
    mfu: float | None = None
    saved_ns_low: float | None = None
    saved_ns_high: float | None = None
    money_per_day: float | None = None


class Finding(Struct, frozen=True, kw_only=True):
    code: str
    title: str
    wall: Wall
    cause: str
    severity: Literal["error", "warning", "info"]
    confidence: str
    lost_ns: int
    """Per step."""
    mfu_points: float
    scope: Scope = Scope()
    evidence: list[Evidence] = []
    fix: Fix | None = None
    predicted: Predicted = Predicted()


class Span(Struct, frozen=True, kw_only=True):
    start_ns: int = 0
    duration_ns: int = 0


class Counts(Struct, frozen=True, kw_only=True):
    """Inside the window."""

    kernels: int = 0
    """Communication included."""
    communication_kernels: int = 0
    copies: int = 0
    launches: int = 0
    graph_launches: int = 0
    synchronisations: int = 0
    mallocs: int = 0
    frees: int = 0


class MemoryPoint(Struct, frozen=True, kw_only=True):
    """What the caching allocator held at one time."""

    at_ns: int
    allocated_bytes: int | None = None
    """Of tensors."""
    reserved_bytes: int | None = None
    """Of the device."""


class Memory(Struct, frozen=True, kw_only=True):
    """How full the GPU's memory got, by what PyTorch's caching allocator says of itself; null where the trace doesn't tell.

    What others hold (the CUDA context, communicators, other processes) is not in it. Allocations happen on the host's clock: the
    window is here the time in which its work was launched.
    """

    capacity_bytes: int | None = None
    """Of the device, as the profiler reports it."""
    peak_allocated_bytes: int | None = None
    """Most that tensors held in the window."""
    peak_reserved_bytes: int | None = None
    """Most that the allocator held of the device in the window."""
    share: float | None = None
    """`peak_reserved_bytes` of the capacity."""
    resident_bytes: int | None = None
    """Least that tensors held in the window: parameters, states of the optimizer."""
    fragmented_bytes: int | None = None
    """Reserved but in no tensor when tensors held most."""
    room_bytes: int | None = None
    """What tensors could hold beyond their peak, a tenth of the device left to others and to fragmentation; estimated."""
    file_peak_allocated_bytes: int | None = None
    """The peaks of the whole file, start-up included."""
    file_peak_reserved_bytes: int | None = None
    mallocs: int = 0
    """Calls of the driver for memory of the device in the window, by the process."""
    frees: int = 0
    retries: int | None = None
    """Releases that an allocation of the same op follows at once: the allocator found the device full; null without host ops."""
    events: int = 0
    """Recorded levels in the file."""
    timeline: list[MemoryPoint] = []
    """The levels over the whole file; of more than 200, the highest in each of 200 groups of neighbours. In `gpus[]` alone."""
    basis: Basis | None = None
    """Of the levels and the peaks."""


class Gpu(Struct, frozen=True, kw_only=True):
    rank: int | None = None
    process: str | None = None
    device: str = ""
    source: str = ""
    name: str | None = None
    window: Span = Span()
    partition: Partition = Partition()
    ledger: list[LedgerRow] = []
    counts: Counts = Counts()
    step_time_ns: StepTime = StepTime()
    metrics: Metrics = Metrics()
    memory: Memory | None = None
    """Null where the trace has neither memory events nor allocator calls in the window."""
    median_gpu: int | None = None
    """Of a GPU that works longer than the others: the position in `gpus` of the one it is held against, of median own work."""
    differences: list[StepDifference] = []
    """Of such a GPU: its ledger against that of the median GPU, per step, largest change first."""


class Spread(Struct, frozen=True, kw_only=True):
    median: float | None = None
    p95: float | None = None


class Collective(Struct, frozen=True, kw_only=True):
    name: str
    group: str | None = None
    ranks: list[int] = []
    group_size: int | None = None
    count: int = 0
    message_bytes: int | None = None
    duration_ns: Spread = Spread()
    exposed_ns: int | None = None
    wait_ns: int | None = None
    bus_bandwidth: float | None = None
    algorithm_bandwidth: float | None = None
    expected_bus_bandwidth: float | None = None


class KernelRow(Struct, frozen=True, kw_only=True):
    """Kernels, copies and collectives of one name (or op, module, annotation): how long, how much work, how near the roofline."""

    name: str
    family: str | None = None
    """What most of its time is: "gemm", "attention", "elementwise", ..., "communication", "copy"."""
    dtype: str | None = None
    """The dtype most of its tensor time ran in."""
    op: str | None = None
    """The op that launched most of it."""
    count: int = 0
    """On all GPUs together."""
    time_ns: int = 0
    """Exclusive time in the window, mean over GPUs."""
    share: float = 0.0
    """Of the window."""
    duration_ns: Spread = Spread()
    flops: float | None = None
    """Of one launch, mean; null where less than half of the time has known work, as all that follows."""
    bytes: float | None = None
    """Moved at least by one launch, mean."""
    intensity: float | None = None
    """FLOPs per byte."""
    ideal_ns: float | None = None
    """What one launch must take by the device's specification: max(FLOPs / peak of its dtype, bytes / bandwidth)."""
    achieved_flops: float | None = None
    achieved_bandwidth: float | None = None
    efficiency: float | None = None
    """Ideal time / time."""
    best_efficiency: float | None = None
    """The same against what the best matmul was measured to reach on this device; null where nobody measured."""
    bound: Literal["compute", "memory", "latency", "neither"] | None = None
    """The roof it stands under; "latency": too short; "neither": inefficient."""


class Kernels(Struct, frozen=True, kw_only=True):
    """The kernel table, largest time first."""

    group_by: Literal["kernel", "op", "module", "annotation"] = "kernel"
    shown: int = 10
    """How many rows formats for people show."""
    rows: list[KernelRow] = []
    more: int = 0
    """Groups left out of the rows."""
    more_ns: int = 0
    """Their time."""


class Roofline(Struct, frozen=True, kw_only=True):
    """What "below the roofline" keeps for ever and what can be won, mean over GPUs; null where no best matmul was measured."""

    below_ns: int | None = None
    """The row of the ledger."""
    kept_ns: int | None = None
    """What the best measured matmul would lose as well."""
    winnable_ns: int | None = None


class Layer(Struct, frozen=True, kw_only=True):
    """A cause's part of the strip."""

    wall: Wall
    cause: str
    segments: list[int] = []
    """Positions of the segments that it has a part of."""
    time_ns: list[int] = []
    """Its part of each of them."""


class Strip(Struct, frozen=True, kw_only=True):
    """What held one GPU, moment by moment, over one step: segments without gaps, each with its time by cause.

    The step is the used one of median length, of the first GPU. The times of all layers sum to `duration_ns`.
    """

    rank: int | None = None
    device: str = ""
    step: int | None = None
    """Its number; null where there are no steps and this is the whole window."""
    start_ns: int = 0
    duration_ns: int = 0
    merged_below_ns: int | None = None
    """Shorter neighbours are merged into one segment each so long; null where nothing was merged."""
    segment_start_ns: list[int] = []
    """Since `start_ns`; a segment ends where the next one starts."""
    segment_name: list[int] = []
    """Position in `names` of the kernel or host range that holds most of it; of the cause where it has no name."""
    segment_stretches: list[int] = []
    """How many stretches of one name and cause are merged in it."""
    names: list[str] = []
    layers: list[Layer] = []


class Abstained(Struct, frozen=True, kw_only=True):
    code: str
    why: str


class Coverage(Struct, frozen=True, kw_only=True):
    kernels_linked_share: float | None = None
    shapes_share: float | None = None
    """Share of the tensor-kernel time that was launched under an op with recorded shapes."""
    modelled_share: float | None = None
    """Share of the compute-kernel time with known FLOPs or bytes."""
    tables_missing: list[str] = []
    abstained: list[Abstained] = []
    trust: Trust = "good"
    """Below good, idle can't be believed."""
    why: list[str] = []


class Message(Struct, frozen=True, kw_only=True):
    code: str
    message: str


class Report(Struct, frozen=True, kw_only=True):
    """What `analyze` returns and every format shows."""

    schema_version: str = SCHEMA_VERSION
    tool: Tool = Tool()
    sources: list[Source] = []
    device: DeviceRow = DeviceRow()
    workload: Workload = Workload()
    window: WindowRow = WindowRow()
    metrics: Metrics = Metrics()
    partition: Partition = Partition()
    ledger: list[LedgerRow] = []
    findings: list[Finding] = []
    gpus: list[Gpu] = []
    collectives: list[Collective] = []
    kernels: Kernels = Kernels()
    roofline: Roofline = Roofline()
    memory: Memory | None = None
    """Of the GPU whose memory got fullest."""
    strip: Strip | None = None
    counts: Counts = Counts()
    coverage: Coverage = Coverage()
    warnings: list[Message] = []


_NUMBERS = re.compile(rb"\[\n[-+.\d\sEe,]+\]")
"""A list of plain numbers; no string of a JSON document holds a line break."""


def to_json(report: Report, *, indent: int = 2) -> bytes:
    """The report as one JSON document, lists of numbers in one line each."""
    lines = msgspec.json.format(msgspec.json.encode(report), indent=indent)
    return (
        _NUMBERS.sub(lambda found: b"[" + b", ".join(found[0][1:-1].replace(b",", b"").split()) + b"]", lines) + b"\n"
    )


def from_json(text: bytes | str) -> Report:
    """Read a report back; raises msgspec.ValidationError where it is none."""
    return msgspec.json.decode(text, type=Report)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the report, generated from the types."""
    return msgspec.json.schema(Report)
