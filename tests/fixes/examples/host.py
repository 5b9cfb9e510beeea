"""The host wall, and the allocator: what keeps the host from launching."""

from __future__ import annotations

from tests.fixes.build import Program, fires, spares
from tests.simulator import MS, US, Run, work
from tests.simulator.machine import COMPUTE, COPYING
from tests.simulator.programs import MATMUL, MATMUL_NS, matmul_until_idle

NAMED = {
    "input-pipeline": ("input pipeline", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"),
    "recompilation": ("compilation", "entire_frame_compile", "cpu_op"),
    "checkpoint-in-step": ("checkpoint saving", "save_checkpoint", "user_annotation"),
    "evaluation-in-step": ("evaluation", "evaluate", "user_annotation"),
    "logging-in-step": ("logging", "log_metrics", "user_annotation"),
    "garbage-collection": ("garbage collection", "Python GC", "user_annotation"),
    "profiler-overhead": ("profiler overhead", "Buffer Flush", "overhead"),
}  # fmt: skip


def _exposed(cause: str, name: str, category: str) -> Program:
    def while_the_gpu_is_idle(run: Run) -> None:
        with run.step():
            matmul_until_idle(run)
            with run.doing(cause, name, category):
                run.host(500 * US)
            run.do(MATMUL)

    return while_the_gpu_is_idle


def _hidden(cause: str, name: str, category: str) -> Program:
    def while_the_gpu_is_busy(run: Run) -> None:
        with run.step():
            run.do(MATMUL)
            with run.doing(cause, name, category):
                run.host(MATMUL_NS - 40 * US)
            run.do(MATMUL)

    return while_the_gpu_is_busy


for _code, _how in NAMED.items():
    fires(_code, lost_ns=500 * US)(_exposed(*_how))
    spares(_code)(_hidden(*_how))


@spares("profiler-overhead")
def the_queue_is_full(run: Run) -> None:
    _exposed("", "Command Buffer Full", "overhead")(run)


@fires("start-up-in-window", lost_ns=150 * MS + 400 * US)
def the_process_starts(run: Run) -> None:
    with run.step():
        run.call("cudaMalloc", 400 * US, cause="initialisation")
        matmul_until_idle(run)
        run.call("cudaMalloc", 150 * MS, cause="initialisation")
        run.do(MATMUL)


@fires("allocator", lost_ns=300 * US)
@spares("start-up-in-window")
def the_cache_is_full(run: Run) -> None:
    with run.step():
        matmul_until_idle(run)
        run.call("cudaFree", 200 * US, cause="allocator")
        run.call("cudaMalloc", 100 * US, cause="allocator")
        run.do(MATMUL)


@spares("allocator")
def the_cache_grows_beside_the_gpu(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.call("cudaMalloc", MATMUL_NS - 40 * US, cause="allocator")
        run.do(MATMUL)


@fires("pageable-copy", lost_ns=250 * US)
@spares("exposed-input-copy")
@spares("input-pipeline")
def the_batch_is_pageable(run: Run) -> None:
    with run.step():
        run.launch(work.copy("HtoD", 12_000_000, pinned=False, duration_ns=250 * US), blocking=True)
        run.do(MATMUL)


@fires("exposed-input-copy", lost_ns=250 * US)
@spares("pageable-copy")
def the_batch_is_pinned(run: Run) -> None:
    with run.step():
        run.launch(work.copy("HtoD", 12_000_000, duration_ns=250 * US))
        run.do(MATMUL)


@spares("exposed-input-copy")
def the_next_batch_is_copied_beside_compute(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("HtoD", 12_000_000, duration_ns=150 * US), stream=COPYING)
        run.do(MATMUL)


# step 3 does 5 ms more; five steps share the loss
@fires("outlier-step", lost_ns=5 * MS // 5)
def one_step_pauses(run: Run) -> None:
    for number in range(1, 6):
        with run.step():
            matmul_until_idle(run)
            run.host(5 * MS if number == 3 else 0)


@spares("outlier-step")
def all_steps_pause(run: Run) -> None:
    for _ in range(5):
        with run.step():
            matmul_until_idle(run)
            run.host(5 * MS)


@spares("outlier-step")
def no_step_is_typical(run: Run) -> None:
    for pause_ms in (1, 2, 4):
        with run.step():
            matmul_until_idle(run)
            run.host(pause_ms * MS)


@spares("outlier-step")
def one_step_waits_for_what_the_trace_does_not_tell(run: Run) -> None:
    for number in range(1, 6):
        with run.step():
            run.launch(MATMUL.launches[0], delay_ns=5 * MS if number == 3 else 0)


# of three steps: a copy of 1.2 us each; twice the return from the wait and 3 us of dispatch, and the return at the end
@fires("host-synchronisation", lost_ns=(3 * 1_200 + 2 * (6 + 3) * US + 6 * US) // 3)
def the_loss_is_read_each_step(run: Run) -> None:
    for _ in range(3):
        with run.step():
            run.do(MATMUL)
            run.item()


@spares("host-synchronisation")
def the_host_waits_but_stays_ahead(run: Run) -> None:
    for _ in range(3):
        with run.step():
            for _ in range(6):
                run.do(MATMUL)
            run.launch(work.copy("DtoH", 2), stream=COPYING)
            run.synchronise("cudaStreamSynchronize", COPYING)
    run.synchronise("cudaStreamSynchronize", COMPUTE)


@fires("blocked-launch", lost_ns=30 * US)
def a_launch_takes_long(run: Run) -> None:
    with run.step():
        run.do(MATMUL, call_ns=80 * US)


@spares("blocked-launch")
def a_launch_takes_no_longer_than_some_do(run: Run) -> None:
    with run.step():
        run.do(MATMUL, call_ns=50 * US)


# before each of the two launches 3 us of dispatch
@fires("host-code", lost_ns=400 * US + 2 * 3 * US)
def python_runs_between_launches(run: Run) -> None:
    with run.step():
        matmul_until_idle(run)
        run.host(400 * US)
        run.do(MATMUL)


@spares("host-code")
def python_runs_ahead_of_the_gpu(run: Run) -> None:
    with run.step():
        for _ in range(10):
            run.do(MATMUL)
            run.host(150 * US)
