"""What the user may choose. Defaults are ATTRIBUTION's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

GroupBy = Literal["kernel", "op", "module", "annotation"]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Ratio = Annotated[float, msgspec.Meta(ge=1)]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the accounting that were read off real traces (ATTRIBUTION sections 2, 4 and 5)."""

    device_gap_ns: int = 20_000
    """A kernel that starts later than this after its launch was not merely launched late."""
    blocked_call_ns: int = 50_000
    """A launch call longer than this was blocked."""
    launch_spacing_ns: int = 200_000
    """Launches closer together than this are one busy host."""
    initialisation_ns: int = 100_000_000
    """An allocator call of this length is the start of the process, not capacity pressure."""
    small_copy_bytes: int = 65_536
    """A device-to-host copy below this is a host reading a value."""
    outlier_ratio: float = 1.25
    """The first step is left out when it is longer than this many medians."""
    floor_ns: int | None = None
    """Duration that no kernel goes below; null: measured in the trace."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """When a loss is worth a finding; shares are of the window. [limits] of the config file, by the same names with hyphens."""

    weighty_share: Share = 0.02
    """Below this a finding is `info`."""
    severe_share: Share = 0.10
    """From this on a finding is an `error`."""
    least_share: Share = 0.005
    """Below this nothing is said."""
    weighty_gaps_share: Share = 0.05
    """The same as `weighty_share` for launch gaps and short kernels: every healthy run has some."""
    outlier_ratio: Ratio = 1.25
    """A step longer than this many medians is an outlier."""
    slow_rank_ratio: Ratio = 1.1
    """A GPU whose step without communication is longer than this many medians is slow."""
    small_message_bytes: Count = 1 << 20
    """A collective below this is bound by latency."""
    large_message_bytes: Count = 16 << 20
    """A collective from this on should reach the bandwidth of its link."""
    slow_link_share: Share = 0.6
    """A large collective below this share of the link's specification is slow."""
    slow_network_bandwidth: Annotated[float, msgspec.Meta(ge=0)] = 12.5e9
    """B/s of bus bandwidth: between nodes a large collective below this is slow (100 Gbit/s)."""
    waiting_ratio: Ratio = 2.0
    """A collective that takes this many times its fastest instance waited for another rank."""
    few_kernels: Count = 50
    """An optimizer or attention of fewer kernels a step is no loop."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Choices for one analysis; the CLI's flags by the same names."""

    device: str | None = None
    peak_flops: float | None = None
    """FLOP/s, dense, of `peak_dtype`."""
    peak_dtype: str | None = None
    memory_bandwidth: float | None = None
    """B/s."""
    steps: str | None = None
    """"2-4" or "3,5": step numbers as the trace names them."""
    all_steps: bool = False
    step_range: str | None = None
    """Prefix or regex of the annotation that is a step."""
    whole_trace: bool = False
    flops_per_step: float | None = None
    """Model FLOPs of one step of the whole job."""
    flops_formula: str | None = None
    """How flops_per_step was counted; null: as given."""
    model: str | None = None
    """Model file whose FLOPs per token make flops_per_step, with tokens_per_step: TOML, or a Hugging Face config.json."""
    sequence_length: int | None = None
    """Tokens of one sequence, as trained; null: as the model fixes it."""
    convention: str | None = None
    """How the model's FLOPs are counted, a name of work/conventions.toml; null: as the shapes are."""
    params: float | None = None
    active_params: float | None = None
    """Of a mixture of experts: parameters that a token passes."""
    tokens_per_step: float | None = None
    """Tokens of one step of the whole job."""
    world_size: int | None = None
    """GPUs of the job; null: as the trace says, else those in the files."""
    gpus: int | None = None
    """GPUs that a post-mortem counts the cost of; null: the world size, else those in the files."""
    gpu_hour_price: float | None = None
    """Money for one GPU and hour, in whatever currency."""
    redact: bool = False
    """Leave paths, hosts, users, stacks, command lines and the user's own names of ranges out of the report."""
    kernel_patterns: str | None = None
    """TOML file whose patterns come before the built-in ones."""
    jobs: int | None = None
    """Worker processes for one large file; null: as many as pay."""
    nsys: str | None = None
    """The program that exports Nsight reports; null: of the environment (NSYS), of the PATH, or where installers put it."""
    thresholds: Thresholds = Thresholds()
    select: tuple[str, ...] = ()
    """Codes of the rules to run, or globs of them; none: all."""
    ignore: tuple[str, ...] = ()
    """Codes of the rules not to run, or globs of them."""
    limits: Limits = Limits()
    top_kernels: int = 10
    """Rows of the kernel table that formats for people show."""
    group_by: GroupBy = "kernel"
    """What a row of the kernel table stands for."""


def chosen(options: msgspec.Struct) -> dict[str, Any]:
    """What differs from the defaults and bears on the result, by name; thresholds and limits as tables of their own."""
    default = type(options)()
    names = [name for name in options.__struct_fields__ if name != "jobs"]
    values = {name: getattr(options, name) for name in names if getattr(options, name) != getattr(default, name)}
    return {name: chosen(value) if isinstance(value, msgspec.Struct) else value for name, value in values.items()}
