from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.loaders.events import Event, call, document, event, kernel, op, step, write
from trace_doctor.loaders import kineto
from trace_doctor.trace import SCHEMAS, DeviceInfo, Thread, Trace


def load(folder: Path, events: list[Event], **keys: Any) -> Trace:
    return kineto.load(write(folder, document(events, **keys)))


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return frame.select(columns).rows()


def test_frames_have_their_schemas(tmp_path: Path) -> None:
    for events in (step(), [kernel(1, 2)]):
        trace = load(tmp_path, events)
        for name, schema in SCHEMAS.items():
            expected = {column: spec.dtype for column, spec in schema.items()}
            assert dict(getattr(trace, name).schema) == expected


def test_an_op_a_call_and_a_kernel(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
    trace = load(
        tmp_path,
        [
            op(10, 20, **shapes, **{"Sequence number": 3, "Fwd thread id": 1}),
            call(12, 5, correlation=9),
            kernel(20, 8, correlation=9, grid=[1, 2, 3], block=[32, 1, 1]),
        ],
    )
    assert trace.ops.rows() == [
        (0, 0, 10_000, 20_000, "aten::mm", None, "[[8, 4], [4, 2]]", '["float", "float"]', '["", ""]', 3, 1, 1)
    ]
    assert trace.calls.rows() == [(0, 0, 12_000, 5_000, "cudaLaunchKernel", "other", 9, None, 1)]
    assert trace.activities.rows() == [
        (0, 0, 0, 7, 20_000, 8_000, "gemm", "compute", 9, None, None, None, "[1, 2, 3]", "[32, 1, 1]")
    ]
    assert trace.meta.has_ops
    assert trace.meta.has_shapes
    assert not trace.meta.has_stacks
    assert trace.meta.tables_missing == ()
    assert trace.meta.warnings == ()


def test_activities_stand_in_the_order_of_their_start(tmp_path: Path) -> None:
    copy = event("gpu_memcpy", "Memcpy HtoD", 3, 1, pid=0, args={"device": 0, "stream": 7, "bytes": 64})
    zero = event("gpu_memset", "Memset", 2, 0, pid=0, args={"device": 0, "stream": 7, "bytes": 8})
    trace = load(tmp_path, [kernel(5, 1), copy, zero])
    assert rows(trace.activities, "activity", "start_ns", "duration_ns", "kind", "bytes") == [
        (0, 2_000, 0, "set", 8),
        (1, 3_000, 1_000, "copy", 64),
        (2, 5_000, 1_000, "compute", None),
    ]


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("1712195495519689.047", 1_712_195_495_519_689_047),
        ("1712195495519689", 1_712_195_495_519_689_000),
        ('"1712195495519689.047"', 1_712_195_495_519_689_047),
        ("1.712195495519689047E15", 1_712_195_495_519_689_047),
        ("1428625731608.106", 1_428_625_731_608_106),
        ("4398046511103.999", 4_398_046_511_103_999),
        ("0.001", 1),
        ("12", 12_000),
        ("12.5", 12_500),
        ("-3.25", -3_250),
        ("4398046511104.001", 4_398_046_511_104_001),
        ("4503599627370497", 4_503_599_627_370_497_000),
        ("1e3", 1_000_000),
        ('"12.5"', 12_500),
    ],
)
def test_times_are_exact(tmp_path: Path, text: str, expected_ns: int) -> None:
    path = write(tmp_path, document([kernel("@", 1)]).replace('"@"', text))
    assert kineto.load(path).activities["start_ns"].to_list() == [expected_ns]


def test_integers_and_fractions_side_by_side(tmp_path: Path) -> None:
    trace = load(tmp_path, [kernel(start, 1.5) for start in (3, 2.5, 1)])
    assert trace.activities["start_ns"].to_list() == [1_000, 2_500, 3_000]
    epoch = write(
        tmp_path, document([kernel("@", 1), kernel(1712195495519689, 1)]).replace('"@"', "1712195495519688.047")
    )
    assert kineto.load(epoch).activities["start_ns"].to_list() == [1712195495519688047, 1712195495519689000]


