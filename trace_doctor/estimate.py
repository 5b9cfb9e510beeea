"""What `trace-doctor mfu` is told of a run, and what it answers: the artefact that its text and JSON are drawn from.

Shares are 0 to 1, rates in base units per second, times in seconds. Unknown is null. New fields get defaults; nothing is renamed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trace_doctor.report import SCHEMA_VERSION, DeviceRow, Message, Struct, Tool

Recompute = Literal["none", "selective", "full"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers; the CLI's flags by the same names."""

    model: str | None = None
    """A model file: TOML, or a Hugging Face config.json."""
    params: float | None = None
    active_params: float | None = None
    sequence_length: int | None = None
    """Tokens of one sample."""
    tokens_per_step: float | None = None
    """Of the whole job."""
    batch_size: float | None = None
    """Samples of one step of the whole job."""
    step_time: float | None = None
    """Seconds."""
    tokens_per_second: float | None = None
    """Of the whole job; null: tokens of a step by its time."""
    per_gpu: bool = False
    """Whether tokens_per_second is of one GPU."""
    gpus: int = 1
    dtype: str = "bf16"
    """What the matmuls run in."""
    convention: str | None = None
    """A name of work/conventions.toml; null: the default."""
    recompute: Recompute | None = None
    """Activations computed again in the backward pass; null: not known."""
    lora_rank: int | None = None
    train_tokens: float | None = None
    price: float | None = None
    """Money for one GPU for an hour."""


class ModelRow(Struct, frozen=True, kw_only=True):
    """The model that FLOPs are counted for."""

    name: str
    parameters: float
    active_parameters: float
    sequence: int | None = None
    """Tokens of one sample; null where only parameters are known."""
    notes: tuple[str, ...] = ()
    """What had to be assumed."""


class ConventionRow(Struct, frozen=True, kw_only=True):
    """How FLOPs are counted."""

    name: str
    formula: str
    source: str
    note: str = ""


class FlopsPart(Struct, frozen=True, kw_only=True):
    """FLOPs of one kind of work."""

    name: str
    forward_per_token: float
    backward_per_token: float
    share: float
    """Of the model FLOPs."""


class Flops(Struct, frozen=True, kw_only=True):
    """Model FLOPs, forward and backward."""

    per_token: float
    per_step: float | None = None
    """Of the whole job."""
    recomputed_per_token: float | None = None
    """What activation recomputation adds for the hardware; null where it isn't known whether there is any."""
    parts: tuple[FlopsPart, ...] = ()


class Throughput(Struct, frozen=True, kw_only=True):
    """How fast the run is."""

    gpus: int = 1
    tokens_per_step: float | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    flops_per_s_per_gpu: float | None = None
    """Model FLOPs, without recomputed ones."""


class ByConvention(Struct, frozen=True, kw_only=True):
    """The same run by another convention."""

    name: str
    flops_per_token: float
    mfu: float | None = None


class Training(Struct, frozen=True, kw_only=True):
    """What it takes to train on so many tokens at this speed."""

    tokens: float
    days: float
    gpu_hours: float
    cost: float | None = None
    """In the currency of the price."""


class Estimate(Struct, frozen=True, kw_only=True):
    """MFU of a run from its model and its throughput."""

    schema_version: str = SCHEMA_VERSION
    tool: Tool = Tool()
    model: ModelRow
    device: DeviceRow = DeviceRow()
    dtype: str = "bf16"
    recompute: Recompute | None = None
    convention: ConventionRow
    flops: Flops
    throughput: Throughput = Throughput()
    mfu: float | None = None
    hfu: float | None = None
    """MFU and what is computed again; null where it isn't known whether anything is."""
    mfu_by_peak: dict[str, float] = msgspec.field(default_factory=dict)
    """Against the dense peak of the dtype that the matmuls run in, where that is not the one MFU is held against."""
    conventions: tuple[ByConvention, ...] = ()
    training: Training | None = None
    warnings: tuple[Message, ...] = ()


def to_json(estimate: Estimate, *, indent: int = 2) -> bytes:
    """The estimate as one JSON document."""
    return msgspec.json.format(msgspec.json.encode(estimate), indent=indent) + b"\n"
