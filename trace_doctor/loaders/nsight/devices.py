"""Which GPU an activity ran on, and what the profiler knows of it.

A kernel's deviceId is the CUDA ordinal inside its process: with one visible GPU a rank, every rank's is 0. So a device is known
by (process, ordinal), unless TARGET_INFO_CUDA_DEVICE (since 2025.1) says which GPU of the machine that is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from trace_doctor.loaders.nsight import tables as export
from trace_doctor.loaders.nsight.tables import Tables
from trace_doctor.trace import DeviceInfo

_GPU = [
    "id", "deviceId", "cuDevice", "pwGpuId", "totalMemory", "memoryBandwidth", "clockRate", "smCount", "computeMajor", "computeMinor",
]  # fmt: skip
_OLD_GPU = [
    "deviceId", "globalMemorySize", "globalMemoryBandwidth", "coreClockRate", "numMultiprocessors",
    "computeCapabilityMajor", "computeCapabilityMinor",
]  # fmt: skip


class Devices(NamedTuple):
    """The GPUs of the file."""

    described: tuple[DeviceInfo, ...]
    numbers: pl.DataFrame
    """owner, device_id, device: position in `described`."""
    by_metrics_id: dict[int, int]
    """Position in `described` by the id that sampled metrics carry."""
    in_machine: int | None
    """GPUs that the profiler lists for the machine."""


def find(tables: Tables, queues: pl.DataFrame) -> Devices:
    """Numbers the devices of the queues (owner, device_id), and describes them."""
    gpus, mapping = _gpus(tables), _mapping(tables)
    pairs = queues.select("owner", "device_id").unique().sort("device_id", "owner", nulls_last=True).rows()
    places: dict[Any, int] = {}
    rows: list[tuple[int, int, int]] = []
    for owner, ordinal in pairs:
        gpu = mapping.get((pid_of(owner), ordinal))
        place = places.setdefault((owner, ordinal) if gpu is None else gpu, len(places))
        rows.append((owner, ordinal, place))
    described = [_info(rows, place, gpus, mapping) for place in range(len(places))]
    schema = {"owner": pl.Int64, "device_id": pl.Int64, "device": pl.UInt16}
    by_id = {gpu: place for gpu, place in places.items() if isinstance(gpu, int)}
    return Devices(
        tuple(info for info, _ in described),
        pl.DataFrame(rows, schema=schema, orient="row"),
        {row["pwGpuId"]: by_id[row["id"]] for row in gpus if row["id"] in by_id and row["pwGpuId"] is not None}
        or {row["pwGpuId"]: place for place, (_, row) in enumerate(described) if row and row["pwGpuId"] is not None},
        len(gpus) or None,
    )


def pid_of(owner: int) -> int:
    """The process id in the high part of a globalPid (the rest names virtual machine and hardware)."""
    return owner & 0xFFFFFF


def _mapping(tables: Tables) -> dict[tuple[int, int], int]:
    """The GPU of the machine for (pid, ordinal)."""
    rows = export.read(tables, export.CUDA_DEVICES, integers=["gpuId", "cudaId", "pid"]).drop_nulls()
    return {(pid, ordinal): gpu for gpu, ordinal, pid in rows.iter_rows()}


def _gpus(tables: Tables) -> list[dict[str, Any]]:
    """NVIDIA's GPUs among the adapters of the machine, older columns by their newer names."""
    rows = export.read(tables, export.GPUS, integers=_GPU, texts=["name"])
    rows = rows.with_columns(id=pl.coalesce("id", "deviceId"), cuDevice=pl.coalesce("cuDevice", "deviceId"))
    old = export.read(tables, export.OLD_GPUS, integers=_OLD_GPU, texts=["name"]).select(
        "name",
        id="deviceId",
        cuDevice="deviceId",
        totalMemory="globalMemorySize",
        # kB/s and kHz there
        memoryBandwidth=1000 * pl.col("globalMemoryBandwidth"),
        clockRate=1000 * pl.col("coreClockRate"),
        smCount="numMultiprocessors",
        computeMajor="computeCapabilityMajor",
        computeMinor="computeCapabilityMinor",
    )
    both = pl.concat([old, rows], how="diagonal").unique("id", keep="first", maintain_order=True)
    others = pl.col("name").str.contains(r"(?i)intel|microsoft|amd|radeon").fill_null(value=False)
    return both.filter(~others).to_dicts()


def _info(
    rows: list[tuple[int, int, int]], place: int, gpus: list[dict[str, Any]], mapping: dict[tuple[int, int], int]
) -> tuple[DeviceInfo, dict[str, Any] | None]:
    owner, ordinal = next((owner, ordinal) for owner, ordinal, at in rows if at == place)
    same_ordinal = {at for _, other, at in rows if other == ordinal}
    label = str(ordinal) if len(same_ordinal) == 1 else f"[{pid_of(owner)}] {ordinal}"
    gpu = _described_by(gpus, mapping.get((pid_of(owner), ordinal)), ordinal)
    if gpu is None:
        return DeviceInfo(label=label, number=ordinal, vendor="nvidia"), None
    major, minor = gpu["computeMajor"], gpu["computeMinor"]
    info = DeviceInfo(
        label=label,
        number=ordinal,
        name=gpu["name"],
        vendor="nvidia",
        memory_bytes=gpu["totalMemory"] or None,
        multiprocessors=gpu["smCount"] or None,
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        memory_bandwidth=float(gpu["memoryBandwidth"]) if gpu["memoryBandwidth"] else None,
        clock_hz=gpu["clockRate"] or None,
    )
    return info, gpu


def _described_by(gpus: list[dict[str, Any]], gpu: int | None, ordinal: int) -> dict[str, Any] | None:
    """The row of a GPU: by its id where that is known, else by its CUDA ordinal, else the only model there is."""
    column, wanted = ("id", gpu) if gpu is not None else ("cuDevice", ordinal)
    fitting = [row for row in gpus if row[column] == wanted]
    if len(fitting) == 1:
        return fitting[0]
    return gpus[0] if gpus and len({row["name"] for row in gpus}) == 1 else None
