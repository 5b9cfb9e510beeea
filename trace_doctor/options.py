"""What the user may choose. Defaults are ATTRIBUTION's."""

from __future__ import annotations

import msgspec


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
    params: float | None = None
    tokens_per_step: float | None = None
    """Tokens of one step of the whole job."""
    world_size: int | None = None
    """GPUs of the job; null: as the trace says, else those in the files."""
    kernel_patterns: str | None = None
    """TOML file whose patterns come before the built-in ones."""
    jobs: int | None = None
    """Worker processes for one large file; null: as many as pay."""
    thresholds: Thresholds = Thresholds()
