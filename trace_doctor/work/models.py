"""What a model is made of, as far as its FLOPs depend on it: layers, and the matrices that tokens pass through.

A model file is TOML in these words (docs/reference/mfu.md) or a Hugging Face `config.json` (`work.huggingface`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec

Size = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Parameters = Annotated[float, msgspec.Meta(gt=0, le=1e24)]
Trained = Literal["all", "adapters", "nothing"]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parts of a model file; a misspelt key is an error."""


class Attention(_Struct, frozen=True, kw_only=True):
    """Attention of a layer; queries have `heads`, keys and values may have fewer (GQA) or come from a latent (MLA)."""

    heads: Size
    kv_heads: Size | None = None
    """Null: as many as heads."""
    head_dim: Size | None = None
    """Of queries and keys, without `rope_dim`; null: hidden / heads."""
    value_dim: Size | None = None
    """Null: as head_dim."""
    query_rank: Size | None = None
    """MLA: width of the query's latent; null: one matrix."""
    kv_rank: Size | None = None
    """MLA: width of the latent that keys and values come from."""
    rope_dim: Amount = 0
    """MLA: further dimensions of queries and keys, which hold the position."""
    causal: bool = True
    window: Size | None = None
    """A token attends to so many before it (sliding window)."""
    block: Size | None = None
    """Tokens attend within blocks of so many (windowed vision, chunked attention, packed documents)."""
    context: Size | None = None
    """Cross-attention: tokens of the other sequence; null: as many as the layer's own."""
    context_hidden: Size | None = None
    """Cross-attention: width of the other sequence; null: hidden."""


class Mlp(_Struct, frozen=True, kw_only=True):
    """Feed-forward part of a layer: dense, or a mixture of experts."""

    width: Size
    """Of one expert where there are several."""
    matrices: Literal[2, 3] = 3
    """3: gated (SwiGLU, GeGLU), 2: plain."""
    experts: Size = 1
    active: Size = 1
    """Experts that a token is sent to."""
    shared_width: Amount = 0
    """Width of the experts that every token passes, together."""

    def __post_init__(self) -> None:
        if self.active > self.experts:
            msg = f"`active` ({self.active}) is more than `experts` ({self.experts})"
            raise ValueError(msg)


class Layers(_Struct, frozen=True, kw_only=True):
    """Equal layers over one sequence."""

    count: Size
    hidden: Size
    attention: Attention | None = None
    cross_attention: Attention | None = None
    mlp: Mlp | None = None
    streams: Size = 1
    """Kinds of tokens with weights of their own that attend to each other (MM-DiT: 2)."""
    modulation: Amount = 0
    """DiT: vectors of `hidden` that a linear makes of the conditioning for each stream, once a sample (adaLN: 6)."""
    extra: Amount = 0
    """Weights of a layer's other matrices that every token passes through."""
    length: Size | None = None
    """Tokens of this sequence in a sample; null: the run's sequence length."""
    trained: Trained = "all"
    """adapters: weights frozen, gradients pass through (LoRA); nothing: forward only (frozen tower, reference model)."""
    bias: Literal["none", "qkv", "all"] = "none"
    """Which linears have biases; all: the norms too."""
    norms: Amount | None = None
    """Norms of `hidden` in a layer; null: one before each part."""
    qk_norm: bool = False


class Model(_Struct, frozen=True, kw_only=True):
    """A model; with `params` alone, one whose layers are not known."""

    name: str = ""
    layers: tuple[Layers, ...] = ()
    vocab: Amount = 0
    tied: bool = False
    """One table for input and output."""
    logits: Amount = 1
    """How often the output table is multiplied with (2: one multi-token-prediction depth); 0: never."""
    positions: Amount = 0
    """Rows of a learned table of positions."""
    input_features: Amount = 0
    """Numbers of one patch, which a matrix embeds."""
    output_features: Amount = 0
    """Numbers predicted for each token (DiT: of one patch)."""
    classes: Amount = 0
    """Classes predicted for each sample."""
    sequence: Size | None = None
    """Tokens of one sample where the model fixes them (images)."""
    params: Parameters | None = None
    """Parameters; null: counted from the matrices, tables and norms."""
    active_params: Parameters | None = None
    """Parameters that a token passes; null: params, less the experts it is not sent to."""
    lora_rank: Amount = 0
    """LoRA: rank of the adapters; the weights themselves are frozen."""
    lora_targets: tuple[Literal["attention", "mlp"], ...] = ("attention", "mlp")
    notes: tuple[str, ...] = ()
    """What had to be assumed."""

    @property
    def hidden(self) -> int:
        """Width of the embeddings and of the output: the last layers'."""
        return self.layers[-1].hidden if self.layers else 0


