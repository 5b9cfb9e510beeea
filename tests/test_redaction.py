"""What tells of people and machines is planted wherever a trace can hold it, and must be in no format."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.reporter import samples
from tests.simulator import kineto, nsight
from tests.simulator.samples import SAMPLES
from trace_doctor import analyze
from trace_doctor.__main__ import main
from trace_doctor.options import Options
from trace_doctor.redaction import HIDDEN, PYTHON_FRAME, namer, redact
from trace_doctor.report import Message, Report, Source, Tool, Top, to_json

Event = dict[str, Any]
PLANT = "s3cret"
"""Part of everything that is planted."""
FRAME = f"/home/{PLANT}/project/train.py(12): {PLANT}_step"
MODEL = """
vocab = 8192
sequence = 256
[[layers]]
count = 6
hidden = 256
attention = { heads = 4, head_dim = 64 }
mlp = { width = 1024 }
"""
FORMATS = {"t.json", "t.md", "t.txt", "t.html", "t.perfetto.json", "t.perfetto.json.gz"}


def planted(sample: str, folder: Path) -> Path:
    """A sample with a secret in each place that a Kineto file has, in a folder and file of a secret name."""
    path = folder / f"{PLANT}-user" / f"{PLANT}-host_1234.1700000000.pt.trace.json"
    path.parent.mkdir(parents=True)
    document = json.loads(kineto.write(SAMPLES[sample](), folder / "plain.json").read_bytes())
    document |= {
        "hostname": f"{PLANT}-host", "command": f"python /home/{PLANT}/train.py --token={PLANT}", "traceName": f"/tmp/{PLANT}/t.json",
        f"{PLANT}_key": PLANT, "distributedInfo": document.get("distributedInfo", {}) | {"host": f"{PLANT}-host"},
    }  # fmt: skip
    document["traceEvents"] = [*_planted(document["traceEvents"])]
    path.write_text(json.dumps(document))
    return path


def _planted(events: list[Event]) -> Iterator[Event]:
    for number, event in enumerate(events):
        category, name = event.get("cat"), event["name"]
        if event["ph"] == "M" and name in ("process_name", "thread_name", "process_labels"):
            event["args"] = {key: f"{PLANT}-host" for key in event["args"]}
        if category == "user_annotation" and not name.startswith("ProfilerStep"):
            event["name"] = f"{name} for {PLANT}"
        if category == "cpu_op" and number % 5 == 0:
            event["name"] = f"{PLANT} op of mine"
        if category == "cpu_op":
            yield event | {"cat": "python_function", "name": FRAME}
            yield event | {"cat": "user_annotation", "name": f"load batch of {PLANT}"}
        if category == "kernel" and number % 5 == 0:
            event["name"] = f"my_kernel /home/{PLANT}/kernels.cu"
        if "Process Group Name" in event.get("args", {}):
            event["args"]["Process Group Name"] = f"{PLANT} group"
            event["args"]["Process Group Description"] = f"{PLANT} group"
        yield event
    yield {"ph": "X", "cat": f"{PLANT}_category", "name": PLANT, "pid": 1, "tid": 1, "ts": 1, "dur": 1}


def leaks(text: bytes) -> list[bytes]:
    """Where something planted is, with what stands around it."""
    return re.findall(rb"(?i).{0,40}" + PLANT.encode() + rb".{0,20}", text)


def written(folder: Path, *arguments: str) -> dict[str, bytes]:
    """Every format of the report."""
    folder.mkdir()
    files = [flag for name in FORMATS for flag in ("-o", str(folder / name))]
    for flags in (files, ["--post-mortem", "-o", str(folder / "post-mortem.md")]):
        with pytest.raises(SystemExit) as left:
            main(["analyze", *arguments, *flags])
        assert left.value.code == 0
    texts = {file.name: file.read_bytes() for file in folder.iterdir()}
    return {name: gzip.decompress(text) if name.endswith(".gz") else text for name, text in texts.items()}


@pytest.mark.parametrize("sample", ["gpt-input-starved", "gpt-launch-bound", "gpt-communication-bound"])
def test_nothing_planted_is_in_any_format(sample: str, tmp_path: Path) -> None:
    path = planted(sample, tmp_path)
    shown = written(tmp_path / "redacted", str(path), "--redact")
    assert {name: leaks(text) for name, text in shown.items()} == {name: [] for name in (*FORMATS, "post-mortem.md")}


def test_without_the_flag_it_is_in_every_format(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    shown = written(tmp_path / "plain", str(planted("gpt-launch-bound", tmp_path)))
    assert [name for name, text in shown.items() if not leaks(text)] == []


@pytest.mark.parametrize("group_by", ["op", "module", "annotation"])
def test_nor_in_a_table_of_ops_modules_or_annotations(group_by: str, tmp_path: Path) -> None:
    report = analyze([planted("gpt-launch-bound", tmp_path)], Options(group_by=group_by, redact=True))  # type: ignore[arg-type]
    assert leaks(to_json(report)) == []


def test_nor_of_the_options(tmp_path: Path) -> None:
    path = planted("gpt-launch-bound", tmp_path)
    model = path.with_name(f"{PLANT}-model.toml")
    model.write_text(f'name = "{PLANT} 7B"\n' + MODEL)
    flags = ("--model", str(model), "--tokens-per-step", "512", "--step-range", f"load batch of {PLANT}", "--redact")
    shown = written(tmp_path / "redacted", str(path), *flags)
    assert {name: leaks(text) for name, text in shown.items() if leaks(text)} == {}


def test_nor_of_an_nsight_export(tmp_path: Path) -> None:
    folder = tmp_path / f"{PLANT}-user"
    folder.mkdir()
    path = nsight.write(folder / f"{PLANT}-host.sqlite", SAMPLES["gpt-launch-bound"]())
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(
            "UPDATE StringIds SET value = value || ? WHERE value LIKE 'Optimizer%' OR value LIKE 'aten%'", [f" {PLANT}"]
        )
        file.execute("INSERT INTO StringIds SELECT max(id) + 1, ? FROM StringIds", [f"python /home/{PLANT}/train.py"])
        file.execute("CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        file.execute("CREATE TABLE IF NOT EXISTS PLANTED (name TEXT)")
        file.execute("INSERT INTO PLANTED VALUES (?)", [PLANT])
    assert leaks(path.read_bytes()) != []
    shown = written(tmp_path / "redacted", str(path), "--redact")
    texts = {name: leaks(text) + re.findall(nsight.SECRET.encode(), text) for name, text in shown.items()}
    assert {name: found for name, found in texts.items() if found} == {}


def test_a_saved_report_is_redacted_when_it_is_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = planted("gpt-launch-bound", tmp_path)
    saved = path.with_name("saved.json")
    saved.write_bytes(to_json(analyze([path])))
    for format_ in ("json", "markdown", "terminal"):
        with pytest.raises(SystemExit) as left:
            main(["compare", str(saved), str(saved), "-f", format_, "--redact"])
        out = capfd.readouterr().out
        assert (left.value.code, leaks(out.encode()), out != "") == (0, [], True)


def test_the_numbers_stay(tmp_path: Path) -> None:
    path = planted("gpt-launch-bound", tmp_path)
    open_, hidden = analyze([path]), analyze([path], Options(redact=True))
    assert numbers(json.loads(to_json(hidden))) == numbers(json.loads(to_json(open_)))
    assert [finding.code for finding in hidden.findings] == [finding.code for finding in open_.findings]


def numbers(value: Any) -> Any:
    """A report without its texts."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items() if key not in ("options", "process")}
    return [numbers(item) for item in value] if isinstance(value, list) else None if isinstance(value, str) else value


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_report_without_secrets_keeps_its_words(sample: str, tmp_path: Path) -> None:
    path = kineto.write(SAMPLES[sample](), tmp_path / "trace.json")
    open_, hidden = analyze([path]), analyze([path], Options(redact=True))
    assert (hidden.findings, hidden.ledger, hidden.kernels) == (open_.findings, open_.ledger, open_.kernels)
    assert (hidden.strip, hidden.window, hidden.warnings) == (open_.strip, open_.window, open_.warnings)
    label = f"trace {open_.sources[0].sha256[:8]}"  # type: ignore[index]
    assert [source.path for source in hidden.sources] == [label]
    assert [(gpu.source, gpu.process) for gpu in hidden.gpus] == [(label, None)]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::mm", "aten::mm"),
        ("autograd::engine::evaluate_function: MmBackward0", "autograd::engine::evaluate_function: MmBackward0"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",) * 2,
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("cudaLaunchKernel", "cudaLaunchKernel"),
        ("my_kernel", "my_kernel"),
        ("my_kernel /home/me/x.cu", f"my_kernel {HIDDEN}"),
        ("torch/nn/functional.py(12): linear", PYTHON_FRAME),
        ("/home/me/train.py(3): <module>", PYTHON_FRAME),
        ("<frozen importlib._bootstrap>(241): _call", PYTHON_FRAME),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("Memcpy of mine", HIDDEN),
        ("all_reduce", "all_reduce"),
        ("before aten::mm", "before aten::mm"),
        ("before my_kernel", "before my_kernel"),
        ("before my own code", f"before {HIDDEN}"),
        ("<built-in function hasattr>", PYTHON_FRAME),
        ("load batch", HIDDEN),
        ("me", HIDDEN),
    ],
)
def test_names(name: str, shown: str) -> None:
    assert namer({"my_kernel", "my_kernel /home/me/x.cu"})(name) == shown


