"""Utilisations of simulated steps, from the bytes that the program moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulator import MS, Run, kineto, work
from tests.simulator.machine import COPYING
from tests.simulator.programs import MATMUL
from trace_doctor import Report, analyze
from trace_doctor.accounts.utilisations import mean_utilisations
from trace_doctor.report import Utilisation

MATMUL_BYTES = 3 * 2 * 4096**2
ELEMENTS, RANKS = 4_000_000, 8
WIRE_BYTES = 2 * ELEMENTS * 2 * (RANKS - 1) / RANKS


def analysed(folder: Path, program: Callable[[Run], object], run: Run | None = None) -> Report:
    run = run or Run(rank=0, world_size=RANKS)
    with run.step():
        run.do(MATMUL)
        program(run)
        run.synchronise()
    return analyze([kineto.write(run, folder / "trace.json")])


def used(report: Report) -> dict[str, Utilisation]:
    return {utilisation.name: utilisation for utilisation in report.metrics.utilisations}


def copies(run: Run) -> None:
    run.launch(work.copy("HtoD", 30_000_000), stream=COPYING)
    run.launch(work.copy("DtoH", 10_000_000), stream=COPYING)
    run.launch(work.copy("DtoD", 20_000_000), stream=COPYING)
    run.launch(work.memset(5_000_000), stream=COPYING)


def all_reduce(run: Run) -> None:
    run.collective(work.collective("allreduce", ELEMENTS, duration_ns=MS))


def test_memory_bandwidth_counts_kernels_by_shapes_and_copies(tmp_path: Path) -> None:
    report = analysed(tmp_path, copies)
    rate = (MATMUL_BYTES + 30e6 + 10e6 + 2 * 20e6 + 5e6) / (report.window.duration_ns / 1e9)
    row = used(report)["memory_bandwidth"]
    assert (row.rate, row.limit, row.value, row.basis) == (
        pytest.approx(rate), 3.35e12, pytest.approx(rate / 3.35e12), "modelled",
    )  # fmt: skip
    assert report.metrics.memory_bandwidth_utilisation == row.value


def test_pcie_is_measured_in_its_busier_direction(tmp_path: Path) -> None:
    report = analysed(tmp_path, copies)
    rate = 30e6 / (report.window.duration_ns / 1e9)
    row = used(report)["pcie"]
    assert (row.rate, row.limit, row.value, row.basis) == (
        pytest.approx(rate), 63.02e9, pytest.approx(rate / 63.02e9), "measured",
    )  # fmt: skip
    assert report.metrics.pcie_utilisation == row.value


def test_the_link_carries_the_bytes_on_the_wire(tmp_path: Path) -> None:
    report = analysed(tmp_path, all_reduce)
    rate = WIRE_BYTES / (report.window.duration_ns / 1e9)
    row = used(report)["link"]
    assert (row.rate, row.limit, row.value, row.of) == (
        pytest.approx(rate), 450e9, pytest.approx(rate / 450e9), "NVLink4, one direction",
    )  # fmt: skip
    assert report.metrics.link_utilisation == row.value


def test_what_leaves_the_machine_is_the_network_of_unknown_bandwidth(tmp_path: Path) -> None:
    report = analysed(tmp_path, all_reduce, Run(rank=0, world_size=RANKS, node_devices=4))
    row = used(report)["network"]
    assert (row.rate, row.value, row.why) == (
        pytest.approx(WIRE_BYTES / (report.window.duration_ns / 1e9)), None, "its bandwidth is not known",
    )  # fmt: skip
    assert report.metrics.link_utilisation is None


def test_without_collectives_no_link_is_spoken_of(tmp_path: Path) -> None:
    report = analysed(tmp_path, copies)
    assert {"link", "network"} & set(used(report)) == set()
    assert report.metrics.link_utilisation is None


def test_without_shapes_memory_bandwidth_is_unknown(tmp_path: Path) -> None:
    report = analysed(tmp_path, lambda run: None, Run(records_shapes=False))
    row = used(report)["memory_bandwidth"]
    assert (row.value, row.basis, row.rate) == (None, None, None)
    assert row.why == "the bytes of most kernels are not known"


def test_time_shares_are_those_of_the_sweep(tmp_path: Path) -> None:
    report = analysed(tmp_path, all_reduce)
    busy = 1 - report.partition.idle_ns / report.window.duration_ns
    assert (used(report)["gpu"].value, used(report)["gpu"].basis) == (pytest.approx(busy), "measured")
    assert used(report)["tensor"].value == pytest.approx(report.partition.compute_ns / report.window.duration_ns)


def test_means_are_weighted_by_the_windows_and_unknown_where_one_is() -> None:
    busy = [Utilisation(name="gpu", value=0.9), Utilisation(name="link", value=0.3, rate=3e9)]
    idle = [Utilisation(name="gpu", value=0.5), Utilisation(name="pcie", why="not known")]
    # a GPU without collectives used nothing of its link
    assert mean_utilisations([busy, idle], [3, 1]) == [
        Utilisation(name="gpu", value=pytest.approx(0.8)),
        Utilisation(name="link", value=pytest.approx(0.225), rate=pytest.approx(2.25e9)),
        Utilisation(name="pcie", why="not known"),
    ]
