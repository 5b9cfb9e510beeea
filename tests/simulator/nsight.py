"""A simulated run as Nsight Systems exports it to SQLite, in the column sets of four of its versions.

What makes real exports hard is there on purpose: rows in no order, sparse string ids, names as text and as string ids, ranges
that are still open, times before zero, correlation ids that the processes share, a driver's row inside a runtime's, CUDA ordinals
that are not the profiler's numbers, and secrets in the tables that hold the environment.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.simulator.machine import AUTOGRAD, MAIN, PROCESS, WATCHDOG, Call, Ran, Range, Run

Schema = Literal["2020", "2022", "2024.6", "2026.3"]
SCHEMAS: tuple[Schema, ...] = ("2020", "2022", "2024.6", "2026.3")
START_NS = 3_000_000_000
"""Where the run's zero stands on the session's clock."""
SECRET = "sk-planted-secret-0123456789"
VM = 1 << 48
NCCL, CUBLAS = 1, 2
THREADS = {MAIN: "python", AUTOGRAD: "pt_autograd_0", WATCHDOG: "pt_nccl_watchdg"}
_COLLECTIVES = {
    "allreduce": "ncclAllReduce",
    "_allgather_base": "ncclAllGather",
    "_reduce_scatter_base": "ncclReduceScatter",
    "send": "ncclSend",
    "recv": "ncclRecv",
}
_DIRECTIONS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_MEMORIES = {"Pageable": 0, "Pinned": 1, "Device": 2}

Row = dict[str, Any]
Sample = tuple[str, int, int]
"""Name of a metric, time on the run's clock, value."""


def write(
    path: Path,
    *runs: Run,
    schema: Schema = "2026.3",
    graphs: Literal["graph", "node"] = "node",
    samples: Sequence[Sample] = (),
) -> Path:
    """Write the runs, each a process with a GPU of its own, to one export.

    `graphs`: what `--cuda-graph-trace` was; `samples` of GPU metrics, all of the first run's GPU.
    """
    tables: dict[str, list[Row]] = {}
    for place, run in enumerate(runs):
        for table, row in _rows(run, place, graphs):
            tables.setdefault(table, []).append(row)
    for table, rows in _machine(runs, schema, samples):
        tables[table] = rows
    _save(path, _finished(tables, schema))
    return path


def _rows(run: Run, place: int, graphs: str) -> Iterator[tuple[str, Row]]:
    yield from _domains(run, place)
    for number, entry in enumerate(run.ranges):
        if run.records_host or entry.category == "user_annotation":
            yield _range(run, entry, place, 88_000 + number)
    if run.records_host:
        for call in run.calls:
            yield "CUPTI_ACTIVITY_KIND_RUNTIME", _call(call, place)
            if call.launches and call.name == "cudaLaunchKernel":
                inner = _call(call, place) | {"eventClass": 1, "nameId": "cuLaunchKernel"}
                yield "CUPTI_ACTIVITY_KIND_RUNTIME", inner | {"start": inner["start"] + 1, "end": inner["end"] - 1}
    whole = {id(ran.call) for ran in run.ran if ran.call and ran.call.name == "cudaGraphLaunch" and graphs == "graph"}
    for call in run.calls:
        if id(call) in whole:
            yield "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _graph([ran for ran in run.ran if ran.call is call], place)
    for ran in run.ran:
        if id(ran.call) not in whole:
            yield _activity(ran, place)
        if ran.work.collective and run.records_host and ran.call:
            yield "NVTX_EVENTS", _nccl(ran, ran.call, place)


# ---- the host


def _tid(thread: int, place: int) -> int:
    return VM | (PROCESS + place) << 24 | thread


def _call(call: Call, place: int) -> Row:
    version = "_v7000" if call.name.startswith("cuda") else ""
    return {
        "start": START_NS + call.start_ns,
        "end": START_NS + call.end_ns,
        "eventClass": 0 if version else 1,
        "globalTid": _tid(call.thread, place),
        "correlationId": call.correlation,
        "nameId": call.name + version,
        "returnValue": 0,
    }


