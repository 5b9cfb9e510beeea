"""Advice that would not pay is not given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixes.build import findings, ran
from tests.simulator import MS, US, Run, simulate, work
from tests.simulator.machine import COMMUNICATION, COMPUTE, COPYING
from tests.simulator.programs import MATMUL
from trace_doctor.report import Finding


def advice(found: dict[str, Finding]) -> str:
    """All that a run is told to do."""
    return "\n".join(f"{one.title} {one.fix.summary} {one.fix.code}" for one in found.values() if one.fix)


def test_no_fewer_waits_where_the_gpu_is_busy_anyway() -> None:
    def waits_on_a_side_stream(run: Run) -> None:
        for _ in range(3):
            with run.step():
                for _ in range(6):
                    run.do(MATMUL)
                run.launch(work.copy("DtoH", 2), stream=COPYING)
                run.synchronise("cudaStreamSynchronize", COPYING)
        run.synchronise("cudaStreamSynchronize", COMPUTE)

    found = findings(ran(waits_on_a_side_stream))
    assert ".item()" not in advice(found)
    assert [one for one in found.values() if one.severity != "info"] == []


def test_no_compilation_where_matmuls_fill_the_time() -> None:
    def matmuls_with_a_norm(run: Run) -> None:
        with run.step():
            for _ in range(20):
                run.do(MATMUL)
            run.do(work.layer_norm([1024], 4096))

    found = findings(ran(matmuls_with_a_norm))
    assert "torch.compile(" not in advice(found)
    assert [one for one in found.values() if one.severity != "info"] == []


def _launches_slowly(run: Run, *, with_graph: bool) -> None:
    with run.step():
        if with_graph:
            run.graph([MATMUL.launches[0]] * 2)
        for _ in range(50):
            run.do(work.add([8], duration_ns=2 * US))


def test_no_graphs_where_there_are_graphs() -> None:
    def without(run: Run) -> None:
        _launches_slowly(run, with_graph=False)

    def with_graph(run: Run) -> None:
        _launches_slowly(run, with_graph=True)

    assert 'mode="reduce-overhead"' in advice(findings(ran(without)))
    found = findings(ran(with_graph))
    assert 'mode="reduce-overhead"' not in advice(found)
    # those of the graph are launched as fast as can be
    assert found["launch-bound"].title == "Launch-bound outside the graphs: 50 kernels a step"


def test_no_more_workers_where_the_copy_is_slow() -> None:
    def slow_copy(run: Run) -> None:
        for _ in range(3):
            with run.step():
                with run.doing("input pipeline", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                    run.host(10 * US)
                run.launch(work.copy("HtoD", 50_000_000, pinned=False, duration_ns=5 * MS), blocking=True)
                run.do(MATMUL)

    found = findings(ran(slow_copy))
    assert next(iter(found)) == "pageable-copy"
    assert "num_workers" not in advice(found)


def test_no_advice_on_communication_for_a_rank_that_waits() -> None:
    def second_rank_is_late(run: Run) -> None:
        for late_ns in (0, 3 * MS, 3 * MS):
            with run.step():
                run.do(MATMUL)
                run.host(late_ns if run.rank else 0)
                run.collective(work.collective("allreduce", 4_000_000, duration_ns=60 * US, ranks=2))
                run.order(COMPUTE, after=COMMUNICATION)
                run.do(MATMUL)

    waiting, _ = simulate(second_rank_is_late, ranks=2)
    found = findings(waiting)
    assert next(iter(found)) == "waiting-for-ranks"
    assert {"exposed-communication", "slow-link", "small-collectives"} & found.keys() == set()
    assert not {"bucket_cap_mb", "NCCL", "verlap"} & {
        word for word in ("bucket_cap_mb", "NCCL", "verlap") if word in advice(found)
    }


@pytest.mark.parametrize(
    ("kernel", "is_advised"),
    [("ncclKernel_AllToAll_RING_LL_Sum_int8_t", True), ("deep_ep::internode_ll::combine", False)],
)
def test_no_deep_ep_where_it_runs(kernel: str, is_advised: bool) -> None:
    def exchanges_tokens(run: Run) -> None:
        with run.step():
            run.do(MATMUL)
            with run.range("nccl:all_to_all", "user_annotation"):
                run.launch(work.Activity(name=kernel, duration_ns=MS, kind="communication"), stream=COMMUNICATION)
            run.order(COMPUTE, after=COMMUNICATION)
            run.do(MATMUL)

    found = findings(ran(exchanges_tokens))
    assert next(iter(found)) == "exposed-communication"
    assert ("use kernels made for it (DeepEP" in advice(found)) == is_advised


def test_kernels_that_were_compiled_are_not_told_to_be_compiled() -> None:
    eager = work.add([4096, 4096], duration_ns=60 * US)
    compiled = replace(eager, launches=(replace(eager.launches[0], name="triton_poi_fused_add_0"),))

    def slow(op: work.Op) -> Finding:
        def program(run: Run) -> None:
            with run.step():
                run.do(op)

        return findings(ran(program))["poor-access-pattern"]

    for finding, snippet in ((slow(eager), "torch.compile(model)"), (slow(compiled), "coordinate_descent_tuning")):
        assert finding.fix is not None
        assert snippet in str(finding.fix.code)
