"""Traces that lie, and options that can't be meant: the report still sums to the nanosecond, or a clear error says why there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.loaders.events import call, document, kernel, op, write
from tests.simulator import Run, kineto, work
from trace_doctor import analyze, load
from trace_doctor.errors import NothingToAnalyzeError, TraceDoctorError, UsageError
from trace_doctor.options import Options
from trace_doctor.report import Report, from_json, to_json
from trace_doctor.reporter import html, markdown, terminal

Event = dict[str, Any]
H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
GEMM = "nvjet_tst_128x128"
CENTURY_US = 3_155_760_000_000_000


def matmul(left: list[int], right: list[int]) -> list[Event]:
    """A matmul of bf16 matrices in 8 us."""
    shapes = {"Input Dims": [left, right], "Input type": ["c10::BFloat16"] * 2}
    return [op(10, 20, "aten::mm", **shapes), call(12, 5), kernel(20, 8, GEMM)]


def assert_sums(report: Report) -> None:
    """The sums of the report and of every GPU hold, and no share lies outside 0 to 1."""
    for part, window_ns in [
        (report, report.window.duration_ns),
        *((gpu, gpu.window.duration_ns) for gpu in report.gpus),
    ]:
        assert sum(row.time_ns for row in part.ledger) == window_ns
        parts = part.partition
        times_ns = (parts.compute_ns, parts.exposed_communication_ns, parts.exposed_copy_ns, parts.idle_ns)
        assert sum(times_ns) == window_ns
        assert min(times_ns) >= 0
        assert all(one.why if one.value is None else 0 <= one.value <= 1 for one in part.metrics.utilisations)
    assert sum(finding.mfu_points for finding in report.findings) <= 100.001


def test_shapes_that_no_tensor_has_are_unknown_flops(tmp_path: Path) -> None:
    path = write(tmp_path, document(matmul([1 << 39, 1 << 39], [1 << 39, 1 << 39]), **H100))
    report = analyze([path])
    assert_sums(report)
    assert (report.metrics.mfu, report.workload.covered_share) == (None, 0.0)


def test_a_matmul_that_no_gpu_ends_is_unknown_flops(tmp_path: Path) -> None:
    """Each matrix could be, their product could not."""
    path = write(tmp_path, document(matmul([1 << 39, 1], [1, 1 << 39]), **H100))
    report = analyze([path])
    assert_sums(report)
    assert (report.metrics.mfu, report.workload.covered_share) == (None, 0.0)


@pytest.mark.parametrize("options", [Options(flops_per_step=1e30), Options(peak_flops=1e-3)])
def test_flops_that_take_ages_at_the_peak_are_refused(tmp_path: Path, options: Options) -> None:
    path = write(tmp_path, document(matmul([512, 512], [512, 512]), **H100))
    with pytest.raises(UsageError, match=r"would take .* days"):
        analyze([path], options)


def test_more_traffic_than_the_memory_carries_is_no_utilisation(tmp_path: Path) -> None:
    path = write(tmp_path, document(matmul([512, 512], [512, 512]), **H100))
    report = analyze([path], Options(memory_bandwidth=1e9))
    assert_sums(report)
    assert report.metrics.memory_bandwidth_utilisation is None
    (memory,) = (one for one in report.metrics.utilisations if one.name == "memory_bandwidth")
    # 3 matrices of 512 x 512 in bf16, 1,572,864 B in 8 us, are 196.6 GB/s
    assert memory.why == "197 x its bandwidth would be needed: the bytes or the bandwidth are wrong"


@pytest.mark.parametrize("number", [[0], {"a": 1}, None, "0", 1.5])
def test_numbers_of_devices_may_be_anything(tmp_path: Path, number: object) -> None:
    path = write(tmp_path, document(matmul([512, 512], [512, 512]), deviceProperties=[{"id": number, "name": "H100"}]))
    report = analyze([path])
    assert_sums(report)
    assert report.device.name is None


def test_a_window_of_a_century_sums_to_the_nanosecond(tmp_path: Path) -> None:
    """Beyond 2^53 ns a float64 holds no nanosecond."""
    late = kernel(CENTURY_US, 8.001)
    report = analyze([write(tmp_path, document([kernel(20, 8), late]))])
    assert report.window.duration_ns == 3_155_759_999_999_988_001
    assert_sums(report)


@pytest.mark.parametrize(("key", "values"), {"rank": [1 << 70, -1, "x"], "world_size": [1 << 70, 0, -8, [8]]}.items())
def test_ranks_that_no_job_has_are_unknown(tmp_path: Path, key: str, values: list[object]) -> None:
    collective = kernel(20, 8, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    for value in values:
        trace = load(write(tmp_path, document([collective], distributedInfo={key: value}, **H100)))
        assert getattr(trace.meta, key) is None
        assert_sums(analyze([trace.meta.path]))


def test_a_rank_in_a_file_s_name_is_no_larger_than_a_job(tmp_path: Path) -> None:
    path = write(tmp_path, document([kernel(20, 8)]), f"rank{'9' * 30}.json")
    assert analyze([path]).gpus[0].rank is None


def test_matmuls_without_time_have_no_best_to_be_held_against(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[512, 512]] * 2, "Input type": ["c10::BFloat16"] * 2}
    events = [op(0, 10_000, "aten::mm", **shapes)]
    for number in range(20):
        at = 100 + 100 * number
        events += [call(at, 5, correlation=number), kernel(at + 20, 50 * (number % 4 > 0), GEMM, correlation=number)]
    report = analyze([write(tmp_path, document(events, **H100))])
    assert_sums(report)
    assert report.findings


def test_more_than_the_peak_is_no_upper_end(tmp_path: Path) -> None:
    """Kernels with FLOPs that beat their peak say nothing of those without."""
    unknown = kernel(28, 7, "nvjet_tst_64x64", correlation=9)
    report = analyze(
        [write(tmp_path, document([*matmul([4_096, 4_096], [4_096, 4_096])[:2], kernel(20, 8, GEMM), unknown], **H100))]
    )
    assert report.metrics.mfu == report.metrics.mfu_high
    assert_sums(report)


def test_gpus_that_took_no_time_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, document([kernel(20, 8), kernel(20, 0, device=1)]))
    report = analyze([path])
    assert_sums(report)
    assert [gpu.device for gpu in report.gpus] == ["0"]


def test_where_nothing_took_time_there_is_nothing_to_analyse(tmp_path: Path) -> None:
    with pytest.raises(NothingToAnalyzeError, match="took any time"):
        analyze([write(tmp_path, document([kernel(20, 0)]))])


# ---- anything at all

ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**30, 1e308, 1e-308, 4.6e15, 9.2e15]),
    st.sampled_from(
        ["", "7", "NaN", "\x1b[31m", "a" * 3_000, "ProfilerStep#1", "cudaMalloc", "nccl:all_reduce", "kernel"]
    ),
    st.sampled_from([[], {}, [[]], [[2, 3], [3, 4]], [[1 << 40] * 12] * 2, [-1, "x"], ["c10::Half"] * 2]),
    st.integers(-(1 << 65), 1 << 65),
    st.floats(),
)
KEYS = [
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "device", "stream", "correlation", "External id", "bytes", "grid",
    "Input Dims", "Input type", "Concrete Inputs", "Sequence number", "Fwd thread id", "In msg nelems", "Group size", "dtype",
]  # fmt: skip
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.sampled_from(KEYS), ANY), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three steps of a rank with a matmul, a normalisation, an all-reduce and a wait."""
    run = Run(rank=0, world_size=8)
    for _ in range(3):
        with run.step():
            run.do(work.mm(512, 512, 512))
            run.do(work.layer_norm([64], 1024))
            run.collective(work.collective("allreduce", 1_000_000, duration_ns=90_000))
            run.item()
    found: dict[str, Any] = json.loads(kineto.write(run, tmp_path_factory.mktemp("sound") / "trace.json").read_bytes())
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES)
def test_any_value_anywhere_gives_a_report_that_sums_or_an_error(
    tmp_path: Path, sound: dict[str, Any], changes: list[tuple[float, str, Any]]
) -> None:
    trace = json.loads(json.dumps(sound))
    for place, key, value in changes:
        event = trace["traceEvents"][int(place * (len(trace["traceEvents"]) - 1))]
        inner = event.get("args")
        (event if key in event or not isinstance(inner, dict) else inner)[key] = value
    try:
        report = analyze([write(tmp_path, json.dumps(trace))])
    except TraceDoctorError as error:
        assert error.where or error.hint
        return
    assert_sums(report)
    assert to_json(from_json(to_json(report))) == to_json(report)
    assert all(draw(report) for draw in (terminal.render, markdown.render, html.render))
