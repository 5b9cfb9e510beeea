"""Figures that others published come out of our formulas: `published/` holds them with their sources."""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trace_doctor.work.conventions import named
from trace_doctor.work.model_flops import count, parameters
from trace_doctor.work.models import Attention, Layers, Mlp, Model

PUBLISHED = Path(__file__).parent / "published"
WITHIN = 0.01
FILE = tomllib.loads((PUBLISHED / "figures.toml").read_text())
MODELS = {name: msgspec.convert(model, Model) for name, model in FILE["models"].items()}
FIGURES: list[dict[str, Any]] = FILE["figure"]
FOUNDRY = list(csv.DictReader((PUBLISHED / "llm_foundry.csv").read_text().splitlines()))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure['standing']}-{figure['id']}")
def test_a_published_figure(figure: dict[str, Any]) -> None:
    found = count(MODELS[figure["model"]], figure["sequence"], named(figure["convention"]))
    flops = found.total + (found.selective_recompute if figure.get("recompute") == "selective" else 0)
    rate = flops / found.tokens * figure.get("tokens_per_s", 0)
    value = {
        "FLOP": flops,
        "TFLOP": flops * figure.get("samples", 0) / 1e12,
        "TFLOP/s": rate / 1e12,
        "MFU %": 100 * rate / 1e12 / figure.get("peak_tflops", 1),
        "HFU %": 100 * rate / 1e12 / figure.get("peak_tflops", 1),
    }[figure["unit"]]
    assert value == pytest.approx(figure["published"], rel=WITHIN)


def test_all_figures_are_there() -> None:
    """Most sources state how they count; the others are weaker evidence, and said to be."""
    assert Counter(figure["standing"] for figure in FIGURES) == {"stated": 27, "inferred": 9, "recalled": 14}
    assert len(FOUNDRY) == 216


def foundry_model(row: dict[str, str]) -> Model:
    """MPT: biases everywhere, a tied table, learned positions as many as the sequence."""
    hidden, heads = int(row["hidden"]), int(row["heads"])
    layers = Layers(
        count=int(row["layers"]),
        hidden=hidden,
        bias="all",
        attention=Attention(heads=heads),
        mlp=Mlp(width=4 * hidden, matrices=2),
    )
    return Model(layers=(layers,), vocab=50368, tied=True, positions=int(row["sequence"]))


@pytest.mark.parametrize("row", FOUNDRY, ids=lambda row: f"{row['hidden']}-{row['sequence']}-{row['gpus']}")
def test_a_row_of_llm_foundry(row: dict[str, str]) -> None:
    """mosaicml/llm-foundry@8c8dd48 scripts/train/benchmarking/README.md: parameters to the last one, MFU and HFU."""
    model = foundry_model(row)
    assert parameters(model) == int(row["parameters"])
    found = count(model, int(row["sequence"]), named("llm-foundry"))
    per_flop = float(row["tokens_per_s"]) / found.tokens / int(row["gpus"]) / float(row["peak_tflops"]) / 1e12
    recomputed = found.full_recompute if row["is_checkpointed"] == "1" else 0
    assert 100 * found.total * per_flop == pytest.approx(float(row["mfu_percent"]), rel=WITHIN)
    assert 100 * (found.total + recomputed) * per_flop == pytest.approx(float(row["hfu_percent"]), rel=WITHIN)


def test_attention_share_of_maxtext() -> None:
    """AI-Hypercomputer/maxtext@e591f30 understand_logs_and_metrics.md: attention is 5.46 % of DeepSeek2-16B at 2048."""
    found = count(MODELS["deepseek-v2-16b"], 2048, named("maxtext"))
    scores = next(part for part in found.parts if part.name == "attention scores")
    assert 100 * (scores.forward + scores.backward) / found.total == pytest.approx(5.46, rel=WITHIN)
