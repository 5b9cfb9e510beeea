"""The communication wall: collectives that nothing hides, and why."""

from __future__ import annotations

from tests.fixes.build import fires, spares
from tests.simulator import MS, US, Run, work
from tests.simulator.machine import COMMUNICATION, COMPUTE, COPYING
from tests.simulator.programs import MATMUL, MATMUL_NS, eight

# 2 x 7/8 x 53.69 MB take 208.8 us at 450 GB/s
LARGE = 26_844_554


def sixteen() -> Run:
    """A rank of two nodes."""
    return Run(rank=0, world_size=16)


def all_reduce(run: Run, duration_ns: int, elements: int = LARGE, *, ranks: int = 8, group: str = "0") -> None:
    """An all-reduce that the next compute waits for."""
    run.collective(work.collective("allreduce", elements, duration_ns=duration_ns, ranks=ranks, group=group))
    run.order(COMPUTE, after=COMMUNICATION)


def between_matmuls(run: Run, *durations_ns: int, elements: int = LARGE) -> None:
    """A step of all-reduces that nothing hides."""
    with run.step():
        run.do(MATMUL)
        for duration_ns in durations_ns:
            all_reduce(run, duration_ns, elements)
            run.do(MATMUL)


# ---- pipeline parallelism


@fires("pipeline-bubble", lost_ns=700 * US, made=eight)
@spares("exposed-communication", made=eight)
def a_stage_waits_for_its_input(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("recv", 1_000_000, duration_ns=700 * US))
        run.order(COMPUTE, after=COMMUNICATION)
        run.do(MATMUL)


@spares("pipeline-bubble", made=eight)
def the_next_input_comes_beside_compute(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("recv", 1_000_000, duration_ns=150 * US))
        run.do(MATMUL)
        run.order(COMPUTE, after=COMMUNICATION)
        run.do(MATMUL)


# ---- the stream


@fires("communication-on-compute-stream", lost_ns=MS, made=eight)
def collectives_share_the_compute_stream(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("allreduce", LARGE, duration_ns=MS), stream=COMPUTE)
        run.do(MATMUL)


