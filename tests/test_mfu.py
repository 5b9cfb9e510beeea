"""MFU without a trace: what is answered, what is warned of, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.errors import InputError, TraceDoctorError, UsageError
from trace_doctor.estimate import Estimate, Run, to_json
from trace_doctor.mfu import estimate
from trace_doctor.options import Options
from trace_doctor.pipeline import analyze
from trace_doctor.reporter import terminal
from trace_doctor.reporter.estimate import render

H100 = Options(device="h100-sxm")
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
TINY = """
name = "tiny"
vocab = 100
[[layers]]
count = 2
hidden = 8
attention = { heads = 2 }
mlp = { width = 32 }
"""
TINY_PER_TOKEN = 6 * (2 * (4 * 64 + 3 * 256) + 800) + 6 * 2 * 8 * 16
"""At a sequence of 16: matrices, logits, and half of the scores."""


@pytest.fixture
def llama(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return str(tmp_path)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return str(file)


def codes(found: Estimate) -> list[str]:
    return [message.code for message in found.warnings]


# ---- the numbers


def test_torchtitans_log_line(llama: str) -> None:
    """pytorch/torchtitan graph_trainer: tps 4,376, tflops 253.41, mfu 25.62 %, of 989 TFLOP/s."""
    run = Run(model=llama, sequence_length=8192, tokens_per_second=4376, per_gpu=True, gpus=8, convention="torchtitan")
    found = estimate(run, Options(peak_flops=989e12))
    assert found.throughput.flops_per_s_per_gpu == pytest.approx(253.41e12, rel=1e-3)
    assert found.mfu == pytest.approx(0.2562, rel=1e-3)
    assert found.throughput.tokens_per_s == 8 * 4376
    assert (found.model.parameters, found.model.sequence) == (8_030_261_248, 8192)


def test_by_hand(tiny: str) -> None:
    """1,600 tokens in half a second on 4 GPUs are 800 a second on each."""
    run = Run(model=tiny, sequence_length=16, tokens_per_step=1600, step_time=0.5, gpus=4, recompute="full")
    found = estimate(run, Options(peak_flops=1e9))
    assert found.flops.per_token == TINY_PER_TOKEN
    assert found.flops.per_step == 1600 * TINY_PER_TOKEN
    assert found.mfu == pytest.approx(800 * TINY_PER_TOKEN / 1e9)
    again = 2 * 2 * (4 * 64 + 3 * 256) + 2 * 2 * 8 * 16
    assert found.flops.recomputed_per_token == again
    assert found.hfu == pytest.approx(800 * (TINY_PER_TOKEN + again) / 1e9)
    assert sum(part.share for part in found.flops.parts) == pytest.approx(1)


def test_a_step_is_told_by_its_samples(tiny: str) -> None:
    by_tokens, by_samples = (
        estimate(Run(model=tiny, sequence_length=16, step_time=1, **said))
        for said in ({"tokens_per_step": 320}, {"batch_size": 20})
    )
    assert by_samples == by_tokens


def test_only_parameters() -> None:
    """6 N: 7 B parameters at 1,000 tokens/s are 42 TFLOP/s; of a mixture the active ones."""
    assert estimate(Run(params=7e9, tokens_per_second=1000)).throughput.flops_per_s_per_gpu == 42e12
    sparse = estimate(Run(params=7e9, active_params=1e9, tokens_per_second=1000))
    assert sparse.throughput.flops_per_s_per_gpu == 6e12
    assert codes(sparse) == ["unknown-peak", "no-attention"]
    assert (sparse.model.parameters, sparse.model.active_parameters, sparse.convention.name) == (7e9, 1e9, "6n")


def test_days_and_money() -> None:
    """864 M tokens at 1,000 a second are 10 days; 4 GPUs for 240 hours at 2.50."""
    training = estimate(Run(params=1e9, tokens_per_second=1000, gpus=4, train_tokens=864e6, price=2.5)).training
    assert training is not None
    assert (training.days, training.gpu_hours, training.cost) == (10, 960, 2400)


def test_lora_overrides_the_file(llama: str) -> None:
    full, lora = (
        estimate(Run(model=llama, sequence_length=8192, lora_rank=rank, convention="megatron")).flops.per_token
        for rank in (None, 8)
    )
    scores = 6 * 32 * 4096 * 8192
    assert lora == pytest.approx((full - scores) * 2 / 3 + scores)


def test_every_convention_stands_beside(llama: str) -> None:
    found = estimate(Run(model=llama, sequence_length=8192, tokens_per_second=4376), H100)
    by_name = {row.name: row for row in found.conventions}
    assert found.convention.name == "trace-doctor"
    assert by_name["trace-doctor"].mfu == found.mfu
    assert by_name["torchtitan"].flops_per_token > by_name["megatron"].flops_per_token


# ---- which peak


def test_the_peak_is_dense(llama: str) -> None:
    run = Run(model=llama, sequence_length=8192, tokens_per_second=4376)
    assert estimate(run, H100).device.peak_flops["bf16"] == 989.4e12
    with pytest.raises(UsageError, match="2:4 sparsity; dense it is 989"):
        estimate(run, Options(device="h100-sxm", peak_flops=1979e12))
    assert estimate(run, Options(device="h100-sxm", peak_flops=1979e12, peak_dtype="fp8")).device.peak_dtype == "fp8"


def test_another_dtype_than_the_peaks_is_warned_of(llama: str) -> None:
    run = Run(model=llama, sequence_length=8192, tokens_per_second=8000, dtype="float8")
    found = estimate(run, H100)
    assert (found.dtype, found.device.peak_dtype, codes(found)) == ("fp8", "bf16", ["peak-dtype"])
    assert found.mfu is not None
    assert found.mfu_by_peak == {"fp8": pytest.approx(found.mfu * 989.4 / 1978.9, rel=1e-3)}
    assert codes(estimate(run, Options(device="h100-sxm", peak_dtype="fp8"))) == []
    assert "not known" in estimate(run, Options(device="a100-sxm-80")).warnings[0].message


def test_too_much_is_warned_of() -> None:
    assert codes(estimate(Run(params=7e9, tokens_per_second=1e6), H100)) == ["mfu-above-one", "no-attention"]


def test_what_is_missing_is_said(llama: str) -> None:
    run = Run(model=llama, sequence_length=8192)
    assert codes(estimate(run, H100)) == ["unknown-speed"]
    assert codes(estimate(run)) == ["unknown-peak"]
    assert (estimate(run).mfu, estimate(run, H100).hfu) == (None, None)


# ---- what is refused


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({}, "what is trained"), ({"params": 1e9, "convention": "palm"}, "counts the layers"), 
        ({"params": 1e9, "dtype": "bf17"}, "--dtype"),
        ({"params": 1e9, "convention": "megatorn"}, "--convention"), ({"params": 1e9, "tokens_per_step": 1, "batch_size": 1}, "twice"),
        ({"params": 1e9, "tokens_per_second": 1, "step_time": 1, "tokens_per_step": 1}, "twice"),
        ({"params": 1e9, "step_time": 1}, "--step-time"),
        ({"params": 1e9, "batch_size": 2}, "--batch-size"), ({"params": 1e300}, "--params"),
        ({"params": 1e9, "step_time": -1.0}, "--step-time"),
        ({"params": 1e9, "tokens_per_second": float("nan")}, "--tokens-per-second"),
        ({"params": 1e9, "lora_rank": 8}, "--lora-rank"), ({"params": 1e9, "active_params": 2e9}, "--active-params"),
    ],
)  # fmt: skip
def test_contradictions(said: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError) as refused:
        estimate(Run(**said))
    assert where in str(refused.value)
    assert refused.value.hint


def test_a_model_needs_the_sequence(llama: str) -> None:
    with pytest.raises(UsageError, match="attention depends on it"):
        estimate(Run(model=llama))


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "{}", '{"model_type": "mamba"}', "vocab = 5", 'name = "x"\n[[layers]]\ncount = 1', TINY + "\n[surprise]\na = 1",
        TINY.replace("count = 2", "count = -2"), TINY.replace("heads = 2", "heads = 0"), "params = -1.0", "params = nan", "params = inf",
        TINY.replace("width = 32", "width = 32, experts = 2, active = 3"), '{"hidden_size": "wide", "num_hidden_layers": 2}',
        json.dumps({**LLAMA, "num_key_value_heads": "x"}), json.dumps({**LLAMA, "layer_types": ["full_attention"]}),
        json.dumps({**LLAMA, "head_dim": -1}), json.dumps({"_class_name": "FluxTransformer2DModel"}), "\x00\xff",
        "[[layers]]\ncount = 1\nhidden = 8",
    ],
)  # fmt: skip
def test_a_file_that_is_no_model(tmp_path: Path, content: str) -> None:
    file = tmp_path / "model"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(TraceDoctorError) as refused:
        estimate(Run(model=str(file), sequence_length=16))
    assert refused.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read") as refused:
        estimate(Run(model=str(tmp_path / "none.json"), sequence_length=16))
    assert "none.json" in str(refused.value)


# ---- text and JSON


def test_the_text_says_formula_flops_peak_and_device(llama: str) -> None:
    run = Run(
        model=llama, sequence_length=8192, tokens_per_second=4376, per_gpu=True, gpus=8, recompute="full", tokens_per_step=4e6,
        train_tokens=15e12, price=2.5,
    )  # fmt: skip
    text = render(estimate(run, H100))
    assert "MFU 22.8 % (bf16 dense 989 TFLOP/s; convention trace-doctor)" in text
    assert "HFU 29.9 % (full recomputation)" in text
    assert "8 x NVIDIA H100 80GB" in text
    assert "51.5 GFLOP per token; 206 PFLOP per step of 4.00 M tokens" in text
    assert "formula: 3 x [2 W s" in text
    assert "4,959.2 days" in text
    assert max(map(len, text.splitlines())) <= 80


def test_names_from_files_can_not_steer_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "_name_or_path": "\x1b[31mred\nline"}))
    text = render(estimate(Run(model=str(file), sequence_length=8192), H100))
    assert "\x1b" not in text
    assert text.splitlines()[0].startswith("\\x1b[31mred line")


def test_json_is_the_estimate(llama: str) -> None:
    found = estimate(Run(model=llama, sequence_length=8192, tokens_per_second=4376), H100)
    document = json.loads(to_json(found))
    assert (document["schema_version"], document["mfu"], document["hfu"]) == ("1.0", found.mfu, None)
    assert document["device"]["peak_flops"]["bf16"] == 989.4e12
    assert document["flops"]["parts"][0]["name"] == "attention"


# ---- beside a trace

GPT = """
vocab = 50304
tied = true
[[layers]]
count = 4
hidden = 2048
attention = { heads = 16 }
mlp = { width = 8192, matrices = 2 }
"""
HEALTHY = Path(__file__).parents[1] / "sample_traces/gpt-healthy.json.gz"


@pytest.fixture
def gpt(tmp_path: Path) -> str:
    """The model of the healthy sample (tests/simulator/samples.py); a step of it is 8 sequences of 2,048."""
    file = tmp_path / "gpt.toml"
    file.write_text(GPT)
    return str(file)


def test_a_models_flops_are_those_of_the_traces_shapes(gpt: str) -> None:
    by_shapes = analyze([HEALTHY])
    options = Options(model=gpt, tokens_per_step=8 * 2048, sequence_length=2048)
    by_model = analyze([HEALTHY], options)
    work = by_model.workload
    weights = 4 * (4 * 2048**2 + 2 * 2048 * 8192) + 2048 * 50304
    assert work.model_flops_per_step == 8 * 2048 * (6 * weights + 6 * 4 * 2048 * 2048)
    assert work.shape_flops_per_step == pytest.approx(work.model_flops_per_step, rel=1e-9)
    assert (work.flops_basis, work.shape_covered_share) == ("model", 1.0)
    assert by_model.metrics.mfu == pytest.approx(by_shapes.metrics.mfu)
    assert by_model.metrics.tokens_per_s is not None
    said = " ".join(terminal.render(by_model).split())
    assert "FLOPs of a step and GPU: 31.6 TFLOP, gpt, 1.927 GFLOP a token x 16,384 tokens" in said
    assert "Cross-check: the shapes of the trace hold 31.6 TFLOP, 100.0 % of the model's" in said


@pytest.mark.parametrize(("tokens", "code"), [(2 * 8 * 2048, "flops-mismatch"), (4 * 2048, "flops-contradiction")])
def test_a_model_that_the_shapes_contradict(gpt: str, tokens: int, code: str) -> None:
    report = analyze([HEALTHY], Options(model=gpt, tokens_per_step=tokens, sequence_length=2048))
    assert [message.code for message in report.warnings if message.code.startswith("flops")] == [code]


@pytest.mark.parametrize("said", [{"convention": "palm"}, {"sequence_length": 8192}])
def test_what_is_said_of_a_model_needs_one(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="needs --model"):
        analyze([HEALTHY], Options(**said))


def test_a_model_needs_the_tokens_of_a_step(gpt: str) -> None:
    with pytest.raises(UsageError, match="--model needs --tokens-per-step"):
        analyze([HEALTHY], Options(model=gpt, sequence_length=2048))
