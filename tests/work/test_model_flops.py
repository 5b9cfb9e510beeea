"""FLOPs of models, by hand: small layers whose every matrix can be counted in the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.errors import UsageError
from trace_doctor.work.conventions import catalogue, named
from trace_doctor.work.model_flops import Count, attended_pairs, count, parameters
from trace_doctor.work.models import Attention, Layers, Mlp, Model

H, S, V = 8, 16, 100
MLP = Mlp(width=32)
ATTENTION = Attention(heads=2)


def model_of(attention: Attention | None = ATTENTION, mlp: Mlp | None = MLP, **more: Any) -> Model:
    """Two layers of width 8; fields of Layers and of Model are told apart by name."""
    of_layers = {name: more.pop(name) for name in list(more) if name in Layers.__struct_fields__ and name != "layers"}
    layers = Layers(**{"count": 2, "hidden": H, "attention": attention, "mlp": mlp, **of_layers})
    return Model(**{"layers": (layers,), "vocab": V, **more})


def counted(model: Model, convention: str = "trace-doctor", sequence: int = S) -> Count:
    return count(model, sequence, named(convention))


def forward(model: Model, part: str, convention: str = "trace-doctor") -> float:
    return next((p.forward for p in counted(model, convention).parts if p.name == part), 0.0)


# ---- one formula after the other: 2 layers, 16 tokens, 2 FLOPs a multiply-add


def test_dense_layer() -> None:
    model = model_of()
    assert forward(model, "attention") == 2 * 2 * 16 * (4 * 8 * 8)
    assert forward(model, "mlp") == 2 * 2 * 16 * (3 * 8 * 32)
    assert forward(model, "attention scores") == 2 * (2 * 2 * (4 + 4) * 16 * 16 / 2)
    assert forward(model, "logits") == 2 * 16 * 8 * 100
    assert counted(model).total == 3 * sum(part.forward for part in counted(model).parts)


def test_gqa_shrinks_keys_and_values_alone() -> None:
    """Of the four 8 x 8 matrices two are halved; the scores keep all heads."""
    grouped = model_of(Attention(heads=2, kv_heads=1))
    assert forward(grouped, "attention") == 2 * 2 * 16 * (2 * 8 * 8 + 2 * 8 * 4)
    assert forward(grouped, "attention scores") == forward(model_of(), "attention scores")


def test_plain_mlp_has_two_matrices() -> None:
    assert forward(model_of(mlp=Mlp(width=32, matrices=2)), "mlp") == 2 * 2 * 16 * (2 * 8 * 32)


def test_mla() -> None:
    """Queries 8 -> 6 -> 2 (3+1); latent 8 -> 5+1, then 5 -> 2 (3+2); output 2*2 -> 8; scores of length 4, values of 2."""
    latent = Attention(heads=2, head_dim=3, rope_dim=1, value_dim=2, query_rank=6, kv_rank=5)
    weights = 8 * 6 + 6 * 8 + 8 * 6 + 5 * 10 + 4 * 8
    assert forward(model_of(latent), "attention") == 2 * 2 * 16 * weights
    assert forward(model_of(latent), "attention scores") == 2 * (2 * 2 * (4 + 2) * 16 * 16 / 2)


def test_experts_count_as_many_as_are_active() -> None:
    """2 of 4 experts of width 32, one shared of 16, a router of 8 x 4."""
    sparse = model_of(mlp=Mlp(width=32, experts=4, active=2, shared_width=16))
    assert forward(sparse, "mlp") == 2 * 2 * 16 * 3 * 8 * (2 * 32 + 16)
    assert forward(sparse, "router") == 2 * 2 * 16 * 8 * 4
    assert forward(sparse, "router", "megatron") == 0
    assert parameters(sparse) - parameters(sparse, active=True) == 2 * 3 * 8 * 32 * 2


@pytest.mark.parametrize(
    ("attention", "rule", "pairs"),
    [
        (Attention(heads=1), "attended", 16 * 16 / 2), (Attention(heads=1, causal=False), "attended", 16 * 16),
        # a band of 4: the half square less the half square of 12 that it cuts off
        (Attention(heads=1, window=4), "attended", 16 * 16 / 2 - 12 * 12 / 2), (Attention(heads=1, window=99), "attended", 16 * 16 / 2),
        (Attention(heads=1, window=4, causal=False), "attended", 16 * 16 - 12 * 12),
        # four blocks of 4
        (Attention(heads=1, block=4), "attended", 4 * (4 * 4 / 2)), (Attention(heads=1, block=4, causal=False), "attended", 4 * 4 * 4),
        (Attention(heads=1, window=4), "half-window", 16 * 4 / 2), (Attention(heads=1, window=4), "half", 16 * 16 / 2),
        (Attention(heads=1, window=4), "full", 16 * 16), (Attention(heads=1, causal=False), "half", 16 * 16),
        (Attention(heads=1), "none", 0),
    ],
)  # fmt: skip
def test_pairs_that_count(attention: Attention, rule: str, pairs: float) -> None:
    assert attended_pairs(attention, 16, 16, rule) == pairs


def test_cross_attention() -> None:
    """Queries and output 8 x 8 for 16 tokens, keys and values 12 -> 8 for 5 tokens of width 12; 16 x 5 pairs."""
    cross = model_of(cross_attention=Attention(heads=2, context=5, context_hidden=12))
    assert forward(cross, "cross-attention") == 2 * 2 * (16 * 2 * 8 * 8 + 5 * 2 * 12 * 8)
    assert forward(cross, "cross-attention scores") == 2 * (2 * 2 * (4 + 4) * 16 * 5)


def test_modulation_is_once_a_sample() -> None:
    assert forward(model_of(modulation=6), "modulation") == 2 * 2 * 8 * 6 * 8


def test_patches_and_classes() -> None:
    images = Model(layers=model_of().layers, input_features=12, output_features=6, classes=10)
    assert forward(images, "patches") == 2 * 16 * 12 * 8
    assert forward(images, "output") == 2 * 16 * 8 * 6
    assert forward(images, "classes") == 2 * 8 * 10
    assert forward(images, "logits") == 0


def test_a_tower_of_its_own_length_and_frozen() -> None:
    """Vision tower: 4 tokens, forward only; the text's layers as ever."""
    tower = Layers(count=1, hidden=8, mlp=Mlp(width=16, matrices=2), length=4, trained="nothing")
    both = msgspec.structs.replace(model_of(), layers=(tower, *model_of().layers))
    assert counted(both).total - counted(model_of()).total == 2 * 4 * (2 * 8 * 16)


