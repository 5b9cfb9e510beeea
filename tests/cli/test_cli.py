from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Run
from tests.loaders.events import document, step, write
from tests.reporter import samples
from trace_doctor.cli import COMMANDS
from trace_doctor.cli.analyze import analyze
from trace_doctor.cli.running import polars_threads
from trace_doctor.errors import InputError
from trace_doctor.options import Options, Thresholds
from trace_doctor.report import Report, from_json, to_json
from trace_doctor.reporter import html, markdown, terminal


def fails_with(error: BaseException) -> Callable[..., Report]:
    def fail(*_: object, **__: object) -> Report:
        raise error

    return fail


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


# ---- starting up


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["analyze", "--help"], ["devices", "--help"]])
def test_help_loads_no_data_frames(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom trace_doctor.__main__ import main\n"
        f"try:\n    main({arguments})\n"
        "except SystemExit as left:\n    assert left.code == 0\n"
        "print(sorted({'polars', 'pandas', 'torch', 'rich', 'jinja2'} & sys.modules.keys()))"
    )
    assert python(code).splitlines()[-1] == "[]"


def test_public_names_load_on_demand() -> None:
    assert python("import sys, trace_doctor; print('polars' in sys.modules, sorted(trace_doctor.__all__))") == (
        "False ['Options', 'Report', 'Trace', 'analyze', 'compare', 'errors', 'load']\n"
    )
    assert python("import trace_doctor as td; print([getattr(td, name).__name__ for name in td.__all__])") == (
        "['Options', 'Report', 'Trace', 'analyze', 'compare', 'trace_doctor.errors', 'load']\n"
    )


def test_no_module_takes_the_place_of_a_public_function() -> None:
    code = "import trace_doctor as td, pkgutil; print({m.name for m in pkgutil.iter_modules(td.__path__)} & {'analyze', 'compare', 'load'})"
    assert python(code) == "set()\n"


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import trace_doctor

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        trace_doctor.nonsense  # noqa: B018


def test_without_arguments_it_shows_examples_and_help_and_exits_2(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    assert "trace-doctor analyze trace.json.gz" in ran.err
    assert all(name in ran.err for name in COMMANDS)


def test_h_is_help(run: Run) -> None:
    assert run("-h") == run("--help")
    assert run("analyze", "-h") == run("analyze", "--help")


def test_the_version_is_the_packages(run: Run) -> None:
    from importlib.metadata import version

    assert run("--version") == Ran(0, f"trace-doctor {version('trace-doctor')}\n", "")


# ---- what goes where


def test_stdout_is_the_report_alone(run: Run) -> None:
    assert run("analyze", "t.json") == Ran(0, terminal.render(samples.healthy()), "")


@pytest.mark.parametrize("flags", [["--json"], ["-f", "json"], ["--format", "json", "--json"]])
def test_json_is_one_document(run: Run, flags: list[str]) -> None:
    ran = run("analyze", "t.json", *flags)
    assert (ran.code, ran.out.encode(), ran.err) == (0, to_json(samples.healthy()), "")
    assert from_json(ran.out) == samples.healthy()


def test_markdown(run: Run) -> None:
    assert run("analyze", "t.json", "-f", "markdown") == Ran(0, markdown.render(samples.healthy()), "")


def test_html_may_go_to_stdout(run: Run) -> None:
    assert run("analyze", "t.json", "-f", "html") == Ran(0, html.render(samples.healthy()), "")


def test_every_output_is_written_by_its_suffix_and_nothing_printed(run: Run, tmp_path: Path) -> None:
    flags = [part for suffix in ("json", "md", "txt", "html") for part in ("-o", str(tmp_path / f"r.{suffix}"))]
    assert run("analyze", "t.json", *flags) == Ran(0, "", "")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "r.json": to_json(samples.healthy()),
        "r.md": markdown.render(samples.healthy()).encode(),
        "r.txt": terminal.render(samples.healthy()).encode(),
        "r.html": html.render(samples.healthy()).encode(),
    }


@pytest.mark.parametrize(
    ("flags", "printed"), [(["-f", "json"], "{"), (["-o", "-"], "rank0"), (["-o", "-", "--json"], "{")]
)
def test_with_files_stdout_speaks_only_when_asked(run: Run, tmp_path: Path, flags: list[str], printed: str) -> None:
    ran = run("analyze", "t.json", "-o", str(tmp_path / "r.md"), *flags)
    assert (ran.code, ran.out.startswith(printed), ran.err) == (0, True, "")