@spares("communication-on-compute-stream", made=eight)
def a_few_small_kernels_run_on_the_stream_of_the_collectives(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        all_reduce(run, MS)
        run.do(work.add([8], duration_ns=2 * US), stream=COMMUNICATION)
        run.do(MATMUL)


# ---- gradient accumulation


def micro_batches(run: Run, *, reduced: tuple[bool, ...], in_forward: bool = False) -> None:
    """Forward passes of DDP, some with the gradients all-reduced, before one step of the optimizer."""
    with run.step():
        for is_reduced in reduced:
            with run.range("DistributedDataParallel.forward", "user_annotation"):
                run.do(MATMUL)
                if is_reduced and in_forward:
                    all_reduce(run, 250 * US)
                run.do(MATMUL)
            with run.backward("MmBackward0"):
                run.do(MATMUL)
                if is_reduced:
                    all_reduce(run, 250 * US)
        with run.range("Optimizer.step#AdamW.step", "user_annotation"):
            run.do(work.adamw([[4096, 4096]]))


# one of two reductions would do
@fires("all-reduce-every-micro-batch", lost_ns=250 * US, made=eight)
def two_micro_batches_reduce_their_gradients(run: Run) -> None:
    micro_batches(run, reduced=(True, True))


# three of four would not be needed
@fires("all-reduce-every-micro-batch", lost_ns=3 * 250 * US, made=eight)
def four_micro_batches_reduce_their_gradients(run: Run) -> None:
    micro_batches(run, reduced=(True,) * 4)


@spares("all-reduce-every-micro-batch", made=eight)
def only_the_last_micro_batch_reduces(run: Run) -> None:
    micro_batches(run, reduced=(False, True))


@spares("all-reduce-every-micro-batch", made=eight)
def one_batch_reduces_its_gradients(run: Run) -> None:
    micro_batches(run, reduced=(True,))


@spares("all-reduce-every-micro-batch", made=eight)
def tensor_parallelism_reduces_activations(run: Run) -> None:
    micro_batches(run, reduced=(True, True), in_forward=True)


# ---- waiting


def late_then_together(run: Run, *durations_ns: int) -> None:
    """After each collective the host pauses while the GPU is idle."""
    with run.step():
        for duration_ns in durations_ns:
            run.do(MATMUL)
            all_reduce(run, duration_ns)
            # 9 us after the matmul's op; its kernel starts 2 us after that, and the collective 1 us after the kernel
            run.host((2 + 1 - 9) * US + MATMUL_NS + duration_ns)
            run.host(300 * US)
        run.do(MATMUL)


# 3 us of dispatch, a launch of 5 us and a start of 3 us before each matmul that a collective follows, twice after a pause
LATE_NS = 3 * (3 + 5 + 3) * US + 2 * 300 * US


@fires("late-at-collectives", lost_ns=LATE_NS, made=eight)
def this_rank_comes_last(run: Run) -> None:
    late_then_together(run, 250 * US, 250 * US, 250 * US)


@spares("late-at-collectives", made=eight)
def another_rank_comes_later_still(run: Run) -> None:
    late_then_together(run, 250 * US, MS, MS)


# all that is exposed of the group, its fast instance too
@fires("waiting-for-ranks", lost_ns=2_250 * US, made=eight)
@spares("slow-link", made=eight)
@spares("exposed-communication", made=eight)
def the_same_collective_is_fast_elsewhere(run: Run) -> None:
    between_matmuls(run, 250 * US, MS, MS)


@spares("waiting-for-ranks", made=eight)
def every_instance_takes_as_long(run: Run) -> None:
    between_matmuls(run, MS, MS, MS)


# ---- the link

# 93.95 MB on the wire in 1 ms are 94 GB/s, below 60 % of the link's 450


@fires("slow-link", lost_ns=3 * MS, made=eight)
@spares("exposed-communication", made=eight)
def large_collectives_reach_a_fifth_of_the_link(run: Run) -> None:
    between_matmuls(run, MS, MS, MS)


# 93.95 MB in 250 us are 376 GB/s
@spares("slow-link", made=eight)
@fires("exposed-communication", lost_ns=3 * 250 * US, made=eight)
def large_collectives_reach_the_links_speed(run: Run) -> None:
    between_matmuls(run, 250 * US, 250 * US, 250 * US)


# 2 x 15/16 x 53.69 MB in 20 ms are 5 GB/s, below the 12.5 of a 100 Gbit/s network
@fires("slow-link", lost_ns=2 * 20 * MS, made=sixteen)
def a_network_of_forty_gigabits(run: Run) -> None:
    with run.step():
        for _ in range(2):
            run.do(MATMUL)
            all_reduce(run, 20 * MS, ranks=16)
        run.do(MATMUL)


# 4 ms: 25 GB/s
@spares("slow-link", made=sixteen)
def a_network_of_two_hundred_gigabits(run: Run) -> None:
    with run.step():
        for _ in range(2):
            run.do(MATMUL)
            all_reduce(run, 4 * MS, ranks=16)
        run.do(MATMUL)


# ---- sizes


def small_ones(run: Run, count: int, elements: int) -> None:
    """Collectives of 20 us, one after the other."""
    with run.step():
        run.do(MATMUL)
        for _ in range(count):
            run.collective(work.collective("allreduce", elements, duration_ns=20 * US))
        run.order(COMPUTE, after=COMMUNICATION)
        run.do(MATMUL)


@fires("small-collectives", lost_ns=24 * 20 * US, made=eight)
@spares("exposed-communication", made=eight)
def many_small_collectives(run: Run) -> None:
    small_ones(run, 24, 10_000)


@spares("small-collectives", made=eight)
@fires("exposed-communication", lost_ns=10 * 20 * US, made=eight)
def a_few_small_collectives(run: Run) -> None:
    small_ones(run, 10, 10_000)


@spares("small-collectives", made=eight)
def many_collectives_of_megabytes(run: Run) -> None:
    small_ones(run, 24, 1_000_000)


# ---- overlap


@spares("exposed-communication", made=eight)
def seven_matmuls_hide_the_collective(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("allreduce", LARGE, duration_ns=MS))
        for _ in range(7):
            run.do(MATMUL)


# ---- copies between GPUs


@fires("peer-copies", lost_ns=300 * US)
def the_next_gpu_gets_its_input_by_a_copy(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("PtoP", 100_000_000, duration_ns=300 * US))
        run.do(MATMUL)


@spares("peer-copies")
def the_copy_runs_beside_compute(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("PtoP", 30_000_000, duration_ns=100 * US), stream=COPYING)
        run.do(MATMUL)
