"""One trace, however it is laid out, packed and cut: the same frames."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loaders.events import Event, call, document, event, kernel, op, step, write
from trace_doctor.errors import CorruptTraceError, UnsupportedInputError
from trace_doctor.loaders import cutting, kineto, workers
from trace_doctor.trace import SCHEMAS, Trace

NESTED = {"kernel_kwargs": [{"a": 1}, {"b": {"c": [{"d": 2}, {"e": "},{"}]}}], "text": '\n  },\n  {"ph": "X"}'}
EVENTS: list[Event] = [
    {"ph": "M", "name": "thread_name", "pid": 100, "tid": 200, "ts": 0, "args": {"name": "main"}},
    *(op(10 * i, 8, f"aten::op{i % 3}", **{"Input Dims": [[i, 4], []], **NESTED}) for i in range(1, 9)),
    *(call(10 * i + 1, 2, correlation=i) for i in range(1, 9)),
    *(kernel(10 * i + 4.125, 3.5, f'ker"nel\\{i}\u00e9', correlation=i, grid=[i, 1, 1]) for i in range(1, 9)),
    event("user_annotation", "ProfilerStep#1", 1, 99),
    event("python_function", "train.py(1): f", 2, 3),
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 100, "tid": 200, "ts": 1},
]
OTHER_KEYS: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "other"}],
    "distributedInfo": {"rank": 2, "world_size": 4, "traceEvents": [{"a": 1}, {"b": 2}]},
    "metadata": {"list": [{"x": i} for i in range(40)], "traceEvents": [{"ph": "X"}]},
    "traceName": 'say "traceEvents": [ twice',
}


def frames(trace: Trace) -> list[Any]:
    meta = trace.meta
    about = (meta.rank, meta.world_size, meta.devices, meta.processes, meta.threads, meta.warnings)
    return [about, *(getattr(trace, name).to_dicts() for name in SCHEMAS)]


def load(text: bytes, *, name: str = "trace.json", part_bytes: int = cutting.PART_BYTES, **options: Any) -> Trace:
    with TemporaryDirectory() as folder, mock.patch.multiple(cutting, PART_BYTES=part_bytes, _PATIENCE=4 * part_bytes):
        return kineto.load(write(Path(folder), text, name), **options)


def shuffled(value: Event, order: Callable[[list[str]], list[str]]) -> Event:
    return {key: value[key] for key in order(sorted(value))}


EXPECTED = frames(load(json.dumps({**OTHER_KEYS, "traceEvents": EVENTS}).encode()))


def test_the_expected_frames_hold_all_events() -> None:
    _, activities, ops, calls, annotations, *_ = EXPECTED
    assert [len(frame) for frame in (activities, ops, calls, annotations)] == [8, 8, 8, 2]
    assert EXPECTED[0][:2] == (2, 4)


@settings(max_examples=150)
@given(data=st.data())
def test_layout_order_packing_and_cuts_do_not_matter(data: st.DataObject) -> None:
    order = data.draw(st.permutations(["traceEvents", *OTHER_KEYS]), label="top-level keys")
    by_event = [data.draw(st.randoms(use_true_random=False)) for _ in EVENTS[:4]]
    events = [
        shuffled(e, lambda keys, i=i: by_event[i % 4].sample(keys, len(keys)))
        for i, e in enumerate(EVENTS)  # type: ignore[misc]
    ]
    layout = data.draw(
        st.sampled_from(
            [
                {},
                {"separators": (",", ":")},
                {"indent": 0},
                {"indent": 1},
                {"indent": 2},
                {"indent": "\t", "separators": (" ,", " : ")},
                {"indent": 4, "ensure_ascii": False},
            ]
        ),
        label="layout",
    )
    text = json.dumps({key: {**OTHER_KEYS, "traceEvents": events}[key] for key in order}, **layout).encode()
    start = data.draw(st.sampled_from([b"", b"\n", b"\xef\xbb\xbf", b"  \r\n"]), label="start of the file")
    packed = data.draw(st.booleans(), label="gzip")
    members = data.draw(st.integers(1, 3), label="members")
    text = start + text
    size = len(text) // members + 1
    content = b"".join(gzip.compress(text[at : at + size]) for at in range(0, len(text), size)) if packed else text
    part_bytes = data.draw(st.sampled_from([64, 300, 1000, 5000, cutting.PART_BYTES]), label="part size")
    assert frames(load(content, part_bytes=part_bytes, jobs=1)) == EXPECTED


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("indent", [None, 1])
def test_worker_processes_do_not_matter(jobs: int, indent: int | None) -> None:
    text = json.dumps({**OTHER_KEYS, "traceEvents": EVENTS}, indent=indent).encode()
    assert frames(load(text, part_bytes=700, jobs=jobs)) == EXPECTED


def lines(events: list[Event]) -> str:
    """One event a line, as torch 1.x and many tools write."""
    return '{"traceEvents": [\n' + ",\n".join("  " + json.dumps(e) for e in events) + "\n  ]}"


@pytest.mark.parametrize("part_bytes", [200, 1000, cutting.PART_BYTES])
def test_one_event_a_line(part_bytes: int) -> None:
    expected = frames(load(json.dumps({"traceEvents": EVENTS}).encode()))
    assert frames(load(lines(EVENTS).encode(), part_bytes=part_bytes)) == expected


@pytest.mark.parametrize("part_bytes", [200, 1000, cutting.PART_BYTES])
def test_two_layouts_in_one_file(part_bytes: int) -> None:
    half = len(EVENTS) // 2
    head = '{"traceEvents": [\n' + ",\n".join("  " + json.dumps(e) for e in EVENTS[:half])
    text = head + "," + ",".join(json.dumps(e, separators=(",", ":")) for e in EVENTS[half:]) + "]}"
    expected = frames(load(json.dumps({"traceEvents": EVENTS}).encode()))
    assert frames(load(text.encode(), part_bytes=part_bytes)) == expected


@pytest.mark.parametrize("end", ["]", "]\n", "", ",", "\n,\n", ",]"])
@pytest.mark.parametrize("part_bytes", [200, cutting.PART_BYTES])
def test_a_bare_list_may_lack_its_end(end: str, part_bytes: int) -> None:
    expected = frames(load(json.dumps({"traceEvents": EVENTS}).encode()))
    text = json.dumps(EVENTS)[:-1] + end
    assert frames(load(text.encode(), part_bytes=part_bytes)) == expected


def test_a_trailing_comma_is_no_event() -> None:
    text = document(step())[:-2] + ",\n]}"
    assert frames(load(text.encode())) == frames(load(document(step()).encode()))


@pytest.mark.parametrize("part_bytes", [100, cutting.PART_BYTES])
def test_zstd(part_bytes: int) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = document(step()).encode()
    packed = zstandard.compress(text[:100]) + zstandard.compress(text[100:])
    assert frames(load(packed, name="trace.json.zst", part_bytes=part_bytes)) == frames(load(text))


def test_a_cut_zstd_is_said_to_be_partial() -> None:
    zstandard = pytest.importorskip("zstandard")
    text = document([kernel(10 * i, 5, f"kernel{i * i}") for i in range(1, 9000)]).encode()
    packed = zstandard.compress(text)
    for content in (packed[: len(packed) // 2], packed[: len(packed) // 2] + bytes(len(packed) // 2)):
        trace = load(content, name="trace.json.zst")
        assert 0 < trace.activities.height < 8999
        assert any("truncated" in warning.message for warning in trace.meta.warnings)


def test_zstd_without_a_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(UnsupportedInputError, match="zstd") as caught:
        load(b"\x28\xb5\x2f\xfd", name="trace.json.zst")
    assert "pip install" in str(caught.value.hint)


def test_padding_after_gzip() -> None:
    text = document(step()).encode()
    assert frames(load(gzip.compress(text) + b"\0" * 512)) == frames(load(text))


def test_nothing_is_held_without_end(tmp_path: Path) -> None:
    endless = '{"traceEvents": [\n  ' + json.dumps(kernel(1, 2)) + ',\n  {"name": "' + "x" * 300_000
    with mock.patch.multiple(cutting, PART_BYTES=1000, _PATIENCE=4000, LIMIT_BYTES=100_000):
        for content, name in ((endless.encode(), "a.json"), (gzip.compress(endless.encode()), "b.json.gz")):
            with pytest.raises(CorruptTraceError, match="no event ends"):
                kineto.load(write(tmp_path, content, name))


@pytest.mark.parametrize("part_bytes", [500, cutting.PART_BYTES])
def test_workers_get_whole_events_only(part_bytes: int) -> None:
    """The cuts of a clear layout need no second look."""
    text = json.dumps({"traceEvents": EVENTS}, indent=2).encode()
    with mock.patch.object(cutting, "_proven_cut", side_effect=AssertionError), mock.patch.object(workers, "_start"):
        assert load(text, part_bytes=part_bytes, jobs=1).activities.height == 8
