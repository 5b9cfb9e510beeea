"""Which GPU a trace ran on, and what it could have done: dense peaks and bandwidths, from devices.toml.

An unknown device has no peak: times and walls stay, MFU is null, and `basis` says which flags would give it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

import msgspec

from trace_doctor.errors import UsageError
from trace_doctor.options import Options
from trace_doctor.trace import DeviceInfo

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
FLAGS = "--device NAME, or --peak-flops X with --memory-bandwidth Y"
MEMORY_SHORTFALL = 0.9
"""A driver reports up to a tenth less memory than the label says (reserved pages, ECC kept in GDDR6)."""

SOURCES_SAID = 3
SAME_PEAK = 0.02
"""Data sheets round a peak by up to so much."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A device of devices.toml; units stand in the names, a missing value is unknown."""

    id: str
    names: tuple[str, ...]
    regex: str
    vendor: str
    architecture: str
    compute_capability: str | None = None
    multiprocessors: int | None = None
    memory_gb: tuple[int, ...]
    peak_tflops: dict[str, float]
    memory_gb_s: float | None = None
    link: str
    link_gb_s: float | None = None
    pcie_generation: int | None = None
    best_matmul_tflops: float | None = None
    confidence: str
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()


class _Names(msgspec.Struct, frozen=True):
    patterns: tuple[str, ...]


class _Table(msgspec.Struct, frozen=True):
    shared_names: dict[str, tuple[str, ...]]
    internal_names: _Names
    pcie_gb_s: dict[str, float]
    sources: dict[str, tuple[str, str]]
    """Name of each and where in it."""
    device: tuple[Row, ...]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU could do, as far as it is known: peaks in dense FLOP/s by dtype, bandwidths in B/s."""

    id: str | None
    """Row of devices.toml; null where none was identified."""
    name: str | None
    """As the profiler printed it; the row's own name where it printed none."""
    peaks: dict[str, float] = msgspec.field(default_factory=dict)
    peak_dtype: str | None = None
    """The user's choice; null: the 16-bit peak."""
    memory_bandwidth: float | None = None
    link_bandwidth: float | None = None
    """One direction, all links of the GPU together."""
    link: str | None = None
    """What these links are, e.g. NVLink4."""
    pcie_bandwidth: float | None = None
    """One direction, 16 lanes."""
    best_matmul_flops: float | None = None
    """The best matrix multiplication measured in public, of the 16-bit peak."""
    basis: str
    """How the device was recognised, how sure that is and where the numbers come from."""
    candidates: tuple[str, ...] = ()
    """Rows that the device may be, where more than one fits."""
    near: tuple[str, ...] = ()
    """Rows whose names look like the device's, where none fits."""
    known: bool
    """Whether a row was identified; it may still lack a peak."""


class _Match(NamedTuple):
    row: Row | None
    how: str
    candidates: tuple[Row, ...] = ()


def peak(device: Device, dtype: str | None) -> float | None:
    """Dense peak in FLOP/s of a dtype; null where the device has none or it is unknown."""
    return device.peaks.get(dtype) if dtype else None


def default_peak_dtype(device: Device) -> str | None:
    """The dtype that MFU is held against: the user's choice, else bf16, else fp16 where the GPU has no bf16."""
    if device.peak_dtype:
        return device.peak_dtype
    return next((dtype for dtype in ("bf16", "fp16") if dtype in device.peaks), None)


def catalogue() -> tuple[Row, ...]:
    """All devices of devices.toml, in their order."""
    return _table().device


def identify(info: DeviceInfo, options: Options) -> Device:
    """The device behind a trace's description; the options' device, peak and bandwidth win.

    Raises UsageError where `--device` names no row or several, or where a peak makes no sense.
    """
    _check(options)
    match = _chosen(options.device) if options.device else _recognise(info)
    device = _unknown(info, match) if match.row is None else _known(info, match.row, match.how)
    return _override(device, info, options)