def _range(run: Run, entry: Range, place: int, number: int) -> tuple[str, Row]:
    span = {
        "start": START_NS + entry.start_ns,
        "end": START_NS + entry.end_ns,
        "globalTid": _tid(entry.thread, place),
    }
    if entry.category == "overhead":
        # the CUPTI table came with 2025.5; older versions put what they knew into the profiler's own
        return "PROFILER_OVERHEAD", {**span, "nameId": entry.name, "overheadType": 0, "returnValue": 0}
    row = {**span, "eventType": 59, "domainId": 0}
    if entry.category == "user_annotation":
        # registered strings have no text
        return "NVTX_EVENTS", row | ({"textId": entry.name} if number % 2 else {"text": entry.name})
    return "NVTX_EVENTS", row | {"text": _emitted(entry, number, shapes=run.records_shapes)}


def _emitted(entry: Range, number: int, *, shapes: bool) -> str:
    """An op's text as torch.autograd.profiler.emit_nvtx writes it."""
    text = entry.name + (f", seq = {entry.sequence}" if entry.sequence is not None else "") + f", op_id = {number}"
    if not (entry.op and shapes):
        return text
    inputs = ", ".join("(0,-1)" for _ in entry.op.shapes)
    return f"{text}, sizes = {json.dumps(entry.op.shapes)}, input_op_ids = [{inputs}]"


def _domains(run: Run, place: int) -> Iterator[tuple[str, Row]]:
    main = {"globalTid": _tid(MAIN, place), "end": None}
    for number, name in ((NCCL, "NCCL"), (CUBLAS, "cuBLAS")):
        yield "NVTX_EVENTS", {**main, "start": -1_571_524_610, "eventType": 75, "text": name, "domainId": number}
    yield "NVTX_EVENTS", {**main, "start": START_NS, "eventType": 59, "text": "training", "domainId": 0}
    collectives = [ran.work.collective for ran in run.ran if ran.work.collective]
    if collectives:
        ranks = max(collective["Group size"] for collective in collectives)
        told = {"NCCL communicator ID": 1, "No. of ranks": ranks, "Rank": run.rank or place, "CUDA device": place}
        begun = {**main, "start": START_NS - 900, "end": START_NS - 100, "eventType": 59, "domainId": NCCL}
        yield "NVTX_EVENTS", {**begun, "textId": "ncclCommInitRankConfig", "jsonText": json.dumps(told)}


def _nccl(ran: Ran, call: Call, place: int) -> Row:
    """NCCL's own range around a launch, with the payload that `--include-json true` exports."""
    collective = ran.work.collective or {}
    name = _COLLECTIVES[collective["Collective name"]]
    elements = collective["Out msg nelems" if name == "ncclReduceScatter" else "In msg nelems"]
    return {
        "start": START_NS + call.start_ns,
        "end": START_NS + call.end_ns,
        "eventType": 59,
        "textId": name,
        "globalTid": _tid(call.thread, place),
        "domainId": NCCL,
        "jsonText": json.dumps({"NCCL communicator ID": 1, "Message size [bytes]": 2 * elements}),
    }


# ---- the GPU


def _place(first: Ran, place: int, start_ns: int, end_ns: int) -> Row:
    return {
        "start": START_NS + start_ns,
        "end": START_NS + end_ns,
        "deviceId": place,
        "contextId": 1,
        "streamId": first.stream,
        "correlationId": first.correlation,
        "globalPid": _tid(0, place),
    }


def _activity(ran: Ran, place: int) -> tuple[str, Row]:
    work, row = ran.work, _place(ran, place, ran.start_ns, ran.end_ns)
    if work.kind == "copy":
        _, direction, kinds = work.name.split(" ", 2)
        source, target = kinds.strip("()").split(" -> ")
        kind = {"copyKind": _DIRECTIONS[direction], "srcKind": _MEMORIES[source], "dstKind": _MEMORIES[target]}
        return "CUPTI_ACTIVITY_KIND_MEMCPY", {**row, "bytes": work.bytes_moved, **kind}
    if work.kind == "set":
        return "CUPTI_ACTIVITY_KIND_MEMSET", {**row, "bytes": work.bytes_moved, "value": 0, "memKind": 2}
    short = work.name.removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1]
    launch = dict(zip(("gridX", "gridY", "gridZ"), work.grid, strict=True))
    launch |= dict(zip(("blockX", "blockY", "blockZ"), work.block, strict=True))
    is_node = ran.call is not None and ran.call.name == "cudaGraphLaunch"
    names = {"demangledName": work.name, "shortName": short, "mangledName": work.name}
    return "CUPTI_ACTIVITY_KIND_KERNEL", {**row, **names, **launch, "graphNodeId": 1 if is_node else None}


