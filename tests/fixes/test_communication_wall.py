"""What findings on communication say: words and evidence by collective, worked out by hand."""

from __future__ import annotations

from tests.fixes.build import findings, ran, report_of
from tests.fixes.examples import communication_wall as examples
from tests.simulator import MS, US, Run, work
from tests.simulator.machine import COMMUNICATION, COMPUTE
from tests.simulator.programs import MATMUL, eight


def test_a_slow_link_is_proven_by_its_bandwidth_and_its_worst_instance() -> None:
    run = ran(examples.large_collectives_reach_a_fifth_of_the_link, eight)
    found = findings(run)["slow-link"]
    collective, instance = found.evidence[:2]
    assert found.title == "Exposed communication: all-reduce reaches 94.0 GB/s of bus bandwidth"
    assert (found.wall, found.severity, found.scope.ranks, found.scope.steps) == ("communication", "error", [0], [1])
    # 2 x 7/8 x 53 689 108 bytes in 1 ms
    assert (collective.kind, collective.name, collective.rank) == ("collective", "all-reduce of group 0", 0)
    assert (collective.count, collective.duration_ns) == (3, 3 * MS)
    assert collective.numbers == {"exposed_ms": 3.0, "median_bus_bandwidth_gb_s": 93.96}
    assert (instance.kind, instance.step, instance.duration_ns, instance.count) == ("activity", 1, MS, 3)
    assert instance.name.startswith("record_param_comms / ncclDevKernel_AllReduce")


def test_waiting_says_how_much_of_it_the_fastest_instance_explains() -> None:
    found = findings(ran(examples.the_same_collective_is_fast_elsewhere, eight))["waiting-for-ranks"]
    assert found.title == "Exposed communication: all-reduce of group 0 mostly waits for another rank"
    # two instances of 1 ms took 750 us longer than the fastest: 1.5 of 2.25 ms
    assert found.fix is not None
    assert "67% of this time is waiting" in found.fix.summary
    assert found.fix.summary.startswith("Add the traces of the other ranks")


def test_repeated_reductions_name_the_passes() -> None:
    found = findings(ran(examples.four_micro_batches_reduce_their_gradients, eight))["all-reduce-every-micro-batch"]
    assert found.title == "Exposed communication: gradients are reduced in each of 4 micro-batches"
    assert (found.evidence[0].count, found.evidence[0].numbers["exposed_ms"]) == (4, 1.0)


def test_small_collectives_are_counted() -> None:
    found = findings(ran(examples.many_small_collectives, eight))["small-collectives"]
    assert found.title == "Exposed communication: 24 small collectives a step"


def test_a_late_rank_is_shown_its_longest_gaps() -> None:
    found = findings(ran(examples.this_rank_comes_last, eight))["late-at-collectives"]
    worst = found.evidence[0]
    # the pause and the dispatch of the next matmul
    assert (worst.kind, worst.duration_ns, worst.step) == ("idle", 303 * US, 1)
    assert found.confidence.startswith("medium:")


def test_each_process_group_has_a_finding_of_its_own() -> None:
    run = eight()
    with run.step():
        for group, duration_ns in (("2", 300 * US), ("5", 250 * US)):
            run.do(MATMUL)
            examples.all_reduce(run, duration_ns, group=group)
        run.do(MATMUL)
    titles = [one.title for one in report_of(run).findings if one.code == "exposed-communication"]
    assert titles == [
        "Exposed communication: all-reduce of group 2 is not overlapped with compute",
        "Exposed communication: all-reduce of group 5 is not overlapped with compute",
    ]


def gradients_by_hand(run: Run, *, passes: int) -> None:
    """Gradients that the program itself reduces after backward, once a pass."""
    with run.step():
        for _ in range(passes):
            run.do(MATMUL)
            with run.backward("MmBackward0"):
                run.do(MATMUL)
            examples.all_reduce(run, 250 * US)


def test_gradients_reduced_by_hand_are_no_tensor_parallelism() -> None:
    for passes in (1, 2):
        run = eight()
        gradients_by_hand(run, passes=passes)
        fix = findings(run)["exposed-communication"].fix
        assert fix is not None
        assert fix.summary.startswith("Overlap gradient reduction")


def test_without_host_ops_gradients_are_the_guess() -> None:
    run = Run(rank=0, world_size=8, records_host=False)
    with run.step():
        for _ in range(3):
            run.unrecorded(MATMUL.launches[0])
            run.host(4 * US + MATMUL.launches[0].duration_ns)
            run.unrecorded(work.collective("allreduce", examples.LARGE, duration_ns=250 * US), stream=COMMUNICATION)
            run.host(260 * US)
        run.unrecorded(MATMUL.launches[0], stream=COMPUTE)
    fix = findings(run)["exposed-communication"].fix
    assert fix is not None
    assert fix.summary.startswith("Overlap gradient reduction")