@pytest.mark.parametrize(
    "words",
    [
        "/home/me/data", "~/me/data", "C:\\Users\\me", "\\\\me\\share", "src/me.py", "https://me.example/x", "me@login1", "10.11.12.13",
        "WANDB_API_KEY=me",
    ],
)  # fmt: skip
def test_places_in_sentences(words: str) -> None:
    assert message(f"it reads {words}, 12 tokens/s and 3 GB/s are read and/or lost: aten::mm") == (
        f"it reads {HIDDEN}, 12 tokens/s and 3 GB/s are read and/or lost: aten::mm"
    )


def test_quoted_names_and_parts_of_names_in_sentences() -> None:
    assert message("no annotation is called 'eval of me', one is 'ProfilerStep#3'") == (
        f"no annotation is called {HIDDEN}, one is 'ProfilerStep#3'"
    )
    secret = "the very long name of a range that I chose"
    report = replace(samples.healthy(), ledger=[samples.row("host", "host code", 1.0, "measured", Top(name=secret))])
    told = [Message(code="x", message=text) for text in (f"in {secret} twice", f"in {secret[:30]}… twice")]
    assert [one.message for one in redact(replace(report, warnings=told)).warnings] == [f"in {HIDDEN} twice", HIDDEN]


def message(words: str) -> str:
    (told,) = redact(replace(samples.healthy(), warnings=[Message(code="x", message=words)])).warnings
    return told.message


