"""Utilisations beside MFU: what of the time, of the memory bandwidth and of each link was used, and how that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import polars as pl

from trace_doctor.accounts import counters
from trace_doctor.accounts.weights import weighted
from trace_doctor.classifiers.ledger import Analysis
from trace_doctor.classifiers.memory_wall import direction
from trace_doctor.classifiers.timeline import COMMUNICATION, COMPUTE, COPY, IDLE, TENSOR
from trace_doctor.report import Basis, Counter, Utilisation

KNOWN_SHARE = 0.5
"""Bytes known for less than this share of the time say nothing of the whole."""


class Moved(NamedTuple):
    """Bytes moved in the window; null, with the reason, where the trace can't tell."""

    total: float | None
    why: str | None = None


def utilisations_of(analysis: Analysis, sampled: Sequence[Counter] = ()) -> list[Utilisation]:
    """The utilisations of one GPU that apply to it, means over its window; what the GPU's own counters tell is taken from them."""
    window_ns, held = analysis.account.window_ns, analysis.account.timeline.held_ns
    found = [
        Utilisation(name="gpu", value=1 - held[IDLE] / window_ns, basis="measured", of="the time"),
        Utilisation(name="tensor", value=held[TENSOR] / window_ns, basis="measured", of="the time"),
        memory_bandwidth(analysis),
        pcie(analysis),
        *links(analysis),
    ]
    measured = {
        "memory_bandwidth": counters.share(sampled, "dram_read", "dram_write"),
        "link": _busier(sampled, "nvlink_received", "nvlink_sent"),
    }
    return [_measured(one, measured.get(one.name)) for one in found]


def _busier(sampled: Sequence[Counter], *names: str) -> float | None:
    shares = [counters.share(sampled, name) for name in names]
    return max((value for value in shares if value is not None), default=None)


def _measured(one: Utilisation, value: float | None) -> Utilisation:
    """The utilisation as sampled by the GPU's own counters, where it was."""
    if value is None:
        return one
    rate = None if one.limit is None else value * one.limit
    return msgspec.structs.replace(one, value=value, rate=rate, basis="measured", why=None)


def memory_bandwidth(analysis: Analysis) -> Utilisation:
    """Bytes that kernels (by shapes) and copies must at least move, ÷ window ÷ bandwidth of the memory (B/s)."""
    pieces = analysis.account.timeline.pieces
    kernels = pieces.select("class", "bytes_moved", "length_ns", "part").filter(pl.col("class") <= COMPUTE)
    copies = pieces.select("class", "kind", "name", "bytes", "part").filter(pl.col("class") == COPY)
    twice = 1 + ((pl.col("kind") == "copy") & _goes(copies, "d2d")).cast(pl.Int64)  # read and written
    moved = _sum(kernels, pl.col("bytes_moved"), "the bytes of most kernels are not known")
    if moved.total is not None:
        moved = Moved(moved.total + float(copies.select((pl.col("bytes") * twice * pl.col("part")).sum()).item()))
    return _of_link("memory_bandwidth", moved, analysis, analysis.device.memory_bandwidth, "the memory's bandwidth")


def pcie(analysis: Analysis) -> Utilisation:
    """Bytes of the copies between host and GPU, in the busier direction, ÷ window ÷ bandwidth of PCIe (B/s, one direction)."""
    pieces = analysis.account.timeline.pieces.select("kind", "name", "bytes", "length_ns", "part")
    copies = pieces.filter(pl.col("kind") == "copy")
    ways = [
        _sum(copies.filter(_goes(copies, way)), pl.col("bytes"), "the copies' sizes are not recorded")
        for way in ("h2d", "d2h")
    ]
    unknown = next((way for way in ways if way.total is None), None)
    busier = unknown or max(ways, key=lambda way: way.total or 0.0)
    return _of_link(
        "pcie", busier, analysis, analysis.device.pcie_bandwidth, "PCIe, in the busier direction", basis="measured"
    )