@pytest.mark.parametrize("text", ["1e99", "9223372036854775807", "99999999999999999999", "1e999999999", "true", "[1]"])
def test_times_beyond_64_bits_are_set_aside(tmp_path: Path, text: str) -> None:
    trace = kineto.load(write(tmp_path, document([kernel("@", 1), kernel(5, 1)]).replace('"@"', text)))
    assert trace.activities["start_ns"].to_list() == [5_000]
    assert [warning.code for warning in trace.meta.warnings] == ["impossible_timestamps"]


@pytest.mark.parametrize(
    ("category", "kind"),
    [("Kernel", "compute"), ("kernel", "compute"), ("Memcpy", "copy"), ("gpu_memcpy", "copy"), ("Memset", "set")],
)
def test_old_and_new_spellings_of_activities(tmp_path: Path, category: str, kind: str) -> None:
    activity = event(category, "x", 1, 2, pid=0, tid="stream 20 ", args={"device": 0, "external id": 5})
    assert rows(load(tmp_path, [activity]).activities, "kind", "stream") == [(kind, 20)]


@pytest.mark.parametrize(
    "category", ["cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "privateuse1_runtime", "Runtime"]
)
def test_spellings_of_calls(tmp_path: Path, category: str) -> None:
    found = load(tmp_path, [event(category, "launch", 1, 2, args={"correlation": 4, "external id": 5}), kernel(1, 1)])
    assert rows(found.calls, "name", "correlation", "external") == [("launch", 4, 5)]


def test_old_spelling_of_ops(tmp_path: Path) -> None:
    old = event("Operator", "aten::mm", 1, 2, args={"Input dims": [[1]], "external id": 5})
    assert rows(load(tmp_path, [old, kernel(1, 1)]).ops, "name", "shapes", "external") == [("aten::mm", "[[1]]", 5)]


def test_both_spellings_in_one_file(tmp_path: Path) -> None:
    names = [{"Input Dims": [[1]], "External id": 5}, {"Input dims": [[2]], "external id": 6}, {}]
    events = [event("cpu_op", "aten::mm", start, 2, args=args) for start, args in enumerate(names, 1)]
    found = load(tmp_path, [*events, kernel(1, 1)]).ops
    assert rows(found, "shapes", "external") == [("[[1]]", 5), ("[[2]]", 6), (None, None)]


def test_what_is_no_work_is_no_activity(tmp_path: Path) -> None:
    gpu = {"device": 0, "stream": 7}
    others = [
        event("gpu_user_annotation", "ProfilerStep#1", 1, 9, pid=0, args=gpu),
        event("cuda_sync", "Stream Sync", 1, 9, pid=0, args=gpu),
        event("Trace", "PyTorch Profiler (0)", 1, 9, pid="Spans", tid="PyTorch Profiler"),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 100, "tid": 200, "ts": 1},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 100, "tid": 200, "ts": 1},
        {"ph": "i", "name": "Record Window End", "s": "g", "pid": "", "tid": "", "ts": 9},
    ]
    trace = load(tmp_path, [*others, kernel(2, 1)])
    assert (trace.activities.height, trace.annotations.height, trace.meta.warnings) == (1, 0, ())


def test_annotations_by_kind(tmp_path: Path) -> None:
    named = [
        event("user_annotation", "ProfilerStep#1", 1, 9),
        event("overhead", "Buffer Flush", 2, 1, pid=-1, tid=0),
        event("python_function", "train.py(3): step", 3, 1),
    ]
    trace = load(tmp_path, [*named, *step()])
    assert rows(trace.annotations, "name", "kind", "thread", "start_ns", "duration_ns") == [
        ("ProfilerStep#1", "user", 0, 1_000, 9_000),
        ("Buffer Flush", "overhead", 1, 2_000, 1_000),
        ("train.py(3): step", "python", 0, 3_000, 1_000),
    ]
    assert trace.meta.processes == ("100",)
    assert trace.meta.threads == (Thread(0, "200"), Thread(0, "0"))
    assert trace.meta.has_stacks


def test_threads_bear_the_profilers_names(tmp_path: Path) -> None:
    name = {"ph": "M", "name": "thread_name", "pid": 100, "tid": 200, "ts": 0, "args": {"name": "thread 200 (python)"}}
    assert load(tmp_path, [name, *step()]).meta.threads == (Thread(0, "thread 200 (python)"),)