def test_a_model_that_is_not_trained_runs_forward_alone() -> None:
    """A reference model: its logits have no backward either; nothing is computed again."""
    for convention in ("trace-doctor", "palm"):
        reference, trained = counted(model_of(trained="nothing"), convention), counted(model_of(), convention)
        assert reference.total == trained.total / 3
        assert reference.full_recompute == 0


def test_lora_skips_the_gradients_of_frozen_weights() -> None:
    """Frozen: forward and the input's gradient, 2/3; scores as ever; adapters of rank 2 beside each matrix, in full."""
    lora = model_of(lora_rank=2)
    by_name = {part.name: part for part in counted(lora).parts}
    assert {name: part.backward / part.forward for name, part in by_name.items()} == {
        "attention": 1, "mlp": 1, "adapters": 2, "logits": 1, "attention scores": 2,
    }  # fmt: skip
    assert by_name["adapters"].forward == 2 * 2 * 16 * 2 * (4 * (8 + 8) + 3 * (8 + 32))
    frozen = sum(part.forward for part in counted(model_of()).parts if part.name != "attention scores")
    scores = by_name["attention scores"].forward
    assert counted(lora, "megatron").total == 2 * frozen + 3 * scores


def test_lora_targets() -> None:
    assert forward(model_of(lora_rank=2, lora_targets=("mlp",)), "adapters") == 2 * 2 * 16 * 2 * 3 * (8 + 32)


