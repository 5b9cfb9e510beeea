from __future__ import annotations

import gzip
import io
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.loaders.events import document, event, kernel, step, write
from trace_doctor.errors import InputError, NothingToAnalyzeError, TraceDoctorError, UnsupportedInputError
from trace_doctor.loaders import source


def refusal(path: Path) -> TraceDoctorError:
    with pytest.raises(TraceDoctorError) as caught:
        source.load(path)
    assert caught.value.where == str(path)
    assert caught.value.hint
    return caught.value


def test_a_folder_gives_its_traces_in_rank_order(tmp_path: Path) -> None:
    names = ["rank10.json.gz", "rank9.json", "inner/rank2.pt.trace.json", "notes.txt", "run.sqlite"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = ["inner/rank2.pt.trace.json", "rank9.json", "rank10.json.gz", "run.sqlite"]
    assert [str(path.relative_to(tmp_path)) for path in source.find([str(tmp_path)])] == expected


def test_a_glob_and_the_files_it_names_count_once(tmp_path: Path) -> None:
    files = [write(tmp_path, "", f"rank{number}.json") for number in (0, 1)]
    assert source.find([str(tmp_path / "rank*.json"), str(files[0])]) == tuple(files)


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> Path:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    return Path("-")


def test_a_dash_is_a_trace_from_stdin_packed_or_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    content = document(step()).encode()
    (path,) = source.find(["-"])
    for sent in (content, gzip.compress(content)):
        trace = source.load(piped(monkeypatch, sent))
        assert (path, trace.meta.path, trace.meta.size_bytes) == (Path("-"), "-", len(sent))
        assert trace.activities["start_ns"].to_list() == [20_000]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_is_read_once_as_shells_make_them(tmp_path: Path) -> None:
    """As in `trace-doctor analyze <(zcat trace.json.gz)`."""
    pipe, content = tmp_path / "pipe", document(step()).encode()
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(pipe.write_bytes, content)
        trace = source.load(pipe)
    assert (trace.meta.path, trace.meta.size_bytes, trace.activities.height) == (str(pipe), len(content), 1)


def test_what_is_no_trace_on_stdin_is_refused_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="not a trace") as caught:
        source.load(piped(monkeypatch, b"%PDF-1.4"))
    assert caught.value.where == "stdin"


def test_a_saved_report_is_no_trace(tmp_path: Path) -> None:
    assert "saved report" in refusal(write(tmp_path, '{\n  "schema_version": "1.0"}')).what


def test_a_file_counts_whatever_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, "", "profile.txt")
    assert source.find([str(path)]) == (path,)


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing.json", "no such file"), ("", "no traces in this folder"), ("*.json", "no file matches")],
)
def test_nothing_found_is_an_error(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        source.find([str(tmp_path / name)])


def test_urls_are_refused() -> None:
    with pytest.raises(UnsupportedInputError, match="URL"):
        source.find(["s3://bucket/trace.json"])


def test_load_links(tmp_path: Path) -> None:
    trace = source.load(write(tmp_path, document(step())))
    assert trace.activities.select("process", "call", "op").rows() == [(0, 0, 0)]
    assert trace.calls.select("kind", "op").rows() == [("launch", 0)]


def test_an_nsight_report_names_the_export(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, b"\0binary", "run.nsys-rep"))
    assert "nsys export --type sqlite" in str(error)


def test_a_database_is_refused_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with sqlite3.connect(path) as database:
        database.execute("create table t (a)")
    database.close()
    assert "Nsight" in refusal(path).what


@pytest.mark.parametrize("content", [b"", b" \n\t", gzip.compress(b"", mtime=0)], ids=["nothing", "blanks", "gzip"])
def test_an_empty_file_is_called_empty(tmp_path: Path, content: bytes) -> None:
    assert "empty" in refusal(write(tmp_path, content)).what


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "[1, 2, 3]", "[]", '[{"a": 1}]', "hello", '"x"', '{"traceEvents": {}}', "\0\1"]
)
def test_other_json_is_not_a_trace(tmp_path: Path, text: str) -> None:
    error = refusal(write(tmp_path, text))
    assert "not a trace" in error.what
    assert "traceEvents" in error.what


def test_a_pointer_is_not_the_file(tmp_path: Path) -> None:
    assert "LFS" in refusal(write(tmp_path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")).what


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (step()[:2], "CUPTI"),
        (step()[:1], "CPU only"),
        ([], "CPU only"),
        ([event("gpu_user_annotation", "ProfilerStep#1", 1, 1), event("cuda_sync", "Stream Sync", 1, 1)], "CPU only"),
    ],
)
def test_no_gpu_activity_says_why(tmp_path: Path, events: list[dict[str, object]], words: str) -> None:
    error = refusal(write(tmp_path, document(events)))
    assert isinstance(error, NothingToAnalyzeError)
    assert "no GPU activity" in error.what
    assert words in error.what


def test_records_without_times_are_no_activity(tmp_path: Path) -> None:
    assert "possible time" in refusal(write(tmp_path, document([kernel(5, -1), kernel("x", 1)]))).what


def test_an_accelerator_that_is_not_read_is_named(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, document([event("mtia_ccp_events", "kernel", 1, 1)])))
    assert isinstance(error, UnsupportedInputError)
    assert "MTIA" in error.what


def test_what_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "gone.json").what
    assert "cannot be read" in refusal(tmp_path).what
