"""Numbers for the threads, processes and devices of a file, from the ids that its events carry.

Ids may be numbers or texts. Tools that merge ranks into one file put a label before them: "[TP01] 12345" is process
12345 of rank TP01, "[TP01] 0" its GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from trace_doctor.trace import DeviceInfo, Thread

_LABELLED = re.compile(r"\[[^\]]*\]")
_VENDORS = (  # the first that fits: names of the device, then of the API that the host calls
    ("nvidia", re.compile(r"nvidia|tesla|geforce|quadro|^cu(?:da)?[A-Z]")),
    ("amd", re.compile(r"\bamd\b|radeon|instinct|^hip[A-Z]")),
    ("intel", re.compile(r"intel|^(?:ur|ze)[A-Z]|^zeCommand|^sycl")),
)
_INT64 = 1 << 63
_WARPS = {32: "nvidia", 64: "amd"}


class Host(NamedTuple):
    """The host side of a file."""

    processes: tuple[str, ...]
    threads: tuple[Thread, ...]
    numbers: dict[str, int]
    """Position in threads of each key [pid, tid], as JSON text."""


class Devices(NamedTuple):
    """The GPU side of a file."""

    labels: tuple[str, ...]
    numbers: dict[str, int]
    """Position in labels of each key [pid, device], as JSON text."""
    processes: dict[str, int]
    """Position in the host's processes of each key, where the file tells."""
    ids: dict[str, int | None]
    """The profiler's number of each label."""


def host(working: Iterable[str], others: Iterable[str], names: dict[tuple[Any, Any], str]) -> Host:
    """Numbers threads from keys, JSON texts of [pid, tid]: those that run ops or calls, and those that are only annotated.

    `names` are the profiler's for some of them. The profiler's own pseudo-processes (-1) belong to the process, where there is one.
    """
    working = tuple(working)
    found = {_process(json.loads(key)[0]) for key in working}
    only = found.pop() if len(found) == 1 else None
    ordered = sorted({*working, *others}, key=lambda key: [natural(str(part)) for part in json.loads(key)])
    threads = {key: tuple(json.loads(key)) for key in ordered}
    owners = {pid: only or _process(pid) for pid, _ in threads.values()}
    processes = tuple(dict.fromkeys(owners.values()))
    labelled = (
        Thread(processes.index(owners[pid]), names.get((pid, tid)) or str(tid)) for pid, tid in threads.values()
    )
    return Host(processes, tuple(labelled), {key: number for number, key in enumerate(threads)})


def devices(keys: Iterable[str], of: Host) -> Devices:
    """Numbers the devices of the keys, JSON texts of [pid, device]."""
    found = {key: json.loads(key) for key in keys}
    labels = {key: _device(pid, device) for key, (pid, device) in found.items()}
    ordered = sorted(set(labels.values()), key=natural)
    owners = {key: _owner(pid, of.processes) for key, (pid, _) in found.items()}
    return Devices(
        tuple(ordered),
        {key: ordered.index(label) for key, label in labels.items()},
        {key: owner for key, owner in owners.items() if owner is not None},
        {
            labels[key]: device if isinstance(device, int) else _number(labels[key])
            for key, (_, device) in found.items()
        },
    )


def of_hosts(keys: Iterable[str], found: Devices) -> dict[str, int]:
    """Position in the labels of each key, JSON text of [host pid, device], that names one of the devices."""
    labels = {key: _of_host(*json.loads(key)) for key in keys}
    return {key: found.labels.index(label) for key, label in labels.items() if label in found.labels}


def describe(found: Devices, properties: Any, calls: Iterable[str]) -> tuple[DeviceInfo, ...]:
    """The devices with what the file's `deviceProperties` say of them; `calls` are the names of API calls."""
    listed = [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    by_number = {entry["id"]: entry for entry in listed if type(entry.get("id")) is int}
    api = next((vendor for name in calls if (vendor := _vendor(name))), None)
    return tuple(_info(label, found.ids[label], by_number.get(found.ids[label], {}), api) for label in found.labels)


def rank_of(path: Path) -> int | None:
    """The rank that a file's name tells, as in rank3.json, rank-3_trace.json or worker3_step_12.json."""
    found = re.search(r"(?:rank|worker)[-_.]?(\d{1,9})(?!\d)", path.name, re.IGNORECASE)
    return int(found[1]) if found else None


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key that puts rank10 after rank9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def number(column: pl.Series, numbers: dict[str, int], dtype: type[pl.DataType]) -> pl.Series:
    """The numbers of a column of keys; null for keys without one."""
    return column.replace_strict(list(numbers), list(numbers.values()), default=None, return_dtype=dtype)


def _process(pid: Any) -> str:
    labelled = _LABELLED.match(str(pid))
    return labelled[0] if labelled else str(pid)


def _device(pid: Any, device: Any) -> str:
    return str(pid) if device is None or _LABELLED.match(str(pid)) else str(device)


def _of_host(pid: Any, device: Any) -> str:
    labelled = _LABELLED.match(str(pid))
    return f"{labelled[0]} {device}" if labelled else str(device)


def _owner(pid: Any, processes: tuple[str, ...]) -> int | None:
    if len(processes) == 1:
        return 0
    label = _process(pid)
    return processes.index(label) if label in processes and label.startswith("[") else None


def _number(label: str) -> int | None:
    last = re.search(r"(\d{1,4})\D*$", label)
    return int(last[1]) if last else None


def _info(label: str, number: int | None, properties: dict[str, Any], api: str | None) -> DeviceInfo:
    name = str(properties.get("name") or "").strip() or None
    major, minor = properties.get("computeMajor"), properties.get("computeMinor")
    vendor = (_vendor(name) if name else None) or api or _WARPS.get(_int(properties.get("warpSize")) or 0)
    return DeviceInfo(
        label=label,
        number=number,
        name=name,
        vendor=vendor,
        memory_bytes=_int(properties.get("totalGlobalMem")),
        multiprocessors=_int(properties.get("numSms")) or _int(properties.get("maxComputeUnits")),
        compute_capability=f"{major}.{minor}" if _int(major) is not None and _int(minor) is not None else None,
    )


def _vendor(name: str) -> str | None:
    return next((vendor for vendor, words in _VENDORS if words.search(name) or words.search(name.lower())), None)


def _int(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _INT64 else None