def test_a_tied_table_is_multiplied_with_and_stored_once() -> None:
    untied, tied = model_of(), model_of(tied=True)
    assert counted(untied).total == counted(tied).total
    assert parameters(untied) - parameters(tied) == V * H


def test_parameters() -> None:
    """Two layers of 4 (8 x 8) + 3 (8 x 32) and two norms, a last norm, two tables."""
    assert parameters(model_of()) == 2 * (4 * 64 + 3 * 256 + 2 * 8) + 8 + 2 * 800


def test_biases() -> None:
    """All: 4 x 8 and 2 x 32 + 8 a layer, and the norms' own; qkv: 3 x 8."""
    none, qkv, everywhere = (parameters(model_of(bias=bias)) for bias in ("none", "qkv", "all"))
    assert qkv - none == 2 * 3 * 8
    assert everywhere - none == 2 * (4 * 8 + 2 * 32 + 8 + 2 * 8) + 8


# ---- conventions

N = 2 * (4 * 64 + 3 * 256 + 2 * 8) + 8
"""Parameters without tables."""
W = 2 * (4 * 64 + 3 * 256) + 800
"""Weights of matmuls, logits included."""
SCORES = 2 * 8 * 16
"""Layers x width x sequence."""


BY_HAND = {
    "trace-doctor": 6 * W + 6 * SCORES, "megatron": 6 * W + 6 * SCORES, "korthikanti": 6 * W + 12 * SCORES,
    "maxtext": 6 * W + 6 * SCORES, "levanter": 6 * W + 12 * SCORES + 3 * 3 * 2 * 2 * 16, "flop-counter": 6 * W + 14 * SCORES,
    "palm": 6 * (N + 1600 + 40) + 12 * SCORES, "llm-foundry": 6 * (N + 1600 + 40) + 12 * SCORES,
    "nanogpt": 6 * (N + 1600) + 12 * SCORES, "llm.c": 6 * (N + 1600 + 40) + 6 * SCORES,
    "torchtitan": 6 * (N + 800) + 12 * SCORES, "lingua": 6 * (N + 800) + 7 * SCORES, "6n": 6 * (N + 1600 + 40),
}  # fmt: skip
"""FLOPs of a token: a dense model with two tables of 800 and 5 positions."""


@pytest.mark.parametrize(("convention", "per_token"), BY_HAND.items())
def test_a_convention(convention: str, per_token: float) -> None:
    assert counted(model_of(positions=5), convention).total == S * per_token


def test_a_tied_table_by_convention() -> None:
    tied = model_of(tied=True)
    assert {name: counted(tied, name).total / S - 12 * SCORES for name in ("torchtitan", "nanogpt", "palm")} == {
        name: 6 * (N + 800) for name in ("torchtitan", "nanogpt", "palm")
    }
    assert counted(tied, "lingua").total / S == 6 * N + 7 * SCORES


def test_every_convention_is_tested_and_in_the_reference() -> None:
    reference = (Path(__file__).parents[2] / "docs/reference/mfu.md").read_text(encoding="utf-8")
    assert {row.name for row in catalogue()} == set(BY_HAND)
    assert [row.name for row in catalogue() if f"| `{row.name}`" not in reference] == []


def test_the_papers_own_formula() -> None:
    """72 B L s h^2 (1 + s/6h + V/12hL) of GPT-3 (Korthikanti 2022): 96 layers of 12288, V = 51200."""
    length, h, s, v = 96, 12288, 2048, 51200
    gpt3 = Model(
        layers=(Layers(count=length, hidden=h, attention=Attention(heads=96), mlp=Mlp(width=4 * h, matrices=2)),),
        vocab=v,
    )
    found = count(gpt3, s, named("korthikanti"))
    assert found.total == pytest.approx(72 * length * s * h**2 * (1 + s / (6 * h) + v / (12 * h * length)), rel=1e-12)
    hardware = 72 * length * s * h**2 * (1 + s / (3 * h) + v / (12 * h * length))
    assert found.total + found.selective_recompute == pytest.approx(hardware, rel=1e-12)
    full = 96 * length * s * h**2 * (1 + s / (6 * h) + v / (16 * length * h))
    assert found.total + found.full_recompute == pytest.approx(full, rel=1e-12)