def _graph(nodes: Sequence[Ran], place: int) -> Row:
    span = min(ran.start_ns for ran in nodes), max(ran.end_ns for ran in nodes)
    return {**_place(nodes[0], place, *span), "graphId": 4, "graphExecId": 5}


# ---- what does not belong to one process


def _machine(runs: Sequence[Run], schema: Schema, samples: Sequence[Sample]) -> Iterator[tuple[str, list[Row]]]:
    gpu, count = runs[0].gpu, max(len(runs), runs[0].node_devices)
    major, minor = gpu.compute_capability
    if schema == "2020":
        yield "TARGET_INFO_GPU", [{"vmId": VM, "deviceId": n, "name": gpu.name, "isDiscrete": 1} for n in range(count)]
        yield (
            "TARGET_INFO_CUDA_GPU",
            [
                {
                    "vmId": VM,
                    "name": gpu.name,
                    "globalMemoryBandwidth": round(gpu.bandwidth / 1000),
                    "globalMemorySize": gpu.memory_bytes,
                    "coreClockRate": 1_980_000,
                    "numMultiprocessors": gpu.multiprocessors,
                    "computeCapabilityMajor": major,
                    "computeCapabilityMinor": minor,
                    "deviceId": n,
                    "pid": PROCESS,
                }
                for n in range(count)
            ],
        )
    else:
        described = {
            "vmId": VM,
            "name": gpu.name,
            "isDiscrete": 1,
            "totalMemory": gpu.memory_bytes,
            "memoryBandwidth": round(gpu.bandwidth),
            "clockRate": 1_980_000_000,
            "smCount": gpu.multiprocessors,
            "chipName": "GH100",
            "computeMajor": major,
            "computeMinor": minor,
        }
        # the profiler counts by bus, CUDA by speed
        numbers = [{"id": count - 1 - n, "pwGpuId": count - 1 - n, "cuDevice": n} for n in range(count)]
        yield "TARGET_INFO_GPU", [described | number for number in numbers]
    if schema == "2026.3":
        devices = [(n, place) for place in range(len(runs)) for n in range(count)]
        yield (
            "TARGET_INFO_CUDA_DEVICE",
            [{"gpuId": count - 1 - n, "cudaId": n, "pid": PROCESS + place} for n, place in devices],
        )
    threads = [(thread, name, place) for place in range(len(runs)) for thread, name in THREADS.items()]
    yield "ThreadNames", [{"nameId": name, "priority": 20, "globalTid": _tid(t, place)} for t, name, place in threads]
    if samples:
        yield from _metrics(samples, gpu_id=count - 1)


def _metrics(samples: Sequence[Sample], gpu_id: int) -> Iterator[tuple[str, list[Row]]]:
    kind = 0x0100_0000_0000_0000 | gpu_id
    ids = {name: 40 + n for n, name in enumerate(sorted({name for name, _, _ in samples}))}
    yield (
        "TARGET_INFO_GPU_METRICS",
        [{"typeId": kind, "sourceId": 1, "typeName": "gh100", "metricId": i, "metricName": n} for n, i in ids.items()],
    )
    yield (
        "GPU_METRICS",
        [
            {"timestamp": START_NS + at_ns, "typeId": kind, "metricId": ids[name], "value": value}
            for name, at_ns, value in samples
        ],
    )


# ---- the file

_ACTIVITY = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"]
_GREEN = [*_ACTIVITY[:4], "greenContextId", *_ACTIVITY[4:]]
_LAUNCH = [
    "launchType", "cacheConfig", "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted",
    "graphNodeId",
]  # fmt: skip
_CLUSTERS = [
    "sharedMemoryLimitConfig", "qmdBulkReleaseDone", "qmdPreexitDone", "qmdLastCtaDone", "graphId", "clusterX", "clusterY",
    "clusterZ", "clusterSchedulingPolicy", "maxPotentialClusterSize", "maxActiveClusters", "sharedMemoryRequestedPercentage",
    "tensorSizeMinusOneElements",
]  # fmt: skip
_COPIED = [
    "bytes", "copyKind", "deprecatedSrcId", "srcKind", "dstKind", "srcDeviceId", "srcContextId", "dstDeviceId", "dstContextId",
    "migrationCause", "graphNodeId",
]  # fmt: skip
_NVTX = [
    "start", "end", "eventType", "rangeId", "category", "color", "text", "globalTid", "endGlobalTid", "textId", "domainId",
    "uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue", "jsonTextId", "jsonText",
]  # fmt: skip


