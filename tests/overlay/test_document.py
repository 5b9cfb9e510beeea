"""The whole document: the original unchanged with our tracks, the loaded trace with our tracks, or our tracks alone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.overlay.reading import drawn, events_of, ns
from tests.overlay.test_causes import check
from tests.simulator import kineto, nsight
from tests.simulator.nsight import SCHEMAS, Schema
from tests.simulator.samples import SAMPLES
from trace_doctor import Report, analyze
from trace_doctor.errors import UsageError
from trace_doctor.report import Source, Tool

HOSTILE = 'a"b\\c</script>\x1b[31m\u202e|`@x\n' + "long" * 2_500
Layout = Callable[[bytes], bytes]
LAYOUTS: dict[str, Layout] = {
    "as the profiler writes it": bytes,
    "on one line": lambda text: json.dumps(json.loads(text), separators=(",", ":")).encode(),
    "with spaces on one line": lambda text: json.dumps(json.loads(text)).encode(),
    "indented": lambda text: json.dumps(json.loads(text), indent=1).encode(),
    "a bare list": lambda text: json.dumps(json.loads(text)["traceEvents"]).encode(),
    "blank around": lambda text: b"\n\n  " + text + b"\n \n",
    "many gzip members": lambda text: b"".join(
        gzip.compress(text[at : at + 99_999]) for at in range(0, len(text), 99_999)
    ),
}
DAMAGES: dict[str, Layout] = {
    "cut": lambda text: text[: len(text) - 2_000],
    "a cut gzip stream": lambda text: gzip.compress(text)[:-500],
    "not UTF-8": lambda text: text.replace(b"aten::mm", b"aten::m\xff", 1),
    "a control character": lambda text: text.replace(b"aten::add", b"aten::a\x01", 1),
    "a bare backslash": lambda text: text.replace(b"/tmp/trace.json", b"C:\\Users\\trace.json"),
    "bare nan": lambda text: text.replace(b'"queued": 0', b'"queued": nan', 1),
    "padding after the end": lambda text: text + bytes(64),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = kineto.write(SAMPLES["gpt-launch-bound"](), tmp_path_factory.mktemp("original") / "trace.json")
    return path.read_bytes()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_original_is_all_there_byte_for_byte(name: str, original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(LAYOUTS[name](original))
    found = drawn(file)
    text = gzip.decompress(file.read_bytes()) if name == "many gzip members" else file.read_bytes()
    assert found.others() == events_of(text)
    first, last = found.text.index(b'{"ph":"M","cat":"trace_doctor"'), found.text.rindex(b'"cat":"trace_doctor"')
    after = found.text.index(b",\n", found.text.index(b"}", last)) + 2
    assert found.text[:first] + found.text[after:] == text
    check(found)


def test_a_byte_order_mark_is_left_out(original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(b"\xef\xbb\xbf" + original)
    assert drawn(file).others() == events_of(original)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_written_anew_from_what_was_read(name: str, original: bytes, tmp_path: Path) -> None:
    file, again = tmp_path / "trace.json", tmp_path / "again.json"
    file.write_bytes(DAMAGES[name](original))
    assert file.read_bytes() != original
    found = drawn(file)
    check(found)
    again.write_bytes(found.text)
    assert of_interest(analyze([again])) == of_interest(found.diagnosis.report)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_nsight_export_is_written_whole(schema: Schema, tmp_path: Path) -> None:
    run, again = SAMPLES["gpt-communication-bound"](), tmp_path / "again.json"
    found = drawn(nsight.write(tmp_path / "trace.sqlite", run, schema=schema))
    trace = found.diagnosis.analyses[0].trace
    kinds = [event.get("cat") for event in found.others() if event["ph"] == "X"]
    assert sum(kind in ("kernel", "gpu_memcpy", "gpu_memset") for kind in kinds) == len(trace.activities)
    assert kinds.count("cuda_runtime") == len(trace.calls)
    assert kinds.count("cpu_op") == len(trace.ops)
    assert kinds.count("user_annotation") == len(trace.annotations.filter(trace.annotations["kind"] == "user"))
    launched = trace.activities["call"].drop_nulls()
    assert [[event["ph"] for event in found.others()].count(phase) for phase in "sf"] == [len(launched)] * 2
    again.write_bytes(found.text)
    wanted, read = found.diagnosis.report, analyze([again])
    assert (read.partition, read.ledger, read.counts) == (wanted.partition, wanted.ledger, wanted.counts)


def test_an_annotated_file_gives_the_same_report(original: bytes, tmp_path: Path) -> None:
    file, again = tmp_path / "trace.json", tmp_path / "again.json"
    file.write_bytes(original)
    found = drawn(file)
    again.write_bytes(found.text)
    assert whole(analyze([again])) == whole(found.diagnosis.report)


def test_the_overlay_alone_is_ours_alone(original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(original)
    found, both = drawn(file, alone=True), drawn(file)
    assert (found.others(), found.ours()) == ([], both.ours())


def test_several_traces_are_drawn_alone(original: bytes, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(original)
    with pytest.raises(UsageError, match="added to one trace, and 2 were given"):
        drawn(tmp_path)
    found = drawn(tmp_path, alone=True)
    check(found)
    labels = [event["args"]["name"] for event in found.ours() if event["name"] == "process_name"]
    assert labels == ["trace-doctor: findings", "trace-doctor: GPU 0, rank 0", "trace-doctor: GPU 0, rank 1"]


def test_the_same_document_every_time(original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(original)
    assert drawn(file).text == drawn(file).text


def test_hostile_names_stay_names(original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    document = json.loads(original)
    for number, event in enumerate(document["traceEvents"]):
        if event.get("cat") in ("kernel", "cpu_op", "cuda_runtime"):
            event["name"] += HOSTILE + str(number % 50)
    file.write_text(json.dumps(document))
    ours = drawn(file).ours()
    shown = [
        text for event in ours for text in (event["name"], *event.get("args", {}).values()) if isinstance(text, str)
    ]
    assert any("</script>" in text for text in shown)
    assert max(map(len, shown)) <= 2_300
    assert [text for text in shown if not text.isprintable()] == []


def test_steps_are_those_of_the_report(original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(original)
    found = drawn(file)
    wanted = [(f"step {step.number}", step.start_ns, step.duration_ns) for step in found.diagnosis.report.window.steps]
    assert [(event["name"], ns(event["ts"]), ns(event["dur"])) for event in found.steps()] == wanted


def test_every_finding_is_drawn_at_its_evidence(original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(original)
    found = drawn(file)
    report = found.diagnosis.report
    begun = [event for event in found.ours() if event["ph"] in "bi"]
    assert len(report.findings) > 2
    for place, finding in enumerate(report.findings, 1):
        mine = [event for event in begun if event["name"].startswith(f"{place}. {finding.title}")]
        timed = [one.start_ns for one in finding.evidence if one.start_ns is not None]
        assert [ns(event["ts"]) for event in mine] == (timed or [report.window.start_ns])
        assert {(event["args"]["code"], float(event["args"]["MFU points"])) for event in mine} == {
            (finding.code, finding.mfu_points)
        }
    ends = {event["id"]: event["ts"] for event in found.ours() if event["ph"] == "e"}
    durations = [one.duration_ns for finding in report.findings for one in finding.evidence if one.start_ns is not None]
    assert [ns(ends[event["id"]] - event["ts"]) for event in begun if event["ph"] == "b"] == durations


def of_interest(report: Report) -> tuple[object, ...]:
    return report.partition, report.ledger, report.metrics, report.window.step_time_ns


def whole(report: Report) -> Report:
    """The report without what says which file it is of."""
    gpus = [msgspec.structs.replace(gpu, source="") for gpu in report.gpus]
    return msgspec.structs.replace(report, sources=[Source(path="", format="kineto")], tool=Tool(), gpus=gpus)
