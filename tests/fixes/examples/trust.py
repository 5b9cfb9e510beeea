"""Remarks: what a trace can't tell, and what can't be true."""

from __future__ import annotations

from tests.fixes.build import fires, spares
from tests.simulator import US, Run, work
from tests.simulator.programs import MATMUL


# 20 us after the launch, what holds a kernel back is no launch latency any more
@fires("unexplained-idle", lost_ns=80 * US)
def a_queued_kernel_waits(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(MATMUL.launches[0], delay_ns=99 * US)


@spares("unexplained-idle")
def a_queued_kernel_starts_soon(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(MATMUL.launches[0], delay_ns=19 * US)


@fires("untrusted-trace", lost_ns=0)
def a_matmul_beats_the_peak(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 4096, 4096, efficiency=1.04))


@spares("untrusted-trace")
def a_matmul_comes_near_the_peak(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 4096, 4096, efficiency=1.02))