def _columns(table: str, schema: Schema) -> list[str] | None:
    """The columns of a table in that version, where they differ between versions."""
    is_new, has_green = schema == "2026.3", schema in ("2024.6", "2026.3")
    place = _GREEN if has_green else _ACTIVITY
    if table == "CUPTI_ACTIVITY_KIND_KERNEL":
        names = ["demangledName", "shortName", *([] if schema == "2020" else ["mangledName"])]
        last = [] if schema == "2020" else _CLUSTERS if is_new else _CLUSTERS[:1]
        return [*place, *names, *_LAUNCH, *last]
    if table == "CUPTI_ACTIVITY_KIND_MEMCPY":
        return [*place, *_COPIED, *([] if schema == "2020" else ["virtualAddress"]), *(["copyCount"] if is_new else [])]
    if table == "NVTX_EVENTS":
        return [*_NVTX, *(["binaryData"] if has_green else [])]
    if table == "PROFILER_OVERHEAD":
        last = {"2020": ["correlationId", "nameId", "returnValue"], "2026.3": ["nameId", "overheadType"]}
        return ["start", "end", "globalTid", *last.get(schema, ["nameId", "returnValue"])]
    return None


_STRING_IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId")


def _finished(tables: dict[str, list[Row]], schema: Schema) -> dict[str, tuple[list[str], list[Row]]]:
    """The tables with ids for their strings, in the version's columns, rows in no order."""
    every = [row for rows in tables.values() for row in rows]
    texts = sorted({row[c] for row in every for c in _STRING_IDS if isinstance(row.get(c), str)})
    order = Random(4242)
    numbers = sorted(order.sample(range(1, 40 * len(texts) + 40), len(texts)))
    ids = dict(zip(texts, numbers, strict=True))
    finished: dict[str, tuple[list[str], list[Row]]] = {
        "StringIds": (["id", "value"], [{"id": number, "value": text} for text, number in ids.items()]),
        **_environment(schema),
    }
    for table, rows in tables.items():
        named = [{c: ids.get(v, v) if c in _STRING_IDS else v for c, v in row.items()} for row in rows]
        order.shuffle(named)
        finished[table] = _columns(table, schema) or list(dict.fromkeys(c for row in rows for c in row)), named
    return finished


def _environment(schema: Schema) -> dict[str, tuple[list[str], list[Row]]]:
    """Tables that every export has, two of them with the environment of the program."""
    version = {"2020": "2020.5.1", "2022": "2022.4.1.21", "2024.6": "2024.6.2.225", "2026.3": "2026.3.1.157"}[schema]
    found: dict[str, tuple[list[str], list[Row]]] = {
        "TARGET_INFO_SYSTEM_ENV": (
            ["globalVid", "devStateName", "name", "nameEnum", "value"],
            [{"name": "DeviceEnvironment", "value": f"API_KEY={SECRET}"}, {"name": "Hostname", "value": SECRET}],
        ),
    }
    facts = [{"name": "EXPORT_PRODUCT_VERSION", "value": version}]
    if schema == "2022":
        found["EXPORT_META_DATA"] = ["name", "value"], facts
    if schema in ("2024.6", "2026.3"):
        found["META_DATA_EXPORT"] = ["name", "value"], facts
        secret = {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f"API_KEY={SECRET}"}
        found["META_DATA_CAPTURE"] = ["name", "value"], [secret, secret]
    return found


def _save(path: Path, tables: dict[str, tuple[list[str], list[Row]]]) -> None:
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA page_size = 1024")
    for table, (columns, rows) in tables.items():
        typed = ", ".join(f'"{column}" {_type(column)}' for column in columns)
        database.execute(f"CREATE TABLE {table} ({typed})")
        marks = ", ".join("?" * len(columns))
        values = [[_value(row, column) for column in columns] for row in rows]
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    database.commit()
    database.close()
    with path.open("r+b") as file:
        # the version of SQLite that wrote the file stands in its header, and is no part of the run
        file.seek(96)
        file.write((3_040_001).to_bytes(4, "big"))


def _type(column: str) -> str:
    if column == "id":
        return "INTEGER PRIMARY KEY"
    return (
        "TEXT" if column in ("value", "text", "jsonText", "binaryData", "name", "metricName", "typeName") else "INTEGER"
    )


def _value(row: Row, column: str) -> Any:
    return row.get(column, "[]" if column == "tensorSizeMinusOneElements" else None)