@pytest.mark.parametrize(
    ("path", "sha256", "label"),
    [
        ("/home/me/batch_64/host_tp8-bs4.json", "0123456789", "trace 01234567 tp8 bs4"),
        ("C:\\me\\num_workers_4.json.gz", None, "trace 1 num_workers_4"),
        ("me.json", None, "trace 1"),
    ],
)
def test_a_trace_keeps_the_sizes_that_its_name_tells(path: str, sha256: str | None, label: str) -> None:
    report = replace(samples.healthy(), sources=[Source(path=path, sha256=sha256, format="kineto")])
    once = redact(report)
    assert [source.path for source in once.sources] == [label]
    assert redact(once).sources == once.sources


def test_options_that_are_texts_of_the_user_go() -> None:
    options = {
        "device": "h100-sxm",
        "gpus": 8,
        "kernel_patterns": "/home/me/k.toml",
        "step_range": "my step",
        "select": ["offload"],
    }
    found = redact(replace(samples.healthy(), tool=Tool(options=options))).tool.options
    assert found == options | {"kernel_patterns": HIDDEN, "step_range": HIDDEN}


def test_twice_is_once() -> None:
    for report in (samples.healthy(), samples.poor(), samples.busy_but_slow(), samples.hostile()):
        once: Report = redact(report)
        assert redact(once) == once
