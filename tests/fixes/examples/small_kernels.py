"""The small-kernel wall."""

from __future__ import annotations

from tests.fixes.build import fires, spares
from tests.simulator import US, Run, work
from tests.simulator.programs import MATMUL


# a launch every 9 us, a kernel of 2 us; before the first one the call and its latency
@fires("launch-bound", lost_ns=9 * (9 - 2) * US + (5 + 3) * US)
@fires("short-kernels", lost_ns=10 * 2 * US)
def small_kernels_one_by_one(run: Run) -> None:
    with run.step():
        for _ in range(10):
            run.do(work.add([8], duration_ns=2 * US))


@spares("launch-bound")
@spares("short-kernels")
def large_kernels_one_by_one(run: Run) -> None:
    with run.step():
        for _ in range(12):
            run.do(MATMUL)