def test_threads_of_two_processes(tmp_path: Path) -> None:
    hosts = [
        event("cpu_op", "aten::mm", 1, 1, pid=pid, tid=tid) for pid, tid in ((20, 1), (3, 1), (20, "main"), (3, 1))
    ]
    trace = load(tmp_path, [*hosts, kernel(1, 1)])
    assert trace.meta.processes == ("3", "20")
    assert trace.meta.threads == (Thread(0, "1"), Thread(1, "1"), Thread(1, "main"))
    assert trace.ops["thread"].to_list() == [1, 0, 2, 0]
    assert trace.activities["process"].to_list() == [None]


def test_merged_ranks_keep_their_labels(tmp_path: Path) -> None:
    events = []
    for rank, pid in (("[TP01]", 11), ("[TP00]", 22)):
        events.append(event("cpu_op", "aten::mm", 1, 1, pid=f"{rank} {pid}", tid=f"{rank} 5"))
        events.append(event("kernel", "gemm", 2, 1, pid=f"{rank} 0", tid=f"{rank} 7", args={"device": 0, "stream": 7}))
    trace = load(tmp_path, events)
    assert trace.meta.processes == ("[TP00]", "[TP01]")
    assert [device.label for device in trace.meta.devices] == ["[TP00] 0", "[TP01] 0"]
    assert [device.number for device in trace.meta.devices] == [0, 0]
    assert rows(trace.activities, "device", "process") == [(1, 1), (0, 0)]


def test_devices_as_the_file_describes_them(tmp_path: Path) -> None:
    listed = [
        {
            "id": 0,
            "name": "NVIDIA H100 80GB HBM3",
            "totalGlobalMem": 85_000,
            "numSms": 132,
            "computeMajor": 9,
            "computeMinor": 0,
        },
        {"id": 1, "name": " ", "warpSize": 64},
        {"id": 2, "name": "unseen"},
    ]
    trace = load(tmp_path, [kernel(1, 1, device=10), kernel(2, 1, device=1), kernel(3, 1)], deviceProperties=listed)
    assert trace.meta.devices == (
        DeviceInfo(
            label="0",
            number=0,
            name="NVIDIA H100 80GB HBM3",
            vendor="nvidia",
            memory_bytes=85_000,
            multiprocessors=132,
            compute_capability="9.0",
        ),
        DeviceInfo(label="1", number=1, vendor="amd"),
        DeviceInfo(label="10", number=10),
    )
    assert trace.activities["device"].to_list() == [2, 1, 0]
    assert trace.meta.node_devices == 3


@pytest.mark.parametrize(
    ("api", "vendor"),
    [
        ("cudaLaunchKernel", "nvidia"),
        ("cuLaunchKernel", "nvidia"),
        ("hipModuleLaunchKernel", "amd"),
        ("urEnqueueKernelLaunch", "intel"),
    ],
)
def test_vendor_from_the_api(tmp_path: Path, api: str, vendor: str) -> None:
    assert load(tmp_path, [call(1, 1, api), kernel(2, 1)]).meta.devices[0].vendor == vendor


def test_device_without_an_argument_is_the_pid(tmp_path: Path) -> None:
    activity = event("kernel", "gemm", 1, 1, pid=3, tid=7)
    trace = load(tmp_path, [activity])
    assert [(device.label, device.number) for device in trace.meta.devices] == [("3", 3)]
    assert trace.activities["stream"].to_list() == [7]


@pytest.mark.parametrize("value", ["12", 12.0, 12])
def test_numbers_of_other_types_are_numbers(tmp_path: Path, value: object) -> None:
    trace = load(tmp_path, [kernel(1, 1, correlation=value), kernel(2, 1, correlation="none")])
    assert trace.activities["correlation"].to_list() == [12, None]


def test_unsigned_numbers_wrap(tmp_path: Path) -> None:
    trace = load(tmp_path, [kernel(1, 1, stream=2**64 - 1), kernel(2, 1, stream=2**70)])
    assert trace.activities["stream"].to_list() == [-1, None]


COLLECTIVE = {
    "Collective name": "allreduce",
    "dtype": "BFloat16",
    "In msg nelems": 10,
    "Out msg nelems": 20,
    "Group size": 8,
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1, ...]",
    "Seq": 4,
}
TOLD = ("allreduce", "BFloat16", 10, 20, "0", "default_pg", 8, "[0, 1, ...]", 4)


