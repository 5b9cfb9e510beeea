"""The strip: what held the GPU over a step, moment by moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import build
from tests.simulator import MS, US, Run, kineto, ledger, work
from tests.simulator.programs import ACTIONS, any_steps, matmul_until_idle
from trace_doctor import analyze
from trace_doctor.accounts.strip import strip_of
from trace_doctor.options import Options
from trace_doctor.pipeline import examine
from trace_doctor.report import Strip
from trace_doctor.trace import Trace

# on an H100: 2 x 4096^3 FLOP, ideally 138 911 ns, take 198 445 ns at 70 % of the peak
MATMUL_NS, IDEAL_NS = 198_445, 138_911


def strip(run: Run, folder: Path) -> Strip:
    found = analyze([kineto.write(run, folder / "trace.json")]).strip
    assert found is not None
    return found


def of(trace: Trace, *, most: int = 2_000) -> Strip:
    (analysis,) = examine(trace, Options(whole_trace=True))
    found = strip_of(analysis, most=most)
    assert found is not None
    return found


def layers(found: Strip) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(segment, ns) of each wall and cause."""
    return {(layer.wall, layer.cause): list(zip(layer.segments, layer.time_ns, strict=True)) for layer in found.layers}


def test_a_segment_is_split_among_the_causes_of_its_kernel(tmp_path: Path) -> None:
    run = Run()
    with run.step():
        matmul_until_idle(run)
        run.host(1 * MS)
    found = strip(run, tmp_path)
    ((at, ideal_ns),) = layers(found)["mfu", "model FLOPs"]
    assert ideal_ns == IDEAL_NS
    assert layers(found)["compute", "below the roofline"] == [(at, MATMUL_NS - IDEAL_NS)]
    assert found.names[found.segment_name[at]] == "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"


def test_of_three_steps_it_shows_the_one_of_median_length(tmp_path: Path) -> None:
    run = Run()
    for pause_ns in (2 * MS, 3 * MS, 1 * MS):
        with run.step():
            matmul_until_idle(run)
            run.host(pause_ns)
    found = strip(run, tmp_path)
    assert found.step == run.steps[0].number
    assert found.duration_ns == run.steps[0].end_ns - run.steps[0].start_ns


def test_what_a_higher_class_covers_is_not_shown() -> None:
    # the all-reduce holds the GPU before and after the sum; then nothing runs
    found = of(
        build.trace(
            build.kernel(0, 100, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", stream=20),
            build.kernel(30, 20, "elementwise_kernel"),
            build.kernel(140, 10, "elementwise_kernel"),
        )
    )
    assert found.segment_start_ns == [0, 30, 50, 100, 140]
    assert [found.names[place] for place in found.segment_name] == [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "elementwise_kernel",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "elementwise_kernel",
        "elementwise_kernel",
    ]
    assert layers(found)["small_kernels", "device-side gap"] == [(3, 40)]
    assert layers(found)["communication", "waiting or slow"] == [(0, 30), (2, 50)]
    assert found.merged_below_ns is None


def test_two_kernels_of_one_class_share_the_time() -> None:
    found = of(
        build.trace(
            build.kernel(0, 100, "first_unknown_kernel"), build.kernel(50, 100, "second_unknown_kernel", stream=8)
        )
    )
    assert found.segment_start_ns[0] == 0
    assert found.duration_ns == 150
    assert sum(time_ns for parts in layers(found).values() for _, time_ns in parts) == 150


def test_short_neighbours_are_merged_bin_by_bin_and_a_long_one_stays() -> None:
    short = [build.kernel(10 * n, 10, f"kernel_{n % 2}") for n in range(50)]
    long = build.kernel(500, 500, "the_long_one")
    found = of(build.trace(*short, long), most=10)
    # a bin is a tenth of 1 000 ns: five of them hold ten kernels each
    assert found.merged_below_ns == 100
    assert found.segment_start_ns == [0, 100, 200, 300, 400, 500]
    assert found.segment_stretches == [10, 10, 10, 10, 10, 1]
    assert found.names[found.segment_name[-1]] == "the_long_one"


def test_there_are_never_more_segments_than_asked_for() -> None:
    # a long one after every short one: the worst that bins can meet
    rows = [build.kernel(100 * n, 99 if n % 2 else 40, f"kernel_{n % 3}") for n in range(60)]
    for most in (12, 20, 40, 60):
        found = of(build.trace(*rows), most=most)
        assert len(found.segment_start_ns) <= most
        assert sum(sum(layer.time_ns) for layer in found.layers) == found.duration_ns


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=12))
def test_its_areas_are_the_ledger_known_by_construction(tmp_path: Path, actions: list[Callable[[Run], object]]) -> None:
    run = any_steps([actions])
    known = ledger.of(run)
    found = strip(run, tmp_path)
    times = {(str(layer.wall), layer.cause): layer for layer in found.layers}
    assert sum(sum(layer.time_ns) for layer in found.layers) == found.duration_ns
    if min(known.values()) >= 0:
        # each part is rounded by less than 1 ns, in the ledger as in the strip
        far = {
            row: (sum(times[row].time_ns) if row in times else 0, time_ns)
            for row, time_ns in known.items()
            if abs(time_ns - (sum(times[row].time_ns) if row in times else 0))
            > 1 + len(times[row].segments if row in times else [])
        }
        assert far == {}


def test_a_copy_beside_a_sum_belongs_to_the_sum(tmp_path: Path) -> None:
    run = Run()
    with run.step():
        run.do(work.add([4096, 4096], duration_ns=60 * US))
    assert ("memory", "copy") not in layers(strip(run, tmp_path))