@cache
def _table() -> _Table:
    text = resources.files("trace_doctor.hardware").joinpath("devices.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table)


def _recognise(info: DeviceInfo) -> _Match:
    """By exact name, then by regex in the listed order; a shared or an internal name by the device's properties."""
    name = " ".join((info.name or "").split())
    if any(re.search(pattern, name, re.IGNORECASE) for pattern in _table().internal_names.patterns):
        return _decided(catalogue(), info, f"by its properties, as its name ({name or 'empty'}) says nothing")
    for pattern, ids in _table().shared_names.items():
        if re.search(pattern, name, re.IGNORECASE):
            return _shared(name, ids, info)
    exact = (row for row in catalogue() if name.lower() in (known.lower() for known in row.names))
    similar = (row for row in catalogue() if re.search(row.regex, name, re.IGNORECASE))
    if row := next(exact, None):
        return _Match(row, f"by its name, {name}")
    if row := next(similar, None):
        return _Match(row, f"by its name, {name}, which contains that of {row.id}")
    return _Match(None, f"{name} is not in the table of devices")


def _shared(name: str, ids: tuple[str, ...], info: DeviceInfo) -> _Match:
    """A name that many parts carry: its properties decide only among the parts that are known to carry it."""
    if ids:
        rows = [row for row in catalogue() if row.id in ids]
        return _decided(rows, info, f"by its properties, as several parts are called {name}")
    return _Match(None, f"many parts are called {name}", tuple(row for row in catalogue() if _fits(row, info)))


def _decided(rows: Sequence[Row], info: DeviceInfo, how: str) -> _Match:
    """The one row that the device's properties fit."""
    if len(rows) == len(catalogue()) and not (info.multiprocessors or info.memory_bytes):
        return _Match(None, "nothing is known of the device")
    fitting = tuple(row for row in rows if _fits(row, info))
    if len(fitting) == 1 and info.multiprocessors and info.memory_bytes:
        return _Match(fitting[0], how)
    return _Match(None, f"not told apart {how}", fitting)


def _fits(row: Row, info: DeviceInfo) -> bool:
    """Whether no known property of the device contradicts the row."""
    pairs = (
        (row.vendor, info.vendor),
        (row.compute_capability, info.compute_capability),
        (row.multiprocessors, info.multiprocessors),
    )
    same = all(mine == its for mine, its in pairs if mine is not None and its is not None)
    return same and (info.memory_bytes is None or any(_holds(label, info.memory_bytes) for label in row.memory_gb))


def _holds(label_gb: int, memory_bytes: int) -> bool:
    """Whether a device sold as `label_gb` may report so many bytes: labels are rounded GiB."""
    return MEMORY_SHORTFALL <= memory_bytes / 2**30 / label_gb <= 1.02


def _chosen(wanted: str) -> _Match:
    """The row that `--device` asks for, by id, name, or a fragment that fits exactly one."""
    found = _named(wanted)
    if len(found) == 1:
        return _Match(found[0], f"as chosen with --device {wanted}")
    if found:
        msg = f"{wanted!r} fits several devices: {_listed([row.id for row in found])}"
        raise UsageError(msg, where="--device", hint=f"choose one of them, e.g. --device {found[0].id}")
    msg = f"no device is called {wanted!r}"
    near = ", ".join(_near(wanted)) or "trace-doctor devices lists them all"
    raise UsageError(msg, where="--device", hint=f"near it: {near}; or give --peak-flops and --memory-bandwidth")


def _named(wanted: str) -> list[Row]:
    """Rows called so; else those that hold all words of the fragment, whole words before beginnings of words."""
    text = " ".join(wanted.lower().split())
    exact = [row for row in catalogue() if text in _own_names(row)]
    words = _words(text)
    if exact or not words:
        return exact
    rows = [(row, _words(" ".join((row.id, *row.names)))) for row in catalogue()]
    whole = [row for row, known in rows if words <= known]
    return whole or [row for row, known in rows if all(any(k.startswith(word) for k in known) for word in words)]


def _own_names(row: Row) -> set[str]:
    """The row's id and names in lower case, with and without the vendor, but for names that other parts carry too."""
    shared = re.compile("|".join(_table().shared_names), re.IGNORECASE)
    names = {name.lower() for name in row.names if not shared.search(name)}
    return {row.id, *names, *(re.sub(r"^(nvidia|amd instinct|tesla) ", "", name) for name in names)}


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def _near(name: str) -> tuple[str, ...]:
    """Up to three rows whose names look like it."""
    ids = {known.lower(): row.id for row in catalogue() for known in (row.id, *row.names)}
    close = difflib.get_close_matches(name.lower()[:200], ids, n=5, cutoff=0.6)
    return tuple(dict.fromkeys(ids[known] for known in close))[:3]


def _sources(row: Row) -> str:
    """The first sources of a row by name, and how many there are beside them."""
    names = list(dict.fromkeys(_table().sources[code][0] for code in row.sources))
    more = len(names) - SOURCES_SAID
    return ", ".join(names[:SOURCES_SAID]) + (f" and {more} more" if more > 0 else "")


def _known(info: DeviceInfo, row: Row, how: str) -> Device:
    part = _partition(row, info)
    table = _table()
    scaled = f"; scaled to {info.multiprocessors} of {row.multiprocessors} multiprocessors" if part < 1 else ""
    without = "" if row.peak_tflops else f"; its peak is not known, give {FLAGS}"
    return Device(
        id=row.id,
        name=(info.name or "").strip() or row.names[0],
        peaks={dtype: value * 1e12 * part for dtype, value in row.peak_tflops.items()},
        memory_bandwidth=_scaled(row.memory_gb_s, 1e9 * part),
        link_bandwidth=_scaled(row.link_gb_s, 1e9 * part),
        link=row.link,
        pcie_bandwidth=_scaled(table.pcie_gb_s.get(str(row.pcie_generation)), 1e9),
        best_matmul_flops=_scaled(row.best_matmul_tflops, 1e12 * part),
        basis=f"{row.id}, recognised {how}; confidence {row.confidence}, from {_sources(row)}{scaled}{without}",
        known=True,
    )


def _partition(row: Row, info: DeviceInfo) -> float:
    """The share of the part that the device is: MIG slices say so in their name, compute partitions of AMD are even."""
    mine, whole = info.multiprocessors, row.multiprocessors
    if not mine or not whole or mine >= whole:
        return 1.0
    even = row.vendor == "amd" and whole % mine == 0
    return mine / whole if even or re.search(r"\bMIG\b", info.name or "") else 1.0


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _unknown(info: DeviceInfo, match: _Match) -> Device:
    candidates = tuple(row.id for row in match.candidates)
    near = () if candidates else _near(info.name or "")
    hint = f"; it may be one of {_listed(candidates or near)}" if candidates or near else ""
    return Device(
        id=None,
        name=(info.name or "").strip() or None,
        basis=f"no peak: unknown GPU, {match.how}{hint}; give {FLAGS}",
        candidates=candidates,
        near=near,
        known=False,
    )


def _listed(ids: Sequence[str]) -> str:
    """The first eight, for a sentence."""
    return ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")


def _override(device: Device, info: DeviceInfo, options: Options) -> Device:
    """The user's numbers over the row's, the row's bandwidth over the profiler's."""
    basis, peaks = device.basis, device.peaks
    dtype = options.peak_dtype or ("bf16" if options.peak_flops else None)
    if options.peak_flops and dtype:
        _refuse_sparse(device, options.peak_flops, dtype)
        peaks = {**peaks, dtype: options.peak_flops}
        basis = f"{dtype} peak from --peak-flops; " + (f"otherwise {basis}" if device.known else "unknown GPU")
    elif dtype and peaks and dtype not in peaks:
        msg = f"{device.id} has no known {dtype} peak"
        raise UsageError(msg, where="--peak-dtype", hint=f"choose one of {', '.join(peaks)}, or add --peak-flops")
    bandwidth = options.memory_bandwidth or device.memory_bandwidth or info.memory_bandwidth
    return msgspec.structs.replace(device, peaks=peaks, peak_dtype=dtype, memory_bandwidth=bandwidth, basis=basis)


def _refuse_sparse(device: Device, peak_flops: float, dtype: str) -> None:
    """Raises UsageError for the figure with 2:4 sparsity, twice the dense one: MFU would be halved."""
    dense = device.peaks.get(dtype)
    if dense and abs(peak_flops / (2 * dense) - 1) < SAME_PEAK:
        msg = f"{peak_flops / 1e12:,.4g} TFLOP/s is the {dtype} peak of {device.id} with 2:4 sparsity; dense it is {dense / 1e12:,.4g}"
        raise UsageError(msg, where="--peak-flops", hint="leave --peak-flops out: MFU is held against the dense peak")


def _check(options: Options) -> None:
    """Raises UsageError for a peak or bandwidth that is no positive number, or a dtype that has no name here."""
    for flag, value in (("--peak-flops", options.peak_flops), ("--memory-bandwidth", options.memory_bandwidth)):
        if value is not None and not 0 < value < float("inf"):
            msg = f"{value} is no positive number"
            raise UsageError(msg, where=flag, hint=f"give it in units per second, e.g. {flag} 1e12")
    if options.peak_dtype is not None and options.peak_dtype not in DTYPES:
        msg = f"{options.peak_dtype!r} is no dtype that has a peak"
        raise UsageError(msg, where="--peak-dtype", hint=f"choose one of {', '.join(DTYPES)}")
