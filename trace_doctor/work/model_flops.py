"""FLOPs of a model's training step by a named convention (docs/reference/mfu.md).

All counts are of one sample (a sequence, an image); a multiply-add is two FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trace_doctor.errors import UsageError
from trace_doctor.work.attention import attended_area
from trace_doctor.work.conventions import Convention
from trace_doctor.work.models import (
    Attention,
    Layers,
    Model,
    Trained,
    layer_matrices,
    matrices,
    query_key_dim,
    trained_as,
    value_dim,
)

BACKWARD: dict[Trained, float] = {"all": 2.0, "adapters": 1.0, "nothing": 0.0}
"""Backward of a matmul in units of its forward: gradients of input and weight, of the input alone (LoRA), none (frozen tower)."""


class Part(NamedTuple):
    """FLOPs of one kind of work in a sample."""

    name: str
    forward: float
    backward: float
    repeated: float
    """Forward FLOPs that full recomputation runs again."""


class Count(NamedTuple):
    """FLOPs of one sample of `tokens` tokens by one convention."""

    parts: tuple[Part, ...]
    tokens: int
    full_recompute: float
    """FLOPs that full activation recomputation adds."""
    selective_recompute: float
    """FLOPs that recomputing the attention alone adds."""

    @property
    def total(self) -> float:
        """Model FLOPs: forward and backward."""
        return sum(part.forward + part.backward for part in self.parts)


def count(model: Model, sequence: int, convention: Convention) -> Count:
    """Forward and backward FLOPs of one sample; raises UsageError where the convention needs more than is known of the model."""
    if not model.layers and (convention.weights, convention.attention) != ("parameters", "none"):
        msg = f"{convention.name} counts the layers, but only the parameters of the model are known"
        raise UsageError(msg, where="--convention", hint="give --model FILE, or --convention 6n")
    weights = (
        _matmuls(model, sequence, convention)
        if convention.weights == "matmuls"
        else _parameters(model, sequence, convention)
    )
    attention = _attention(model, sequence, convention)
    parts = tuple(part for part in _merged([*weights, *attention]) if part.forward)
    everything = sum(part.forward for part in parts if part.backward)
    layers = sum(part.repeated for part in parts)
    return Count(
        parts=parts,
        tokens=sequence,
        full_recompute=everything if convention.full_recompute == "everything" else layers,
        selective_recompute=convention.selective_recompute * sum(part.repeated for part in attention),
    )


def _merged(parts: Iterable[Part]) -> list[Part]:
    """One row a name, in the order of their first."""
    sums: dict[str, Part] = {}
    for part in parts:
        so_far = sums.get(part.name, Part(part.name, 0.0, 0.0, 0.0))
        sums[part.name] = Part(part.name, *(a + b for a, b in zip(so_far[1:], part[1:], strict=True)))
    return list(sums.values())


# ---- weights


def _matmuls(model: Model, sequence: int, convention: Convention) -> list[Part]:
    """`2 x inputs x outputs x tokens` for each matrix forward, twice that backward where it is trained. Unit FLOP."""
    ends = {"patches", "logits", "output", "classes"}
    skipped = {"router"} if not convention.router else set()
    skipped |= {"adapters"} if not convention.adapters else set()
    counted = [(m, _weights(m.part, m.flops, m.trained)) for m in matrices(model, sequence) if m.part not in skipped]
    return [part._replace(repeated=0.0) if m.part in ends else part for m, part in counted]


def _parameters(model: Model, sequence: int, convention: Convention) -> list[Part]:
    """`2 N` a token forward, twice that backward (Kaplan 2020); N: active parameters of the layers and of the tables that count."""
    tables = _counted_tables(model, convention)
    everything = sum(_tables(model).values())
    last = trained_as(model, model.layers[-1] if model.layers else None)
    rest = _weights("tables", 2.0 * tables * sequence, last)._replace(repeated=0.0)
    if (given := _given_active(model)) is not None:
        return [_weights("parameters", 2.0 * (given - everything) * sequence, last), rest]
    of_layers = [
        _weights(
            "parameters",
            2.0 * layers_parameters(layers, active=True) * (layers.length or sequence),
            trained_as(model, layers),
        )
        for layers in model.layers
    ]
    ends = _weights("parameters", 2.0 * _end_parameters(model) * sequence, last)._replace(repeated=0.0)
    return [*of_layers, ends, rest]


def _weights(name: str, forward: float, trained: Trained) -> Part:
    """Work of weights by how they are trained; what gradients pass is repeated by full recomputation."""
    return Part(name, forward, forward * BACKWARD[trained], 0.0 if trained == "nothing" else forward)


def _given_active(model: Model) -> float | None:
    """Active parameters as the user gave them; of a mixture of experts, total parameters say nothing of them."""
    if model.active_params is not None:
        return model.active_params
    is_sparse = any(layers.mlp and layers.mlp.experts > layers.mlp.active for layers in model.layers)
    return None if is_sparse else model.params


def _tables(model: Model) -> dict[str, int]:
    """Parameters of the embedding tables."""
    table = model.vocab * model.hidden
    return {
        "input": table,
        "output": 0 if model.tied or not model.logits else table,
        "positions": model.positions * model.hidden,
    }


def _counted_tables(model: Model, convention: Convention) -> int:
    tables = _tables(model)
    if convention.tables in ("no-positions", "no-input", "no-embedding"):
        tables["positions"] = 0
    if convention.tables == "no-embedding" or (convention.tables == "no-input" and not model.tied):
        tables["input"] = 0
    return sum(tables.values())


def layers_parameters(layers: Layers, *, active: bool = False) -> int:
    """Parameters of equal layers: matrices, biases and norms; with `active` only those of the experts that a token is sent to."""
    found = [(m, m.used if active else m.copies) for m in layer_matrices(layers, 1)]
    weights = sum(m.inputs * m.outputs * number for m, number in found)
    if layers.bias == "all":
        weights += sum(m.outputs * number for m, number in found if m.part not in ("router", "extra"))
    return weights + layers.count * _vectors(layers)


def _vectors(layers: Layers) -> int:
    """Norms of one layer, and the biases of queries, keys and values where they alone have some."""
    a, h = layers.attention, layers.hidden
    norms = (
        sum(bool(part) for part in (a, layers.cross_attention, layers.mlp)) if layers.norms is None else layers.norms
    )
    sizes = norms * h * (2 if layers.bias == "all" else 1)
    if a is None:
        return sizes
    keys, values, groups = query_key_dim(a, h), value_dim(a, h), a.kv_heads or a.heads
    sizes += (a.query_rank or 0) + (a.kv_rank or 0) + (2 * keys if layers.qk_norm else 0)
    return sizes + (a.heads * keys + groups * (keys + values) if layers.bias == "qkv" else 0)


def _end_parameters(model: Model) -> int:
    """The last norm, and what embeds and predicts patches and classes."""
    h, is_biased = model.hidden, bool(model.layers) and model.layers[-1].bias == "all"
    matrices = model.input_features * h + model.output_features * h + model.classes * h
    biases = h * bool(model.input_features) + model.output_features + model.classes
    return h + matrices + (h + biases if is_biased else 0)


def parameters(model: Model, *, active: bool = False) -> float:
    """Parameters of the model: as given, else counted from matrices, tables, norms and biases; adapters left out."""
    given = _given_active(model) if active else model.params
    if given is not None:
        return given
    layers = sum(layers_parameters(layers, active=active) for layers in model.layers)
    return float(layers + sum(_tables(model).values()) + _end_parameters(model))


# ---- attention


def _attention(model: Model, sequence: int, convention: Convention) -> list[Part]:
    parts = []
    for layers in model.layers:
        own = layers.length or sequence
        for name, a in (("attention scores", layers.attention), ("cross-attention scores", layers.cross_attention)):
            if a is None:
                continue
            keys = (a.context or own) if a is layers.cross_attention else own
            pairs = attended_pairs(a, own, keys, convention.attention, is_cross=a is layers.cross_attention)
            dims = query_key_dim(a, layers.hidden) + value_dim(a, layers.hidden)
            forward = layers.count * a.heads * pairs * (2.0 * dims + convention.scores)
            is_trained = layers.trained != "nothing"
            backward = forward * convention.attention_backward if is_trained else 0.0
            parts.append(Part(name, forward, backward, forward if is_trained else 0.0))
    return parts


def attended_pairs(a: Attention, queries: int, keys: int, rule: str, *, is_cross: bool = False) -> float:
    """Query-key pairs of one head in a sample that a convention counts (`attention` in conventions.toml).

    `attended`: as areas, so that full causal is exactly half of the square and a causal window `w` is `s w - w^2 / 2`.
    """
    causal = a.causal and not is_cross
    if rule == "none":
        return 0.0
    if rule == "full" or is_cross:
        return float(queries) * keys
    if rule == "half":
        return queries * keys / 2 if causal else float(queries) * keys
    if a.block and a.block < keys:
        whole = attended_pairs(_unblocked(a), a.block, a.block, rule)
        return whole * keys / a.block
    if rule == "half-window":
        pairs = float(queries) * min(a.window or keys, keys)
        return pairs / 2 if causal else pairs
    return attended_area(queries, keys, a.window, 0 if causal else a.window)


def _unblocked(a: Attention) -> Attention:
    return Attention(heads=a.heads, causal=a.causal, window=a.window)