def test_recompute() -> None:
    """Full: a forward pass of the layers, not of the logits; by foundry's rule of all; selective: the scores' forward."""
    found = counted(model_of())
    forwards = {part.name: part.forward for part in found.parts}
    assert found.full_recompute == sum(forwards.values()) - forwards["logits"]
    assert found.selective_recompute == forwards["attention scores"]
    assert counted(model_of(), "llm-foundry").full_recompute == pytest.approx(
        counted(model_of(), "llm-foundry").total / 3
    )


def test_only_parameters() -> None:
    bare = Model(params=7e9, active_params=1e9)
    assert count(bare, 1, named("6n")).total == 6e9
    with pytest.raises(UsageError, match="counts the layers"):
        count(bare, 1, named("palm"))


def test_given_parameters_win() -> None:
    given_params = model_of(params=1e6)
    assert counted(given_params, "palm").total == S * (6e6 + 12 * SCORES)
    assert counted(given_params, "torchtitan").total == S * (6 * (1e6 - 800) + 12 * SCORES)


def test_an_unknown_convention_has_near_names() -> None:
    with pytest.raises(UsageError, match="no convention") as refused:
        named("megatorn")
    assert "megatron" in (refused.value.hint or "")
    assert named("Megatron-LM") == named("megatron")


# ---- what must hold for every model

sizes = st.integers(1, 6)


@given(heads=sizes, width=sizes, experts=st.integers(2, 5), sequence=st.integers(1, 64), layers=sizes)
def test_all_experts_active_are_a_dense_model_of_their_width(
    heads: int, width: int, experts: int, sequence: int, layers: int
) -> None:
    shape = {"count": layers, "hidden": 4 * heads, "attention": Attention(heads=heads)}
    sparse = Model(layers=(Layers(**shape, mlp=Mlp(width=width, experts=experts, active=experts)),), vocab=50)
    dense = Model(layers=(Layers(**shape, mlp=Mlp(width=width * experts)),), vocab=50)
    assert count(sparse, sequence, named("megatron")).total == count(dense, sequence, named("megatron")).total
    assert parameters(sparse) == parameters(sparse, active=True)


@given(sequence=st.integers(1, 64), window=st.integers(1, 200))
def test_a_window_as_long_as_the_sequence_is_none(sequence: int, window: int) -> None:
    plain, windowed = (
        attended_pairs(Attention(heads=1, window=w), sequence, sequence, "attended") for w in (None, window)
    )
    assert windowed <= plain
    assert (windowed == plain) == (window >= sequence)


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=4), sequence=st.integers(1, 64))
@pytest.mark.parametrize("convention", [row.name for row in catalogue()])
def test_layers_add_up(convention: str, parts: list[int], sequence: int) -> None:
    """Equal layers in several stacks are one stack."""
    shape = {"hidden": 8, "attention": ATTENTION, "mlp": MLP}
    split = Model(layers=tuple(Layers(count=number, **shape) for number in parts), vocab=V)
    whole = Model(layers=(Layers(count=sum(parts), **shape),), vocab=V)
    assert counted(split, convention, sequence).total == pytest.approx(counted(whole, convention, sequence).total)


@given(rank=st.integers(1, 64))
def test_lora_costs_less_than_full_training_where_adapters_are_thin(rank: int) -> None:
    wide = Model(layers=(Layers(count=1, hidden=1024, attention=Attention(heads=8), mlp=Mlp(width=4096)),), vocab=V)
    lora = msgspec.structs.replace(wide, lora_rank=rank)
    assert 2 / 3 * counted(wide).total < counted(lora).total < counted(wide).total
