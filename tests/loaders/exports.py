"""Small exports of Nsight Systems, table by table: `export(path, kernel(10, 15, correlation=1), call(2, 5, correlation=1))`."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

PID, TID = 4242, 4243
VM = 1 << 48
KERNEL, COPY, SET, GRAPH, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")
)


class Row(NamedTuple):
    """A row of one of the export's tables; texts of columns that hold string ids are given as texts."""

    table: str
    values: dict[str, Any]


def tid(thread: int = TID, pid: int = PID) -> int:
    """A globalTid."""
    return VM | pid << 24 | thread


def _activity(table: str, start: int, end: int | None, correlation: int | None, more: dict[str, Any]) -> Row:
    pid = more.pop("pid", PID)
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation, "globalPid": tid(0, pid)}
    return Row(table, {"start": start, "end": end, **place, **more})


def kernel(
    start: int, end: int | None, name: str = "ampere_sgemm_128x64_tn", correlation: int | None = None, **more: Any
) -> Row:
    grid = {"gridX": 18, "gridY": 1, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1}
    return _activity(KERNEL, start, end, correlation, {"demangledName": name, "shortName": name, **grid, **more})


def copy(start: int, end: int, correlation: int | None = None, **more: Any) -> Row:
    return _activity(COPY, start, end, correlation, {"bytes": 1024, "copyKind": 1, "srcKind": 1, "dstKind": 2, **more})


def memset(start: int, end: int, correlation: int | None = None, **more: Any) -> Row:
    return _activity(SET, start, end, correlation, {"bytes": 64, "value": 0, "memKind": 2, **more})


def graph(start: int, end: int, correlation: int | None = None, **more: Any) -> Row:
    return _activity(GRAPH, start, end, correlation, {"graphId": 4, "graphExecId": 5, **more})


def call(
    start: int, end: int | None, correlation: int | None = None, name: str = "cudaLaunchKernel_v7000", **more: Any
) -> Row:
    thread = tid(more.pop("thread", TID), more.pop("pid", PID))
    values = {"eventClass": 0, "globalTid": thread, "correlationId": correlation, "nameId": name, "returnValue": 0}
    return Row(RUNTIME, {"start": start, "end": end, **values, **more})


def nvtx(start: int, end: int | None, text: str | None, **more: Any) -> Row:
    thread = tid(more.pop("thread", TID), more.pop("pid", PID))
    values = {"eventType": 59, "text": text, "textId": None, "globalTid": thread, "domainId": 0, "jsonText": None}
    return Row("NVTX_EVENTS", {"start": start, "end": end, **values, **more})


def domain(number: int, name: str, **more: Any) -> Row:
    return nvtx(0, None, name, eventType=75, domainId=number, **more)


def gpu(number: int = 0, name: str = "NVIDIA H100 80GB HBM3", **more: Any) -> Row:
    values = {
        "id": number, "name": name, "totalMemory": 85_028_372_480, "memoryBandwidth": 3_352_320_000_000,
        "clockRate": 1_980_000_000, "smCount": 132, "pwGpuId": number, "cuDevice": number, "computeMajor": 9, "computeMinor": 0,
    }  # fmt: skip
    return Row("TARGET_INFO_GPU", {**values, **more})


STRING_IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId", "jsonTextId")


def export(path: Path, *rows: Row | list[Row]) -> Path:
    """Write the tables that the rows need, and no others, as Nsight does."""
    flat = [row for item in rows for row in (item if isinstance(item, list) else [item])]
    texts = {row.values[c] for row in flat for c in STRING_IDS if isinstance(row.values.get(c), str)}
    # ids are sparse
    ids = {text: 7 + 13 * number for number, text in enumerate(sorted(texts))}
    tables: dict[str, list[dict[str, Any]]] = {"StringIds": [{"id": i, "value": text} for text, i in ids.items()]}
    for table, values in flat:
        named = {c: ids.get(value, value) if c in STRING_IDS else value for c, value in values.items()}
        tables.setdefault(table, []).append(named)
    write(path, tables)
    return path


def write(path: Path, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Write tables of rows; columns have no declared type, so that values stay as they are."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    for table, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row)) or ["id", "value"]
        quoted = ", ".join(f'"{column}"' for column in columns)
        database.execute(f'CREATE TABLE "{table}" ({quoted})')
        places = ", ".join("?" * len(columns))
        database.executemany(
            f'INSERT INTO "{table}" VALUES ({places})', [[row.get(column) for column in columns] for row in rows]
        )
    database.commit()
    database.close()
