"""The discrete-event model: numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from tests.simulator import MS, US, Run, simulate
from tests.simulator.machine import COMMUNICATION, COMPUTE, QUEUE_DEPTH
from tests.simulator.work import Activity, collective

KERNEL = Activity(name="kernel", duration_ns=100 * US, kind="compute")


def starts(run: Run) -> list[int]:
    return [ran.start_ns for ran in run.ran]


def test_kernel_starts_when_its_launch_is_through() -> None:
    run = Run(now_ns=0)
    run.launch(KERNEL)
    assert starts(run) == [(5 + 3) * US]


def test_queued_kernels_follow_each_other() -> None:
    run = Run(now_ns=0)
    for _ in range(3):
        run.launch(KERNEL)
    assert starts(run) == [8 * US, 109 * US, 210 * US]
    assert run.now_ns == 15 * US


def test_streams_run_beside_each_other_unless_ordered() -> None:
    run = Run(now_ns=0)
    run.launch(KERNEL, stream=COMPUTE)
    run.launch(KERNEL, stream=30)
    run.order(31, after=COMPUTE)
    run.launch(KERNEL, stream=31)
    assert starts(run) == [8 * US, 13 * US, 109 * US]


def test_wait_returns_after_the_last_kernel() -> None:
    run = Run(now_ns=0)
    run.launch(KERNEL)
    run.synchronise()
    assert run.now_ns == (8 + 100 + 6) * US
    run.synchronise()
    assert run.now_ns == (8 + 100 + 6 + 2) * US


def test_full_queue_blocks_the_launch() -> None:
    run = Run(now_ns=0)
    for _ in range(QUEUE_DEPTH + 2):
        run.launch(replace(KERNEL, duration_ns=10 * MS))
    before, last = run.calls[-2:]
    assert before.end_ns - before.start_ns == 5 * US
    assert last.end_ns == run.ran[1].start_ns == 10 * MS + 9 * US


def test_collective_ends_when_the_last_rank_has_come() -> None:
    def program(run: Run) -> None:
        with run.step():
            run.host(300 * US if run.rank == 1 else 0)
            run.collective(collective("allreduce", 1_000_000, duration_ns=200 * US, ranks=2))
            run.order(COMPUTE, after=COMMUNICATION)
            run.launch(KERNEL)
            run.collective(collective("allreduce", 1_000_000, duration_ns=200 * US, ranks=2))

    first, second = simulate(program, ranks=2)
    durations = [[ran.end_ns - ran.start_ns for ran in run.ran] for run in (first, second)]
    assert durations == [[500 * US, 100 * US, 200 * US], [200 * US, 100 * US, 200 * US]]
    assert [ran.end_ns for ran in first.ran] == [ran.end_ns for ran in second.ran]
