"""Rows of several GPUs are means, and so is what holds most of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator import Run, kineto
from tests.simulator.programs import MATMUL
from trace_doctor import analyze


def written(folder: Path, rank: int, matmuls: int) -> Path:
    run = Run(rank=rank, world_size=2)
    with run.step():
        for _ in range(matmuls):
            run.do(MATMUL)
    return kineto.write(run, folder / f"rank{rank}.json")


def test_contributors_of_two_gpus_are_means_as_their_row_is(tmp_path: Path) -> None:
    # 138 911 ns of each matmul are model FLOPs, on 3 and 1 of them: 2 in the mean
    report = analyze([written(tmp_path, 0, 3), written(tmp_path, 1, 1)])
    row = next(row for row in report.ledger if row.wall == "mfu")
    assert (row.time_ns, row.top[0].time_ns, row.top[0].count) == (
        pytest.approx(2 * 138_911, abs=1), pytest.approx(2 * 138_911, abs=1), 2,
    )  # fmt: skip
