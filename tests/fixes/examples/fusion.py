"""Chains of kernels that pass tensors on through memory."""

from __future__ import annotations

from tests.fixes.build import fires, spares
from tests.simulator import Run, work
from tests.simulator.programs import MATMUL

SHAPE = [4096, 4096]
# one tensor of 4096^2 elements of 2 bytes at 3.35 TB/s: 10 016 ns to write and as long to read
PASSED_NS = 2 * 1e9 * 2 * 4096**2 / 3.35e12


# gelu takes the sum, the next sum takes its result: two tensors are passed on
@fires("fusable-chain", lost_ns=round(2 * PASSED_NS))
def three_pointwise_kernels_in_a_row(run: Run) -> None:
    with run.step():
        run.do(work.add(SHAPE))
        run.do(work.gelu(SHAPE))
        run.do(work.add(SHAPE))
        run.do(MATMUL)


@fires("fusable-chain", lost_ns=round(PASSED_NS))
def a_sum_and_the_norm_of_it(run: Run) -> None:
    with run.step():
        run.do(work.add(SHAPE))
        run.do(work.layer_norm(SHAPE[:-1], SHAPE[-1]))


@spares("fusable-chain")
def a_matmul_between_pointwise_kernels(run: Run) -> None:
    with run.step():
        run.do(work.add(SHAPE))
        run.do(MATMUL)
        run.do(work.gelu(SHAPE))


@spares("fusable-chain")
def neighbours_of_other_shapes(run: Run) -> None:
    with run.step():
        run.do(work.add(SHAPE))
        run.do(work.gelu([2048, 4096]))
