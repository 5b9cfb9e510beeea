"""The host wall."""

from __future__ import annotations

from tests.fixes.build import fires, spares
from tests.simulator import US, Run
from tests.simulator.programs import MATMUL, matmul_until_idle

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@fires("input-pipeline", lost_ns=500 * US)
def batches_come_late(run: Run) -> None:
    with run.step():
        matmul_until_idle(run)
        with run.doing("input pipeline", LOADER):
            run.host(500 * US)
        run.do(MATMUL)


@spares("input-pipeline")
def batches_are_there_before_the_gpu_is_done(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        with run.doing("input pipeline", LOADER):
            run.host(150 * US)
        run.do(MATMUL)
