"""The small-kernel wall."""

from __future__ import annotations

from dataclasses import replace

from tests.fixes.build import fires, spares
from tests.simulator import US, Run, work
from tests.simulator.programs import MATMUL, MATMUL_NS

SMALL = work.add([8], duration_ns=2 * US)


# a launch every 9 us, a kernel of 2 us; before the first one the call and its latency
@fires("launch-bound", lost_ns=9 * (9 - 2) * US + (5 + 3) * US)
@fires("short-kernels", lost_ns=10 * 2 * US)
@spares("cuda-graphs")
def small_kernels_one_by_one(run: Run) -> None:
    with run.step():
        for _ in range(10):
            run.do(SMALL)


@spares("launch-bound")
@spares("short-kernels")
def large_kernels_one_by_one(run: Run) -> None:
    with run.step():
        for _ in range(20):
            run.do(MATMUL)


@spares("short-kernels")
def kernels_of_25_us_in_a_full_queue(run: Run) -> None:
    with run.step():
        for _ in range(100):
            run.do(work.mm(2048, 2048, 2048))


# in each of two steps nine gaps of 7 us; before the first kernel of the first its call and latency, and of the second
# what is left of the 9 us between launches
@fires("cuda-graphs", lost_ns=((9 * 7 + 8) + (9 * 7 + 7)) * US // 2)
@spares("launch-bound")
def the_same_small_kernels_in_each_step(run: Run) -> None:
    for _ in range(2):
        with run.step():
            for _ in range(10):
                run.do(SMALL)


@spares("cuda-graphs")
def other_kernels_in_each_step(run: Run) -> None:
    for number in range(2):
        with run.step():
            for _ in range(10 + number):
                run.do(SMALL)


@spares("cuda-graphs")
def other_grids_in_each_step(run: Run) -> None:
    for blocks in (1, 2):
        with run.step():
            for _ in range(10):
                run.do(replace(SMALL, launches=(replace(SMALL.launches[0], grid=(blocks, 1, 1)),)))


@spares("cuda-graphs")
def small_kernels_beside_a_graph(run: Run) -> None:
    for _ in range(2):
        with run.step():
            run.graph([MATMUL.launches[0]] * 2)
            run.host(2 * MATMUL_NS)
            for _ in range(10):
                run.do(SMALL)


def _two_regions(run: Run, first: str, second: str) -> None:
    with run.step():
        with run.range(f"Torch-Compiled Region: {first}"):
            run.do(MATMUL)
        run.host(MATMUL_NS + 300 * US)
        with run.range(f"Torch-Compiled Region: {second}"):
            run.do(MATMUL)


# the host is between the regions for as long as the kernel runs and 300 us more
@fires("graph-breaks", lost_ns=300 * US)
def python_breaks_the_graph(run: Run) -> None:
    _two_regions(run, "0/0", "1/0")


@spares("graph-breaks")
def one_compiled_function_is_called_twice(run: Run) -> None:
    _two_regions(run, "0/0", "0/0")


@spares("graph-breaks")
def functions_that_were_compiled_apart(run: Run) -> None:
    _two_regions(run, "3/0", "1/0")


@spares("graph-breaks")
def one_region_follows_another_at_once(run: Run) -> None:
    with run.step():
        for number in range(10):
            with run.range(f"Torch-Compiled Region: {number}/0"):
                run.do(MATMUL)
