"""Models from Hugging Face `config.json` files: causal and masked language models, mixtures of experts, encoder-decoders, ViT, DiT.

What the keys mean and what model types leave unsaid stands in huggingface.toml; what had to be assumed is in `Model.notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any, Literal

import msgspec

from trace_doctor.errors import InputError
from trace_doctor.work.models import Attention, Layers, Mlp, Model

Config = Mapping[str, Any]
GATED = ("silu", "swish", "swiglu", "geglu", "gated", "gelu_pytorch_tanh", "gelu_new_gated")
PLAIN = ("relu", "relu2", "gelu", "gelu_new", "gelu_fast", "quick_gelu")
BY_HAND = "describe the layers in a TOML file (docs/reference/mfu.md), or give --params and --active-params"


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the configs of some model types leave unsaid."""

    types: tuple[str, ...] = ()
    matrices: Literal[2, 3] | None = None
    bias: Literal["none", "qkv", "all"] = "none"
    causal: bool = True
    positions: bool = False
    norms: int | None = None
    qk_norm: bool = False


class _Refused(msgspec.Struct, frozen=True):
    types: tuple[str, ...]


class _Table(msgspec.Struct, frozen=True):
    keys: dict[str, tuple[str, ...]]
    families: dict[str, Family]
    refused: _Refused


