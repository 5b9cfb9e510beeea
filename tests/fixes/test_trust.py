"""How remarks on trust are worded."""

from __future__ import annotations

from tests.fixes.build import findings, ran
from tests.fixes.examples.trust import a_queued_kernel_waits
from tests.simulator import US, Run
from tests.simulator.programs import MATMUL, MATMUL_NS, matmul_until_idle


def test_most_of_the_idle_time_is_not_explained() -> None:
    found = findings(ran(a_queued_kernel_waits))["unexplained-idle"]
    # 80 us of 111: 3 us of dispatch, the call, its latency and the 20 us that count as launching are explained
    assert found.title == "Most of the idle time (72%) can't be explained from this file"
    assert "Kernels were queued" in (found.fix.summary if found.fix else "")


def test_part_of_the_idle_time_is_not_explained() -> None:
    def and_python_runs(run: Run) -> None:
        with run.step():
            matmul_until_idle(run)
            run.host(200 * US)
            run.launch(MATMUL.launches[0], delay_ns=99 * US)

    found = findings(ran(and_python_runs))["unexplained-idle"]
    # 82 us of 318: 11 before the first kernel, 200 us of Python, 5 us of the call, 3 + 99 us until the kernel starts
    assert found.title == "Part of the idle time (26%) can't be explained from this file"


def test_a_trace_without_host_events_is_told_apart() -> None:
    def without_a_host(run: Run) -> None:
        with run.step():
            run.unrecorded(MATMUL.launches[0])
            run.host(MATMUL_NS + 300 * US)

    found = findings(ran(without_a_host, lambda: Run(records_host=False)))["unexplained-idle"]
    assert "Kernels were queued" not in (found.fix.summary if found.fix else "")