class Matrix(NamedTuple):
    """Equal matrices that a sample's tokens are multiplied with."""

    part: str
    inputs: int
    outputs: int
    copies: int
    """In the model."""
    used: int
    """That one token passes."""
    tokens: int
    """That pass in a sample."""
    trained: Trained

    @property
    def flops(self) -> float:
        """Forward FLOPs of a sample: 2 for each weight that a token meets."""
        return 2.0 * self.inputs * self.outputs * self.used * self.tokens


def trained_as(model: Model, layers: Layers | None) -> Trained:
    """How the weights of some layers of a model are trained: LoRA freezes those that would be trained whole."""
    trained: Trained = layers.trained if layers else "all"
    return _with_adapters(trained) if model.lora_rank else trained


def _with_adapters(trained: Trained) -> Trained:
    return "adapters" if trained == "all" else trained


def matrices(model: Model, sequence: int) -> list[Matrix]:
    """All matrices of a model whose samples have `sequence` tokens."""
    found = [matrix for layers in model.layers for matrix in layer_matrices(layers, sequence)]
    if model.lora_rank:
        frozen = [m._replace(trained=_with_adapters(m.trained)) for m in found]
        adapters = [
            m._replace(part="adapters", inputs=model.lora_rank, outputs=m.inputs + m.outputs)
            for m in found
            if m.part in model.lora_targets and m.trained == "all"
        ]
        found = [*frozen, *adapters]
    return [*found, *_ends(model, sequence)]


def _ends(model: Model, sequence: int) -> Iterator[Matrix]:
    """What stands before the first layer and after the last; it is trained as the last layers are."""
    h, trained = model.hidden, trained_as(model, model.layers[-1] if model.layers else None)
    if model.input_features:
        yield Matrix("patches", model.input_features, h, 1, 1, sequence, trained)
    if model.vocab and model.logits:
        yield Matrix("logits", h, model.vocab, 0 if model.tied else 1, model.logits, sequence, trained)
    if model.output_features:
        yield Matrix("output", h, model.output_features, 1, 1, sequence, trained)
    if model.classes:
        yield Matrix("classes", h, model.classes, 1, 1, 1, trained)


def layer_matrices(layers: Layers, sequence: int) -> list[Matrix]:
    """The matrices of equal layers."""
    n, h, s = layers.count, layers.hidden, layers.length or sequence

    def matrix(
        part: str, inputs: int, outputs: int, copies: int = 1, used: int | None = None, tokens: int = s
    ) -> Matrix:
        per_token = n * (copies if used is None else used)
        return Matrix(part, inputs, outputs, n * copies * layers.streams, per_token, tokens, layers.trained)

    found = []
    if a := layers.attention:
        found += [matrix("attention", rows, columns) for rows, columns in (*_queries(a, h), *_keys_values(a, h, h))]
    if a := layers.cross_attention:
        found += [matrix("cross-attention", rows, columns) for rows, columns in _queries(a, h)]
        context = a.context or s
        found += [
            matrix("cross-attention", rows, columns, tokens=context)
            for rows, columns in _keys_values(a, h, a.context_hidden or h)
        ]
    if m := layers.mlp:
        into = m.matrices - 1
        found += [
            matrix("mlp", h, m.width, into * m.experts, into * m.active),
            matrix("mlp", m.width, h, m.experts, m.active),
        ]
        if m.shared_width:
            found += [matrix("mlp", h, m.shared_width, into), matrix("mlp", m.shared_width, h)]
        if m.experts > 1:
            found.append(matrix("router", h, m.experts))
    if layers.modulation:
        found.append(matrix("modulation", h, layers.modulation * h, used=layers.streams, tokens=1))
    if layers.extra:
        found.append(matrix("extra", 1, layers.extra))
    return found


def query_key_dim(a: Attention, hidden: int) -> int:
    """Length of one head's query and key vectors."""
    return (a.head_dim or hidden // a.heads) + a.rope_dim


def value_dim(a: Attention, hidden: int) -> int:
    """Length of one head's value vectors."""
    return a.value_dim or a.head_dim or hidden // a.heads


def _queries(a: Attention, hidden: int) -> list[tuple[int, int]]:
    """Query and output projections, as (inputs, outputs)."""
    queries, values = a.heads * query_key_dim(a, hidden), a.heads * value_dim(a, hidden)
    rank = a.query_rank
    return [*([(hidden, rank), (rank, queries)] if rank else [(hidden, queries)]), (values, hidden)]


def _keys_values(a: Attention, hidden: int, inputs: int) -> list[tuple[int, int]]:
    """Key and value projections of tokens `inputs` wide; MLA: down to the latent and up again, rotary dimensions shared by all heads."""
    keys, values = query_key_dim(a, hidden), value_dim(a, hidden)
    if a.kv_rank:
        return [(inputs, a.kv_rank + a.rope_dim), (a.kv_rank, a.heads * (keys - a.rope_dim + values))]
    groups = a.kv_heads or a.heads
    return [(inputs, groups * keys), (inputs, groups * values)]
