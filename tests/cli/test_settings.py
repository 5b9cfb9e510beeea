"""Command line > environment > config file > default."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trace_doctor.cli.analyze import analyze
from trace_doctor.cli.settings import Setting, known
from trace_doctor.options import Limits, Options, Thresholds

ALL_SETTINGS = [one for one in analyze.params if isinstance(one, Setting)]
SETTINGS = [one for one in ALL_SETTINGS if one.section != "Gates"]
DOCS = Path(__file__).parents[2] / "docs/reference"
OptionsOf = Callable[..., Options]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config file beside the working directory, to be written to."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "trace-doctor.toml"


def test_a_file_gives_every_option(config: Path, options_of: OptionsOf) -> None:
    config.write_text("""
device = "h100-sxm"
peak-flops = "989 TFLOP/s"
peak-dtype = "fp8"
memory-bandwidth = 3.35e12
steps = "2-4"
step-range = "train"
flops-per-step = "1.2P"
tokens-per-step = 4_000_000
world-size = 64
redact = true
gpus = 512
gpu-hour-price = 2.5
top-kernels = 3
group-by = "op"
kernel-patterns = "ci/k.toml"
jobs = 2
select = ["launch-*", "input-pipeline"]
ignore = ["launch-bound"]

[thresholds]
launch-spacing-us = 1
device-gap-us = 2.5
blocked-call-us = 3
initialisation-ms = 4
small-copy-bytes = 5
outlier-ratio = 6
floor-us = 7

