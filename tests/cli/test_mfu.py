"""`trace-doctor mfu` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trace_doctor import mfu as facade
from trace_doctor.cli.mfu import mfu
from trace_doctor.cli.running import main
from trace_doctor.estimate import Run
from trace_doctor.options import Options


def test_every_flag_reaches_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Run, Options]] = []
    found = facade.estimate(Run(params=1e9))
    monkeypatch.setattr(facade, "estimate", lambda run, options: asked.append((run, options)) or found)
    flags = (
        "--model m.json --params 7B --active-params 1B --sequence-length 8192 --lora-rank 8 --tokens-per-second 4k --per-gpu "
        "--tokens-per-step 4M --batch-size 512 --step-time 9.5 --gpus 64 --device h100-sxm --dtype fp8 --peak-dtype bf16 "
        "--peak-flops 989T --convention palm --recompute full --train-tokens 15T --price 2.5"
    )
    assert CliRunner().invoke(mfu, flags.split()).exit_code == 0
    run = Run(
        model="m.json", params=7e9, active_params=1e9, sequence_length=8192, lora_rank=8, tokens_per_second=4e3, per_gpu=True,
        tokens_per_step=4e6, batch_size=512, step_time=9.5, gpus=64, dtype="fp8", convention="palm", recompute="full",
        train_tokens=15e12, price=2.5,
    )  # fmt: skip
    assert asked == [(run, Options(device="h100-sxm", peak_dtype="bf16", peak_flops=989e12))]
    assert {field for field in Run.__struct_fields__ if getattr(run, field) == getattr(Run(), field)} == set()


def test_json_is_one_document() -> None:
    ran = CliRunner().invoke(mfu, ["--params", "7B", "--tokens-per-second", "1000", "-f", "json"])
    assert json.loads(ran.stdout)["throughput"]["flops_per_s_per_gpu"] == 42e12


def test_an_error_says_what_where_and_next(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["mfu", "--params", "7B", "--convention", "titan"])
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "error: --convention: there is no convention 'titan'\n  next: did you mean torchtitan or korthikanti?\n"
    )


def test_every_flag_is_in_the_reference() -> None:
    reference = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text(encoding="utf-8")
    section = reference.split("## `trace-doctor mfu`")[1].split("\n## ")[0]
    flags = {flag for parameter in mfu.params for flag in parameter.opts if flag.startswith("-")}
    assert {flag for flag in flags if f"`{flag}" not in section} == set()