@cache
def _table() -> _Table:
    text = resources.files("trace_doctor.work").joinpath("huggingface.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table)


def model(config: Config) -> Model:
    """The model of a config; raises InputError where it holds layers that are not known, or lacks a size."""
    if reader := DIFFUSERS.get(str(config.get("_class_name"))):
        return reader(config)
    if isinstance(inner := config.get("text_config") or config.get("llm_config"), dict):
        merged = {
            "model_type": config.get("model_type"),
            "tie_word_embeddings": config.get("tie_word_embeddings"),
            **inner,
        }
        text = model({key: value for key, value in merged.items() if value is not None})
        note = "the language model alone: vision or audio towers are not counted, describe them as [[layers]] of a TOML file"
        return msgspec.structs.replace(text, notes=(*text.notes, note))
    kind = str(config.get("model_type") or "")
    if kind in _table().refused.types or _has_other_layers(config):
        msg = f"{kind or 'this model'} has layers that are not counted (state-space or linear attention)"
        raise InputError(msg, hint=BY_HAND)
    if "image_size" in config and "patch_size" in config and not config.get("vocab_size"):
        return _image_model(config, kind)
    if config.get("is_encoder_decoder") or _value(config, "encoder_layers", None):
        return _encoder_decoder(config, kind)
    return _decoder(config, kind)


def _has_other_layers(config: Config) -> bool:
    known = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
    return bool(set(config.get("layer_types") or ()) - known)


# ---- reading keys


def _value(config: Config, word: str, default: Any) -> Any:
    """The value of one of our words under any of its names."""
    names = (word, *_table().keys.get(word, ()))
    return next((config[name] for name in names if config.get(name) is not None), default)


def _size(config: Config, word: str) -> int:
    """A size that must be there."""
    value = _value(config, word, None)
    if not isinstance(value, int) or value < 1:
        names = ", ".join(_table().keys.get(word, (word,)))
        msg = f"the config holds no {word} ({names})"
        raise InputError(msg, hint=BY_HAND)
    return value


def _family(kind: str) -> Family:
    return next((family for family in _table().families.values() if kind in family.types), Family())


def _matrices(config: Config, family: Family) -> tuple[Literal[2, 3], tuple[str, ...]]:
    """Matrices of the feed-forward part, and what was assumed."""
    if family.matrices:
        return family.matrices, ()
    activation = str(_value(config, "activation", "silu")).lower()
    if any(activation.startswith(word) for word in GATED) or config.get("is_gated_act"):
        return 3, ()
    if activation in PLAIN and config.get("model_type") not in ("gemma", "gemma2", "gemma3_text", "llama"):
        return 2, (f"the feed-forward part is taken as plain (2 matrices), as its activation is {activation}",)
    return 3, (f"the feed-forward part is taken as gated (3 matrices), though its activation is {activation}",)


# ---- decoders


def _decoder(config: Config, kind: str) -> Model:
    """A stack of equal or alternating layers, causal unless the family is an encoder."""
    family = _family(kind)
    matrices, notes = _matrices(config, family)
    count = _size(config, "layers")
    layers = [_layer(config, family, matrices, number) for number in range(count)]
    grouped = [msgspec.structs.replace(layer, count=len(list(group))) for layer, group in groupby(layers)]
    depths = int(config.get("num_nextn_predict_layers") or 0)
    if depths:
        h = grouped[-1].hidden
        grouped.append(msgspec.structs.replace(grouped[-1], count=depths, extra=2 * h * h))
        notes += (f"{depths} multi-token-prediction layer{'s' if depths > 1 else ''} counted as trained",)
    if config.get("cross_attention_layers"):
        notes += (
            "cross-attention is taken to see as many tokens as the text has; [[layers]] of a TOML file tell how many",
        )
    has_table = family.positions and config.get("position_embedding_type", "absolute") == "absolute"
    return Model(
        name=str(config.get("_name_or_path") or kind),
        layers=tuple(grouped),
        vocab=_size(config, "vocab"),
        tied=bool(config.get("tie_word_embeddings", True)),
        logits=1 + depths,
        positions=_value(config, "positions", 0) if has_table or config.get("learned_pos_emb") else 0,
        notes=notes,
    )


def _layer(config: Config, family: Family, matrices: Literal[2, 3], number: int) -> Layers:
    h = _size(config, "hidden")
    bias = "qkv" if family.bias == "none" and (config.get("attention_bias") or config.get("qkv_bias")) else family.bias
    if config.get("no_bias"):
        bias = "none"
    is_cross = number in (config.get("cross_attention_layers") or ())
    return Layers(
        count=1,
        hidden=h,
        attention=None if is_cross else _attention(config, family, number),
        cross_attention=_attention(config, family, number) if is_cross else None,
        mlp=_mlp(config, matrices, number),
        bias=bias,
        norms=family.norms,
        qk_norm=family.qk_norm,
    )


def _attention(config: Config, family: Family, number: int) -> Attention:
    heads = _size(config, "heads")
    if config.get("kv_lora_rank"):
        return Attention(
            heads=heads,
            head_dim=config["qk_nope_head_dim"],
            rope_dim=config["qk_rope_head_dim"],
            value_dim=config["v_head_dim"],
            query_rank=config.get("q_lora_rank"),
            kv_rank=config["kv_lora_rank"],
        )
    is_windowed = _is_windowed(config, number)
    kind = (config.get("layer_types") or {number: None})[number]
    return Attention(
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_dim=_value(config, "head_dim", None),
        causal=family.causal,
        window=config.get("sliding_window") if is_windowed else None,
        block=config.get("attention_chunk_size") if kind == "chunked_attention" else None,
    )


def _kv_heads(config: Config, heads: int) -> int:
    """Falcon says multi_query, and means it unless its architecture is the new one."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return int(_value(config, "kv_heads", heads))


def _is_windowed(config: Config, number: int) -> bool:
    """Whether a layer has the sliding window, as layer_types, the pattern or the family's habit say."""
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return False
    if types := config.get("layer_types"):
        return str(types[number]) == "sliding_attention"
    if pattern := config.get("sliding_window_pattern"):
        return bool((number + 1) % pattern)
    if config.get("model_type") in ("gemma2", "gpt_oss"):
        return number % 2 == 0
    if config.get("model_type") in ("gemma3", "gemma3_text"):
        return (number + 1) % 6 != 0
    return number >= config.get("max_window_layers", 0) if config.get("use_sliding_window") else True


def _mlp(config: Config, matrices: Literal[2, 3], number: int) -> Mlp:
    h = _size(config, "hidden")
    width = _value(config, "width", None) or int(h * config.get("expansion_ratio", 4))
    experts = int(_value(config, "experts", 0) or 0)
    if experts < 2 or not _is_sparse(config, number):
        return Mlp(width=config.get("intermediate_size_mlp") or width, matrices=matrices)
    expert_width = _value(config, "expert_width", None) or width
    shared = _value(config, "shared_width", 0) or expert_width * int(_value(config, "shared_experts", 0) or 0)
    if config.get("model_type") in ("llama4", "llama4_text"):
        shared = expert_width
    return Mlp(
        width=expert_width, matrices=matrices, experts=experts, active=_size(config, "active"), shared_width=shared
    )


def _is_sparse(config: Config, number: int) -> bool:
    """Whether a layer is a mixture of experts."""
    if number in (config.get("mlp_only_layers") or ()) or number < (_value(config, "first_dense", 0) or 0):
        return False
    if layers := config.get("moe_layers"):
        return number in layers
    if isinstance(frequency := config.get("moe_layer_freq") or 1, list):
        return bool(frequency[number])
    step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") or 1
    return (number + 1) % step == 0 and number % frequency == 0


# ---- encoder and decoder


def _encoder_decoder(config: Config, kind: str) -> Model:
    """T5, BART, Whisper: an encoder that attends both ways, a decoder that is causal and attends to the encoder's output."""
    h, heads = _size(config, "hidden"), int(config.get("encoder_attention_heads") or _size(config, "heads"))
    is_gated = "gated" in str(config.get("feed_forward_proj", ""))
    bias: Literal["none", "all"] = "none" if kind in ("t5", "mt5", "umt5", "longt5") else "all"
    context = config.get("max_source_positions")

    cross = Attention(heads=heads, head_dim=config.get("d_kv"), causal=False, context=context)

    def stack(count: int, width: int, *, is_decoder: bool) -> Layers:
        return Layers(
            count=count,
            hidden=h,
            attention=Attention(heads=heads, head_dim=config.get("d_kv"), causal=is_decoder),
            cross_attention=cross if is_decoder else None,
            mlp=Mlp(width=width, matrices=3 if is_gated else 2),
            length=None if is_decoder else context,
            bias=bias,
        )

    width = _size(config, "width")
    encoder = int(config.get("encoder_layers") or _size(config, "layers"))
    decoder = int(config.get("decoder_layers") or config.get("num_decoder_layers") or encoder)
    note = (
        f"the encoder reads {context} tokens a sample"
        if context
        else "the encoder is taken to read as many tokens as the decoder"
    )
    return Model(
        name=str(config.get("_name_or_path") or kind),
        layers=(
            stack(encoder, width, is_decoder=False),
            stack(decoder, int(config.get("decoder_ffn_dim") or width), is_decoder=True),
        ),
        vocab=_size(config, "vocab"),
        tied=bool(config.get("tie_word_embeddings", True)),
        notes=(note,),
    )


# ---- images


def _image_model(config: Config, kind: str) -> Model:
    """ViT: a token a patch and one for the class, attention both ways, a linear on the class token."""
    family = _family(kind)
    matrices: Literal[2, 3] = 3 if config.get("use_swiglu_ffn") else family.matrices or 2
    side = _first(config["image_size"]) // _first(config["patch_size"])
    has_class = kind not in ("siglip_vision_model",)
    h = _size(config, "hidden")
    return Model(
        name=str(config.get("_name_or_path") or kind),
        layers=(
            Layers(
                count=_size(config, "layers"),
                hidden=h,
                attention=Attention(heads=_size(config, "heads"), causal=False),
                mlp=Mlp(width=_value(config, "width", None) or int(h * config.get("mlp_ratio", 4)), matrices=matrices),
                bias="all",
            ),
        ),
        positions=side**2 + has_class,
        input_features=_first(config["patch_size"]) ** 2 * int(config.get("num_channels", 3)),
        classes=len(config.get("id2label") or ()) or int(config.get("num_labels") or 0),
        sequence=side**2 + has_class,
    )


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def _transformer_2d(config: Config) -> Model:
    """DiT and PixArt (diffusers): a token a patch of the latent image; adaLN modulates each layer by the conditioning."""
    heads, dim = int(config["num_attention_heads"]), int(config["attention_head_dim"])
    h, patch = heads * dim, int(config.get("patch_size") or 2)
    tokens = (int(config.get("sample_size") or 32) // patch) ** 2
    channels = int(config.get("in_channels") or 4)
    is_dit = config["_class_name"] == "DiTTransformer2DModel"
    text = config.get("cross_attention_dim") if not is_dit else None
    cross = Attention(heads=heads, causal=False, context=300, context_hidden=int(text)) if text else None
    return Model(
        name=str(config.get("_name_or_path") or config["_class_name"]),
        layers=(
            Layers(
                count=int(config["num_layers"]),
                hidden=h,
                attention=Attention(heads=heads, causal=False),
                cross_attention=cross,
                mlp=Mlp(width=4 * h, matrices=2),
                modulation=6 if is_dit else 0,
                bias="all",
            ),
        ),
        input_features=patch**2 * channels,
        output_features=patch**2 * int(config.get("out_channels") or channels),
        sequence=tokens,
        notes=(f"{tokens} patches a sample", *(["300 text tokens a sample"] if text else [])),
    )


def _flux(config: Config) -> Model:
    """FLUX (diffusers): double-stream layers, whose image and text tokens have weights of their own, then single-stream ones."""
    heads, dim = int(config["num_attention_heads"]), int(config["attention_head_dim"])
    h, channels = heads * dim, int(config.get("in_channels") or 64)
    attention, mlp = Attention(heads=heads, causal=False), Mlp(width=4 * h, matrices=2)
    shared = Layers(count=int(config["num_layers"]), hidden=h, attention=attention, mlp=mlp, bias="all")
    double = msgspec.structs.replace(shared, streams=2, modulation=6)
    single = msgspec.structs.replace(shared, count=int(config["num_single_layers"]), modulation=3)
    return Model(
        name=str(config.get("_name_or_path") or "FLUX"),
        layers=(double, single),
        input_features=channels,
        output_features=channels,
        notes=("the sequence is text and image tokens together",),
    )


DIFFUSERS: dict[str, Callable[[Config], Model]] = {
    "DiTTransformer2DModel": _transformer_2d,
    "PixArtTransformer2DModel": _transformer_2d,
    "FluxTransformer2DModel": _flux,
}
