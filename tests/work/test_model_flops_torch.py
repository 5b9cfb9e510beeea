"""Counts of models against torch's own counter, on a model written with plain matmuls."""

from __future__ import annotations

import pytest

from trace_doctor.work.conventions import named
from trace_doctor.work.model_flops import count
from trace_doctor.work.models import Attention, Layers, Mlp, Model

torch = pytest.importorskip("torch")

H, HEADS, GROUPS, D, WIDTH, V, S = 32, 4, 2, 8, 48, 64, 16


def step_flops() -> int:
    """Forward and backward of one GQA layer with a gated mlp, and of the logits, by torch.utils.flop_counter."""
    from torch.utils.flop_counter import FlopCounterMode

    def weight(inputs: int, outputs: int) -> object:
        return torch.randn(inputs, outputs, requires_grad=True)

    q, k, v, o = weight(H, HEADS * D), weight(H, GROUPS * D), weight(H, GROUPS * D), weight(HEADS * D, H)
    gate, up, down, head = weight(H, WIDTH), weight(H, WIDTH), weight(WIDTH, H), weight(H, V)
    x = torch.randn(S, H, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        queries = (x @ q).view(S, HEADS, D).transpose(0, 1)
        keys, values = (
            (x @ w).view(S, GROUPS, D).transpose(0, 1).repeat_interleave(HEADS // GROUPS, 0) for w in (k, v)
        )
        scores = torch.softmax(torch.bmm(queries, keys.transpose(1, 2)), -1)
        x = x + torch.bmm(scores, values).transpose(0, 1).reshape(S, HEADS * D) @ o
        x = x + (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down
        (x @ head).sum().backward()
    return int(counter.get_total_flops())


def test_every_matmul_is_counted() -> None:
    """Attention by parts is the whole square with two matmuls backward for each forward: korthikanti's sum."""
    layers = Layers(
        count=1, hidden=H, attention=Attention(heads=HEADS, kv_heads=GROUPS, head_dim=D), mlp=Mlp(width=WIDTH)
    )
    assert count(Model(layers=(layers,), vocab=V), S, named("korthikanti")).total == step_flops()
