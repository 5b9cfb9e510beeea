"""Broken files: repaired where the meaning is sure, and said so; refused where it is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loaders.events import Event, document, kernel, op, step, write
from trace_doctor.errors import CorruptTraceError, TraceDoctorError
from trace_doctor.loaders import cutting, kineto, source
from trace_doctor.trace import Trace


def load(folder: Path, text: str | bytes, *, part_bytes: int = cutting.PART_BYTES) -> Trace:
    with mock.patch.multiple(cutting, PART_BYTES=part_bytes, _PATIENCE=4 * part_bytes):
        return kineto.load(write(folder, text))


def named(text: str, events: int = 6) -> str:
    """A document of kernels one of which has its JSON name replaced by a raw text."""
    rows = [kernel(10 * i, 5, "NAME" if i == 3 else f"kernel{i}") for i in range(1, events + 1)]
    return document(rows).replace('"NAME"', text)


def codes(trace: Trace) -> dict[str, str]:
    return {warning.code: warning.message for warning in trace.meta.warnings}


@pytest.mark.parametrize("part_bytes", [100, 400, cutting.PART_BYTES])
@pytest.mark.parametrize(
    ("raw", "name", "code", "count"),
    [
        (r'"C:\Users\me"', r"C:\Users\me", "invalid_escapes", 2),
        (r'"D:\u0ser"', r"D:\u0ser", "invalid_escapes", 1),
        (r'"a\\b\"c\u00e9"', 'a\\b"cé', None, 0),
        ('"a\x01b"', "a b", "control_characters", 1),
        ('"a\nb"', "a b", "control_characters", 1),
        ('"f"g"h"', 'f"g"h', "stray_quotes", 2),
        ('"operator""_x(int)"', 'operator""_x(int)', "stray_quotes", 2),
    ],
)
def test_names(tmp_path: Path, raw: str, name: str, code: str | None, count: int, part_bytes: int) -> None:
    trace = load(tmp_path, named(raw), part_bytes=part_bytes)
    assert trace.activities["name"].to_list() == ["kernel1", "kernel2", name, "kernel4", "kernel5", "kernel6"]
    assert list(codes(trace)) == ([code] if code else [])
    assert all(message.endswith(f": {count}") for message in codes(trace).values())


@pytest.mark.parametrize("part_bytes", [100, cutting.PART_BYTES])
def test_bytes_that_are_not_utf8(tmp_path: Path, part_bytes: int) -> None:
    trace = load(tmp_path, named('"a?b"').encode().replace(b"a?b", b"a\xff\xfeb"), part_bytes=part_bytes)
    assert trace.activities["name"][2] == "a\ufffd\ufffdb"
    assert codes(trace)["bad_utf8"].endswith(": 2")


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "NaN", "Infinity", "-Infinity", "nan(ind)"])
def test_bare_numbers(tmp_path: Path, value: str) -> None:
    events = [kernel(1, 5, bytes="@", grid=["@", 1], note="a, nan, [inf]"), kernel(2, 1, bytes=7)]
    trace = load(tmp_path, document(events).replace('"@"', value))
    assert trace.activities["bytes"].to_list() == [None, 7]
    assert trace.activities["grid"][0] == "[null, 1]"
    assert codes(trace)["bare_numbers"].endswith(": 2")


@pytest.mark.parametrize("part_bytes", [300, cutting.PART_BYTES])
def test_a_corrupt_event_costs_that_event(tmp_path: Path, part_bytes: int) -> None:
    events = [kernel(10 * i, 5, f"kernel{i}", nested=[{"a": 1}, {"b": 2}]) for i in range(1, 30)]
    text = document(events).replace('"name": "kernel7", ', '"name": kern{{', 1)
    trace = load(tmp_path, text, part_bytes=part_bytes)
    assert trace.activities["name"].to_list() == [f"kernel{i}" for i in range(1, 30) if i != 7]
    assert codes(trace)["lost_events"].endswith(": 1")


def test_a_deeply_nested_event_costs_that_event(tmp_path: Path) -> None:
    deep = '{"ph": "X", "cat": "kernel", "args": ' + "[" * 100_000 + "]" * 100_000 + "}"
    text = '{"traceEvents": [' + ", ".join([json.dumps(kernel(1, 1)), deep, json.dumps(kernel(5, 1))]) + "]}"
    trace = load(tmp_path, text)
    assert trace.activities["start_ns"].to_list() == [1000, 5000]
    assert "lost_events" in codes(trace)


def test_too_many_corrupt_events_are_refused(tmp_path: Path) -> None:
    text = document([kernel(i, 1, f"k{i}") for i in range(1, 100)]).replace('"name": "k1', '"name": k1')
    with pytest.raises(CorruptTraceError, match="corrupt: 11 of 99"):
        load(tmp_path, text)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("part_bytes", [300, cutting.PART_BYTES])
@pytest.mark.parametrize("cut", [1, 2, 3, 30, 150])
def test_a_cut_end_keeps_what_was_whole(tmp_path: Path, indent: int | None, part_bytes: int, cut: int) -> None:
    events = [kernel(10 * i, 5, f"kernel{i}") for i in range(1, 30)]
    text = json.dumps({"a": 1, "traceEvents": events}, indent=indent)[:-cut]
    whole = sum(text.count(f'"kernel{i}"') and f'"kernel{i + 1}"' in text for i in range(1, 29))
    trace = load(tmp_path, text, part_bytes=part_bytes)
    assert trace.activities.height in (whole, whole + 1)
    assert "truncated" in codes(trace)["cut_json"]


def test_a_file_without_its_last_bracket_is_called_cut(tmp_path: Path) -> None:
    assert "cut_json" in codes(load(tmp_path, document(step())[:-1]))


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_cut_gzip_keeps_what_was_whole(tmp_path: Path, share: float) -> None:
    text = document([kernel(10 * i, 5, f"kernel{i * i}") for i in range(1, 3000)])
    packed = gzip.compress(text.encode())
    trace = load(tmp_path, packed[: int(share * len(packed))])
    assert 0.2 * share * 3000 < trace.activities.height < 3000
    assert "truncated" in codes(trace)["cut_gzip"]


def test_a_damaged_gzip_is_said_to_be_incomplete(tmp_path: Path) -> None:
    text = document([kernel(10 * i, 5, f"kernel{i * i}") for i in range(1, 3000)])
    first, second = gzip.compress(text[:100_000].encode()), gzip.compress(text[100_000:].encode())
    trace = load(tmp_path, first + second[:200] + b"\x00\xff" * 50 + second[300:])
    assert 0 < trace.activities.height < 3000
    assert "incomplete" in codes(trace)["damaged_gzip"]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("part_bytes", [300, 3000, cutting.PART_BYTES])
@pytest.mark.parametrize("between", ["", "\n", "\0\0"])
def test_two_documents_are_refused(tmp_path: Path, indent: int | None, part_bytes: int, between: str) -> None:
    text = json.dumps({"traceEvents": [kernel(i, 1) for i in range(1, 30)], "b": 2}, indent=indent)
    for content in (text + between + text, text.encode() + gzip.compress(b"")):
        if isinstance(content, str):
            with pytest.raises(CorruptTraceError, match="more than one JSON document"):
                load(tmp_path, content, part_bytes=part_bytes)
    packed = gzip.compress(text.encode()) * 2
    with pytest.raises(CorruptTraceError, match="more than one JSON document"):
        load(tmp_path, packed, part_bytes=part_bytes)


def test_two_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError, match="more than one JSON document"):
        load(tmp_path, json.dumps(step()) * 2)


def test_broken_keys_around_the_events_are_read(tmp_path: Path) -> None:
    text = document(step(), traceName="@", deviceProperties=[{"id": 0, "name": "NVIDIA H100"}])
    trace = load(tmp_path, text.replace('"@"', r'"C:\Users\x", "x": nan').replace("]}", r'], "y": "\z"}')[:])
    assert trace.meta.devices[0].name == "NVIDIA H100"
    assert trace.activities.height == 1


EVENTS: list[Event] = [
    e
    for i in range(1, 12)
    for e in (op(10 * i, 8, f"op{i}", **{"Input Dims": [[1], []]}), kernel(10 * i + 2, 5, f"k{i}"))
]


@settings(max_examples=300)
@given(data=st.data())
def test_no_damage_is_a_crash(data: st.DataObject) -> None:
    text = bytearray(
        json.dumps({"x": [{"a": 1}], "traceEvents": EVENTS}, indent=data.draw(st.sampled_from([None, 1]))).encode()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 1, 5, 400]))
        text[at : at + length] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b'"', b"\\", b"{", b"}", b"]", b"},{", b"[[", b":1e999999"])
        )
    content = bytes(text)
    if data.draw(st.booleans()):
        content = gzip.compress(content)
        content = content[: data.draw(st.integers(0, len(content)))]
    with TemporaryDirectory() as folder:
        try:
            trace: Any = None
            with mock.patch.multiple(cutting, PART_BYTES=data.draw(st.sampled_from([200, 1 << 19])), _PATIENCE=4000):
                trace = source.load(write(Path(folder), content))
        except TraceDoctorError as error:
            assert error.where
        else:
            assert trace.activities.height
            assert (trace.activities["duration_ns"] >= 0).all()