def test_an_existing_file_is_kept_and_the_work_not_begun(run: Run, tmp_path: Path) -> None:
    there = tmp_path / "r.md"
    there.write_text("old")
    ran = run("analyze", "t.json", "-o", str(there), does=fails_with(AssertionError("began")))
    assert (ran.code, ran.out, there.read_text()) == (2, "", "old")
    assert "--force" in ran.err
    assert run("analyze", "t.json", "-o", str(there), "--force").code == 0
    assert there.read_text().startswith("<!-- trace-doctor -->")


def test_an_unknown_suffix_is_refused_at_once(run: Run) -> None:
    ran = run("analyze", "t.json", "-o", "report.pdf", does=fails_with(AssertionError("began")))
    assert ran.code == 2
    assert ran.err.startswith("error: --output report.pdf: don't know")


def test_colour_is_for_those_who_ask(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in run("analyze", "t.json", "--color").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("analyze", "t.json").out
    assert "\x1b[" not in run("analyze", "t.json", "--no-color").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("analyze", "t.json").out


def test_a_stdout_that_is_not_utf8_gets_ascii(tmp_path: Path) -> None:
    code = (
        "from tests.reporter import samples\nfrom trace_doctor import pipeline\nfrom trace_doctor.__main__ import main\n"
        "pipeline.analyze = lambda *a, **k: samples.healthy()\nmain(['analyze', 't.json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
        timeout=60,
        check=True,
    )
    assert done.stdout.decode("ascii").replace("\r\n", "\n") == terminal.render(samples.healthy(), ascii_only=True)


# ---- options


def test_without_flags_the_options_are_the_defaults(options_of: Callable[..., Options]) -> None:
    assert options_of() == Options()


def test_every_flag_reaches_its_option(options_of: Callable[..., Options]) -> None:
    flags = (
        "--device h100-sxm --peak-flops 989T --peak-dtype fp8 --memory-bandwidth 3350GB/s --steps 2-4 --step-range train "
        "--flops-per-step 1.2P --tokens-per-step 4M --world-size 64 --kernel-patterns k.toml --jobs 2 --launch-spacing-us 1 "
        "--device-gap-us 2.5 --blocked-call-us 3 --initialisation-ms 4 --small-copy-bytes 5 --outlier-ratio 6 --floor-us 7"
    )
    assert options_of(*flags.split()) == Options(
        device="h100-sxm", peak_flops=989e12, peak_dtype="fp8", memory_bandwidth=3.35e12, steps="2-4", step_range="train",
        flops_per_step=1.2e15, tokens_per_step=4e6, world_size=64, kernel_patterns="k.toml", jobs=2,
        thresholds=Thresholds(
            launch_spacing_ns=1_000, device_gap_ns=2_500, blocked_call_ns=3_000, initialisation_ns=4_000_000,
            small_copy_bytes=5, outlier_ratio=6.0, floor_ns=7_000,
        ),
    )  # fmt: skip
    assert options_of("--all-steps", "--params", "7B", "--tokens-per-step", "1e6") == Options(
        all_steps=True, params=7e9, tokens_per_step=1e6
    )
    model = (
        "--model m.json --sequence-length 8192 --convention palm --params 7B --active-params 1B --tokens-per-step 4M"
    )
    assert options_of(*model.split()) == Options(
        model="m.json", sequence_length=8192, convention="palm", params=7e9, active_params=1e9, tokens_per_step=4e6
    )
    assert options_of("--whole-trace") == Options(whole_trace=True)


def test_every_option_has_a_flag() -> None:
    flags = {parameter.name for parameter in analyze.params}
    assert set(Options.__struct_fields__) - {"thresholds", "limits", "flops_formula"} <= flags
    assert len([p for p in analyze.params if getattr(p, "section", "").startswith("Thresholds")]) == len(
        Thresholds.__struct_fields__
    )


@pytest.mark.parametrize(
    ("flag", "written", "number"),
    [
        ("--peak-flops", "989e12", 989e12), ("--peak-flops", "989T", 989e12), ("--peak-flops", "989 TFLOP/s", 989e12),
        ("--peak-flops", "1.979PFLOPS", 1.979e15), ("--peak-flops", "989,000 GFLOP/s", 989e12),
        ("--memory-bandwidth", "3.35e12", 3.35e12), ("--memory-bandwidth", "3350 GB/s", 3.35e12),
        ("--memory-bandwidth", "3.35TB/s", 3.35e12), ("--params", "7B", 7e9), ("--params", "7e9", 7e9), ("--params", "350m", 350e6),
    ],
)  # fmt: skip
def test_quantities_are_read_as_people_write_them(
    options_of: Callable[..., Options], flag: str, written: str, number: float
) -> None:
    more = ["--tokens-per-step", "1"] if flag == "--params" else []
    assert getattr(options_of(flag, written, *more), flag[2:].replace("-", "_")) == pytest.approx(number)


@pytest.mark.parametrize(
    ("flag", "written"),
    [
        ("--peak-flops", "fast"), ("--peak-flops", "-1T"), ("--peak-flops", "0T"), ("--peak-flops", "nan"), ("--peak-flops", "1e999"),
        ("--peak-flops", "989"), ("--memory-bandwidth", "3.35TFLOP/s"), ("--memory-bandwidth", "3350GiB/s"), ("--params", "7 apples"),
        ("--jobs", "0"), ("--outlier-ratio", "0.5"), ("--format", "xml"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(run: Run, flag: str, written: str) -> None:
    ran = run("analyze", "t.json", flag, written)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 2)
    assert ran.err.startswith("error: Invalid value for")
    assert flag in ran.err


def test_a_forgotten_prefix_is_guessed(run: Run) -> None:
    assert "did you mean 989T?" in run("analyze", "t.json", "--peak-flops", "989").err


@pytest.mark.parametrize(
    "flags",
    [
        "--steps 1 --all-steps", "--whole-trace --steps 1", "--whole-trace --all-steps", "--whole-trace --step-range x",
        "--flops-per-step 1P --params 7B", "--params 7B", "--active-params 7B", "--flops-per-step 1P --model m.json", "--json -f markdown",
    ],
)  # fmt: skip
def test_contradictions_are_refused(run: Run, flags: str) -> None:
    ran = run("analyze", "t.json", *flags.split())
    assert (ran.code, ran.out) == (2, "")
    assert "next:" in ran.err


# ---- what goes wrong


def test_an_error_says_what_where_and_next(run: Run) -> None:
    error = InputError("is no trace", where="t.json", hint="record one")
    assert run("analyze", "t.json", does=fails_with(error)) == Ran(
        2, "", "error: t.json: is no trace\n  next: record one\n"
    )


def test_nothing_in_an_error_steers_the_terminal(run: Run) -> None:
    error = InputError("is no trace", where="\x1b[31mt.json\r")
    assert run("analyze", "t.json", does=fails_with(error)).err == "error: \\x1b[31mt.json : is no trace\n"


@pytest.mark.parametrize("path", ["trace.json", "runs/a", "*.gz", "-"])
def test_a_bare_path_is_told_what_was_meant(run: Run, path: str) -> None:
    ran = run(path)
    assert (ran.code, ran.out) == (2, "")
    assert f"did you mean `trace-doctor analyze {path}`?" in ran.err


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    assert run("analyse") == Ran(
        2, "", "error: there is no command 'analyse'; did you mean 'analyze'?\n  next: trace-doctor --help\n"
    )


def test_a_path_is_needed(run: Run) -> None:
    assert run("analyze") == Ran(2, "", "error: Missing argument 'PATH...'.\n  next: trace-doctor analyze --help\n")


def test_an_interrupt_exits_130_and_leaves_no_file(run: Run, tmp_path: Path) -> None:
    ran = run("analyze", "t.json", "-o", str(tmp_path / "r.md"), does=fails_with(KeyboardInterrupt()))
    assert (ran.code, ran.out, ran.err.strip(), list(tmp_path.iterdir())) == (130, "", "interrupted", [])


def test_a_bug_exits_101_and_asks_to_be_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACE_DOCTOR_DEBUG", raising=False)
    ran = run("analyze", "t.json", does=fails_with(KeyError("x")))
    assert (ran.code, ran.out) == (101, "")
    assert "bug in trace-doctor: KeyError: 'x'" in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.setenv("TRACE_DOCTOR_DEBUG", "1")
    assert "Traceback (most recent call last)" in run("analyze", "t.json", does=fails_with(KeyError("x"))).err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "t.json"), "t.json: Permission denied"),
        (MemoryError(), "out of memory"),
    ],
)
def test_what_the_machine_refuses_is_no_bug(run: Run, error: BaseException, words: str) -> None:
    ran = run("analyze", "t.json", does=fails_with(error))
    assert (ran.code, words in ran.err) == (2, True)


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys; from tests.reporter import samples; from trace_doctor import pipeline; from trace_doctor.__main__ import main\n"
        "pipeline.analyze = lambda *a, **k: samples.busy_but_slow()\nsys.stdin.read()\nmain(['analyze', 't.json', '--json'])"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout
        assert process.stdin
        assert process.stderr
        process.stdout.close()
        process.stdin.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_said() -> None:
    code = (
        "from tests.reporter import samples; from trace_doctor import pipeline; from trace_doctor.__main__ import main\n"
        "pipeline.analyze = lambda *a, **k: samples.busy_but_slow()\nmain(['analyze', 't.json'])"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (2, "error: stdout: can't be written: No space left on device\n")


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX")
@pytest.mark.parametrize("stream", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_closed_streams_are_nobody_reading(tmp_path: Path, stream: str) -> None:
    trace, report = write(tmp_path, document(step())), tmp_path / "report.md"
    command = f"{shlex.quote(sys.executable)} -m trace_doctor analyze {shlex.quote(str(trace))} -o {shlex.quote(str(report))} -o -"
    assert subprocess.run(["/bin/sh", "-c", f"{command} {stream}"], timeout=60, check=False).returncode == 0
    assert report.read_text().startswith("<!-- trace-doctor -->")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_half_written_goes_with_an_interrupt(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import sys; from time import sleep; from tests.reporter import samples; from trace_doctor import pipeline\n"
        "from trace_doctor.overlay import document; from trace_doctor.__main__ import main\n"
        "def draw(*a, **k):\n    yield b'half'\n    print('now', flush=True)\n    sleep(60)\n"
        "document.draw, document.check = draw, lambda *a, **k: None\n"
        "pipeline.diagnose = lambda *a, **k: pipeline.Diagnosis(samples.healthy(), ())\n"
        f"main(['analyze', 't.json', '-o', {str(tmp_path / 'x.perfetto.json')!r}])"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"now\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        assert (process.wait(60), process.stderr.read().strip()) == (130, b"interrupted")
    assert list(tmp_path.iterdir()) == []


# ---- devices, documentation


def test_devices_lists_name_peak_bandwidth_link_and_confidence(run: Run) -> None:
    ran = run("devices", "h100-sxm")
    header, row = ran.out.splitlines()[:2]
    assert (ran.code, ran.err) == (0, "")
    assert header.split("  ")[0] == "device"
    assert row.split() == ["h100-sxm", "989.4", "TFLOP/s", "3350", "GB/s", "NVLink4", "450", "GB/s", "high"]
    assert len(run("devices").out.splitlines()) > 30


def test_an_unknown_device_is_an_error(run: Run) -> None:
    assert run("devices", "abacus").code == 2


def test_every_flag_is_in_the_reference() -> None:
    reference = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    flags = {
        flag
        for parameter in analyze.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("-")
    }
    assert {flag for flag in flags if f"`{flag}" not in reference} == set()


def test_the_reports_of_a_run_are_the_same_bytes(run: Run) -> None:
    assert run("analyze", "t.json", "--json").out == run("analyze", "t.json", "--json").out
    assert json.loads(run("analyze", "t.json", "--json").out)["schema_version"] == "1.0"


def test_a_post_mortem_is_a_markdown_document(run: Run, tmp_path: Path) -> None:
    start = "<!-- trace-doctor post-mortem -->\n"
    assert run("analyze", "t.json", "--post-mortem").out.startswith(start)
    files = [str(tmp_path / name) for name in ("p.md", "r.json")]
    assert run("analyze", "t.json", "--post-mortem", "-o", files[0], "-o", files[1]) == (0, "", "")
    assert [Path(file).read_text().startswith(start) for file in files] == [True, False]
    ran = run("analyze", "t.json", "--post-mortem", "--json")
    assert (ran.code, "--post-mortem is a Markdown document, and none is written" in ran.err) == (2, True)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 4), (128, 4)])
def test_polars_gets_few_threads(cores: int, threads: int) -> None:
    assert polars_threads(cores) == threads


def test_your_own_number_of_threads_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_MAX_THREADS", "3")
    code = "import os; from trace_doctor.cli import running; running._run = lambda _: print(os.environ['{}']); running.main()"
    assert python(code.format("POLARS_MAX_THREADS")) == "3\n"