def test_collective_of_a_kernel(tmp_path: Path) -> None:
    trace = load(tmp_path, [kernel(1, 1), kernel(2, 1, "ncclKernel", **COLLECTIVE)])
    assert trace.collectives.rows() == [(1, *TOLD)]


def test_collective_of_the_op_around(tmp_path: Path) -> None:
    around = op(1, 9, "record_param_comms", **{**COLLECTIVE, "External id": 7})
    trace = load(
        tmp_path, [around, kernel(2, 1, "ncclKernel", **{"External id": 7}), kernel(3, 1, **{"External id": 8})]
    )
    assert trace.collectives.rows() == [(0, *TOLD)]


def test_collective_in_old_words(tmp_path: Path) -> None:
    old = {"Collective name": "allreduce", "In msg size": 10, "Out msg size": 20, "Process Group Ranks": [0, 1]}
    found = load(tmp_path, [kernel(1, 1, "ncclKernel", **old)]).collectives
    assert rows(found, "in_elements", "out_elements", "ranks", "sequence") == [(10, 20, "[0, 1]", None)]


def test_rank_from_the_file_then_from_its_name(tmp_path: Path) -> None:
    told = load(tmp_path, [kernel(1, 1)], distributedInfo={"rank": 3, "world_size": 8})
    assert (told.meta.rank, told.meta.world_size) == (3, 8)
    named = kineto.load(write(tmp_path, document([kernel(1, 1)]), "rank-5_trace.json"))
    assert (named.meta.rank, named.meta.world_size) == (5, None)


def test_size_and_digest_are_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(document(step()).encode()), "trace.json.gz")
    meta = kineto.load(path).meta
    assert meta.size_bytes == path.stat().st_size
    assert meta.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert load(tmp_path, [kernel(1, 1)]).meta.tables_missing == ("host ops", "launch calls", "op shapes")


def test_pairs_and_unknown_categories_are_named(tmp_path: Path) -> None:
    pair = [{"ph": phase, "cat": "cpu_op", "name": "x", "pid": 1, "tid": 1, "ts": 1} for phase in "BE"]
    warnings = load(tmp_path, [*pair, event("novel", "x", 1, 1), kernel(1, 1)]).meta.warnings
    assert [warning.code for warning in warnings] == ["begin_end_events", "unknown_categories"]
    assert "2" in warnings[0].message
    assert "novel (1)" in warnings[1].message


def test_unknown_keys_are_not_kept(tmp_path: Path) -> None:
    trace = load(tmp_path, step(), traceName="/home/someone/secret", env={"TOKEN": "secret"})
    assert "secret" not in repr(trace)


def test_arguments_that_are_no_object(tmp_path: Path) -> None:
    odd = [{**kernel(start, 1), "args": value} for start, value in enumerate((None, [], "x", 3), 1)]
    assert load(tmp_path, odd).activities.height == 4


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"traceEvents": [kernel(i, 1) for i in range(9000)]}, indent=1))
    told: list[tuple[int, int]] = []
    kineto.load(path, progress=lambda done, total: told.append((done, total)))
    size = path.stat().st_size
    assert told == sorted(told)
    assert told[-1] == (size, size)


def test_real_traces_hold_what_was_counted_independently(shared: Path) -> None:
    truth = json.loads((shared / "traces/truth.json").read_text())["pytorch"]
    for name in (
        "tutorial-H100.json",
        "toy-MI250-rocm.json.gz",
        "hta-two-ranks/rank-1.json.gz",
        "alexnet-A100.json.gz",
    ):
        trace = kineto.load(shared / "traces/pytorch" / name)
        counted = {}
        for number, device in enumerate(trace.meta.devices):
            of_device = trace.activities.filter(pl.col("device") == number)
            kinds = of_device["kind"].cast(pl.String)
            end, start = of_device["start_ns"] + of_device["duration_ns"], of_device["start_ns"]
            counted[device.label] = {
                "kernels": (kinds == "compute").sum(),
                "copies": kinds.is_in(["copy", "set"]).sum(),
                "window_ns": end.max() - start.min(),
            }
        assert counted == {
            label: {key: device[key] for key in ("kernels", "copies", "window_ns")}
            for label, device in truth[name].items()
        }