[limits]
least-share = 0.01
few-kernels = 10
""")
    assert options_of() == Options(
        device="h100-sxm", peak_flops=989e12, peak_dtype="fp8", memory_bandwidth=3.35e12, steps="2-4", step_range="train",
        flops_per_step=1.2e15, tokens_per_step=4e6, world_size=64,
        redact=True, gpus=512, gpu_hour_price=2.5, top_kernels=3, group_by="op", kernel_patterns=str(config.parent / "ci/k.toml"), jobs=2,
        select=("launch-*", "input-pipeline"), ignore=("launch-bound",),
        thresholds=Thresholds(
            launch_spacing_ns=1_000, device_gap_ns=2_500, blocked_call_ns=3_000, initialisation_ns=4_000_000,
            small_copy_bytes=5, outlier_ratio=6.0, floor_ns=7_000,
        ),
        limits=Limits(least_share=0.01, few_kernels=10),
    )  # fmt: skip
    config.write_text("all-steps = true\nparams = '7B'\ntokens-per-step = 1e6\n")
    assert options_of() == Options(all_steps=True, params=7e9, tokens_per_step=1e6)
    config.write_text("whole-trace = true")
    assert options_of() == Options(whole_trace=True)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    config: Path,
    options_of: OptionsOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config.write_text("jobs = 1\nselect = ['launch-bound']\n[thresholds]\nfloor-us = 1")
    assert options_of() == Options(jobs=1, select=("launch-bound",), thresholds=Thresholds(floor_ns=1_000))
    monkeypatch.setenv("TRACE_DOCTOR_JOBS", "2")
    monkeypatch.setenv("TRACE_DOCTOR_SELECT", "host-code offload")
    monkeypatch.setenv("TRACE_DOCTOR_FLOOR_US", "2")
    assert options_of() == Options(jobs=2, select=("host-code", "offload"), thresholds=Thresholds(floor_ns=2_000))
    flags = ("--jobs", "3", "--select", "allocator", "--floor-us", "3")
    assert options_of(*flags) == Options(jobs=3, select=("allocator",), thresholds=Thresholds(floor_ns=3_000))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_has_a_variable(
    setting: Setting,
    options_of: OptionsOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = {"device": "h100-sxm", "select": "offload", "ignore": "offload", "group-by": "op"}.get(setting.key, "2e9")
    value = "1" if setting.is_flag else "2" if "Int" in type(setting.type).__name__ else value
    flags = ("--tokens-per-step", "1e9") if setting.key in ("params", "active-params") else ()
    monkeypatch.setenv(f"TRACE_DOCTOR_{setting.key.upper().replace('-', '_')}", value)
    by_variable = options_of(*flags)
    monkeypatch.delenv(f"TRACE_DOCTOR_{setting.key.upper().replace('-', '_')}")
    assert by_variable == options_of(*flags, f"--{setting.key}", *([] if setting.is_flag else [value]))
    assert by_variable != options_of(*flags)


def test_every_option_of_an_analysis_is_a_setting() -> None:
    # a program to run is never taken from a file that lies in some folder
    assert set(Options.__struct_fields__) - {"thresholds", "limits", "flops_formula", "nsys"} == {
        one.name for one in SETTINGS if not one.table
    }
    assert len([one for one in SETTINGS if one.table == "thresholds"]) == len(Thresholds.__struct_fields__)


def test_a_file_is_found_upwards_given_or_left_out(
    config: Path,
    options_of: OptionsOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config.write_text("jobs = 5")
    other = config.with_name("other.toml")
    other.write_text("jobs = 6")
    below = config.parent / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert options_of() == Options(jobs=5)
    assert options_of("--config", str(other)) == Options(jobs=6)
    assert options_of("--no-config") == Options()
    monkeypatch.setenv("TRACE_DOCTOR_CONFIG", str(other))
    assert options_of() == Options(jobs=6)
    assert options_of("--no-config") == Options()
    monkeypatch.setenv("TRACE_DOCTOR_NO_CONFIG", "1")
    assert options_of() == Options()
    assert options_of("--config", str(config)) == Options(jobs=5)


def test_of_two_that_exclude_each_other_the_stronger_source_wins(config: Path, options_of: OptionsOf) -> None:
    config.write_text("all-steps = true\nparams = '7B'\ntokens-per-step = 1")
    flags = ("--steps", "2-4", "--flops-per-step", "1P")
    assert options_of(*flags) == Options(steps="2-4", flops_per_step=1e15, tokens_per_step=1)


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("jobs = 0", "", "trace-doctor.toml:1: jobs: 0 is not in the range 1<=x<=256."),
        ("\njobs = 2.5", "", "trace-doctor.toml:2: jobs: '2.5' is not a valid integer"),
        ("peak-flops = '989'", "", "trace-doctor.toml:1: peak-flops: '989' is too small for a peak: did you mean 989T?"),
        ("[thresholds]\nfloor-us = 'x'", "", "trace-doctor.toml:2: floor-us: 'x' is not a valid float"),
        ("select = 'launch-bound'", "", "trace-doctor.toml:1: select takes a list"),
        ("device = ['a', 'b']", "", "trace-doctor.toml:1: device takes one value"),
        ("ignore = ['launch-bond']", "", "ignore of {folder}/trace-doctor.toml:1: no rule is called 'launch-bond'"),
        ("devise = 'x'", "", "trace-doctor.toml:1: nothing is called devise"),
        ("limits = 3", "", "trace-doctor.toml:1: limits is a table: write [limits]"),
        ("[[limits]]\nleast-share = 1", "", "trace-doctor.toml:1: limits is a table: write [limits]"),
        ("waivers = [1]", "", "trace-doctor.toml:1: waivers are tables: write [[waivers]]"),
        ("[waivers]\ngate = 'mfu<1%'", "", "trace-doctor.toml:1: waivers are tables: write [[waivers]]"),
        ("kernel-patterns = 3", "", "trace-doctor.toml:1: kernel-patterns takes the path of a file, as a text"),
        ("[thresholds]\nfloor-us = nan", "", "trace-doctor.toml:2: floor-us: 'nan' is no number"),
        ("[thresholds]\ndevice-gap-us = inf", "", "trace-doctor.toml:2: device-gap-us: inf is not in the range"),
        ("world-size = 999_999_999_999_999_999_999", "", "trace-doctor.toml:1: world-size: 999999999999999999999 is not in the"),
        ("", "--outlier-ratio nan", "Invalid value for '--outlier-ratio': 'nan' is no number"),
        ("[limits]\nfew-kernels = 9_999_999_999_999_999_999", "", "trace-doctor.toml:2: few-kernels: Expected `int` <"),
        ("[limits]\nleast-share = 7", "", "trace-doctor.toml:2: least-share: Expected `float` <= 1.0"),
        ("steps = '1'\nall-steps = true", "", "steps of {folder}/trace-doctor.toml:1 and all-steps of {folder}/trace-doctor.toml:2"),
        ("params = '7B'", "", "params of {folder}/trace-doctor.toml:1 needs --tokens-per-step"),
        ("", "--config trace-doctor.toml --no-config", "--no-config and --config contradict each other"),
        ("", "--config missing.toml", "Invalid value for '--config': File 'missing.toml' does not exist."),
        ("", "--select launch-bond", "--select: no rule is called 'launch-bond'\n  next: did you mean launch-bound?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(config: Path, run: Run, text: str, flags: str, message: str) -> None:
    config.write_text(text)
    ran = run("analyze", "t.json", *flags.split())
    assert (ran.code, ran.out, "bug" in ran.err) == (2, "", False)
    assert message.format(folder=config.parent) in ran.err


def test_a_variable_is_named_where_it_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_DOCTOR_IGNORE", "launch-bond")
    assert run("analyze", "t.json").err.startswith("error: TRACE_DOCTOR_IGNORE: no rule is called 'launch-bond'\n")


def test_help_and_completion_need_no_config(config: Path, run: Run) -> None:
    config.write_text("nonsense")
    assert run("analyze", "--help").code == 0
    assert run("rules").code == 0


def test_every_key_and_variable_is_in_the_reference() -> None:
    reference = (DOCS / "configuration.md").read_text()
    keys = {key for table in known(ALL_SETTINGS).values() for key in table}
    assert {key for key in keys if f"`{key}`" not in reference} == set()
    assert "`TRACE_DOCTOR_KEY`" in reference


def test_the_limits_in_the_reference_are_the_defaults() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([\d.e]+) \|", (DOCS / "configuration.md").read_text(), re.MULTILINE)
    limits = {name.replace("_", "-"): getattr(Limits(), name) for name in Limits.__struct_fields__}
    assert {key: float(value) for key, value in rows} == limits