def _goes(copies: pl.DataFrame, way: str) -> pl.Series:
    """Whether each copy goes this way, which each distinct name is asked once."""
    names = copies.select(pl.col("name").unique()).filter(direction() == way)["name"]
    return copies["name"].is_in(names.implode(), nulls_equal=True)


def links(analysis: Analysis) -> list[Utilisation]:
    """Bytes that the collectives put on the wire ÷ window, against the links inside the machine; none without collectives.

    Bytes as nccl-tests counts them for the bus bandwidth. What leaves the machine is `network`, whose bandwidth no trace tells.
    """
    pieces, meta, device = analysis.account.timeline.pieces, analysis.trace.meta, analysis.device
    collectives = pieces.select("class", "group_size", "wire_bytes", "length_ns", "part").filter(
        pl.col("class") == COMMUNICATION
    )
    size = pl.col("group_size").fill_null(pl.lit(meta.world_size, pl.Int64))
    stays = (size <= pl.lit(meta.node_devices, pl.Int64)).fill_null(value=True)
    unsized = "the sizes of the collectives are not recorded"
    inside, outside = collectives.filter(stays), collectives.filter(~stays)
    found = []
    if len(inside):
        words = (
            f"{device.link}, one direction" if device.link_bandwidth and device.link else "the links between the GPUs"
        )
        found.append(
            _of_link("link", _sum(inside, pl.col("wire_bytes"), unsized), analysis, device.link_bandwidth, words)
        )
    if len(outside):
        found.append(
            _of_link(
                "network", _sum(outside, pl.col("wire_bytes"), unsized), analysis, None, "the network between machines"
            )
        )
    return found


def _sum(pieces: pl.DataFrame, count: pl.Expr, unknown: str) -> Moved:
    """Sum of a column by the share of each activity inside; null where most of the pieces' time has none."""
    took_ns = float(pieces["length_ns"].sum())
    known_ns = float(pieces.select(pl.col("length_ns").filter(count.is_not_null()).sum()).item())
    if took_ns and known_ns < KNOWN_SHARE * took_ns:
        return Moved(None, unknown)
    return Moved(float(pieces.select((count * pl.col("part")).sum()).item()))


def _of_link(
    name: Literal["memory_bandwidth", "pcie", "link", "network"],
    moved: Moved,
    analysis: Analysis,
    limit: float | None,
    of: str,
    *,
    basis: Basis = "modelled",
) -> Utilisation:
    rate = None if moved.total is None else 1e9 * moved.total / analysis.account.window_ns
    share = None if rate is None or not limit else rate / limit
    value = None if share is None or share > 1 else share
    too_much = (
        None if share is None else f"{share:.3g} x its bandwidth would be needed: the bytes or the bandwidth are wrong"
    )
    why = None if value is not None else moved.why or too_much or "its bandwidth is not known"
    return Utilisation(
        name=name, value=value, basis=None if value is None else basis, of=of, rate=rate, limit=limit, why=why
    )


def mean_utilisations(gpus: Sequence[Sequence[Utilisation]], weights: Sequence[int]) -> list[Utilisation]:
    """Means over GPUs weighted by their windows; null where one of them is unknown."""
    rows = [{one.name: one for one in gpu} for gpu in gpus]
    names = dict.fromkeys(name for row in rows for name in row)
    return [_mean([row.get(name) for row in rows], weights) for name in names]


def _mean(of_gpus: Sequence[Utilisation | None], weights: Sequence[int]) -> Utilisation:
    applying = [one for one in of_gpus if one is not None]
    shown = next((one for one in applying if one.value is None), applying[0])
    # a GPU to which it does not apply used nothing of it
    return msgspec.structs.replace(
        shown,
        value=weighted([0.0 if one is None else one.value for one in of_gpus], weights),
        rate=weighted([0.0 if one is None else one.rate for one in of_gpus], weights),
    )
