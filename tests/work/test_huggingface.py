"""Hugging Face configs: the sizes that they say and those that they leave unsaid."""

from __future__ import annotations

from typing import Any

import pytest

from trace_doctor.errors import InputError
from trace_doctor.work.conventions import named
from trace_doctor.work.huggingface import model
from trace_doctor.work.model_flops import count, parameters
from trace_doctor.work.models import Attention, Layers, Mlp

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
}
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False, "sliding_window": 131072,
    "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151936, "tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256000, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4, "vocab_size": 201088,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18, "tie_word_embeddings": False,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "image_size": 224, "patch_size": 16, "num_channels": 3, "hidden_act": "gelu", "num_labels": 1000,
}  # fmt: skip
DIT = {
    "_class_name": "DiTTransformer2DModel", "num_attention_heads": 16, "attention_head_dim": 72, "num_layers": 28,
    "patch_size": 2, "in_channels": 4, "out_channels": 8, "sample_size": 32,
}  # fmt: skip
T5 = {
    "model_type": "t5", "is_encoder_decoder": True, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_heads": 8, "num_layers": 6,
    "num_decoder_layers": 6, "vocab_size": 32128, "feed_forward_proj": "relu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA, 8_030_261_248), (GPT2, 124_439_808), (QWEN2, 7_615_616_512), (QWEN3_MOE, 30_532_122_624), (MIXTRAL, 46_702_792_704),
        # without the 58 x 256 biases that balance the experts, which no gradient trains
        (DEEPSEEK_V3, 671_026_419_200 - 58 * 256), (GEMMA2, 9_241_705_984),
        # without the 768 numbers of the class token
        (VIT, 86_567_656 - 768),
    ],
)  # fmt: skip
def test_parameters_are_those_of_the_published_weights(config: dict[str, Any], published: int) -> None:
    assert parameters(model(config)) == published


def test_active_parameters_are_those_of_the_name() -> None:
    """Qwen3-30B-A3B; DeepSeek-V3 says 37 B."""
    assert parameters(model(QWEN3_MOE), active=True) / 1e9 == pytest.approx(3.35, abs=0.01)
    assert parameters(model(DEEPSEEK_V3), active=True) / 1e9 == pytest.approx(37.6, abs=0.1)


@pytest.mark.parametrize(("config", "gmacs"), [(VIT, 17.56), (DIT, 118.64)])
def test_forward_of_image_models(config: dict[str, Any], gmacs: float) -> None:
    """Multiply-adds of one image: torchvision's table of weights (vit_b_16), and Peebles and Xie 2023, table 1 (DiT-XL/2)."""
    images = model(config)
    assert images.sequence
    found = count(images, images.sequence, named("trace-doctor"))
    assert sum(part.forward for part in found.parts) / 2e9 == pytest.approx(gmacs, rel=0.01)


def test_streams_have_weights_of_their_own() -> None:
    """FLUX.1: 19 double layers of 2 (12 + 6) h^2, 38 single ones of (12 + 3) h^2; each token passes one stream."""
    flux = model(
        {
            "_class_name": "FluxTransformer2DModel", "num_attention_heads": 24, "attention_head_dim": 128,
            "num_layers": 19, "num_single_layers": 38,
        }
    )  # fmt: skip
    square = 3072**2
    assert parameters(flux) == pytest.approx((19 * 36 + 38 * 15) * square, rel=0.002)
    found = {part.name: part.forward for part in count(flux, 4608, named("trace-doctor")).parts}
    assert found["attention"] + found["mlp"] == 2 * 4608 * (19 + 38) * 12 * square
    assert found["modulation"] == 2 * (19 * 12 + 38 * 3) * square


def test_layers_of_cross_attention_alone() -> None:
    found = model({**LLAMA, "model_type": "mllama_text_model", "num_hidden_layers": 5, "cross_attention_layers": [3]})
    assert [(part.count, part.attention is None, part.cross_attention is None) for part in found.layers] == [
        (3, False, True), (1, True, False), (1, False, True),
    ]  # fmt: skip
    assert "cross-attention" in found.notes[0]


def test_layers_that_differ_are_told_apart() -> None:
    windows = [(layers.count, layers.attention and layers.attention.window) for layers in model(GPT_OSS).layers]
    assert windows == [(1, 128), (1, None)] * 18
    widths = [(layers.count, layers.mlp and layers.mlp.width) for layers in model(DEEPSEEK_V3).layers]
    assert widths == [(3, 18432), (58, 2048)]


@pytest.mark.parametrize(
    ("more", "windowed"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 6), ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 4}, 2),
        ({"model_type": "gemma2", "sliding_window": 4096}, 3), ({"model_type": "gemma3_text", "sliding_window": 512}, 5),
        ({"model_type": "cohere2", "sliding_window": 4096, "sliding_window_pattern": 3}, 4),
    ],
)  # fmt: skip
def test_which_layers_have_the_window(more: dict[str, Any], windowed: int) -> None:
    layers = model({**LLAMA, "num_hidden_layers": 6, **more}).layers
    assert sum(part.count for part in layers if part.attention and part.attention.window) == windowed


def test_mixture_only_where_the_config_says_so() -> None:
    dense = {**QWEN3_MOE, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    widths = [(part.count, part.mlp and part.mlp.experts) for part in model(dense).layers]
    assert widths == [(3, 1), (1, 128), (1, 1), (1, 128)]


def test_multi_token_prediction_is_one_more_layer() -> None:
    """The published row with it says the same: 259.99 GFLOP a token (tests/work/published)."""
    found = model({**DEEPSEEK_V3, "num_nextn_predict_layers": 1})
    assert (found.layers[-1].count, found.layers[-1].extra, found.logits) == (1, 2 * 7168 * 7168, 2)
    assert count(found, 4096, named("megatron")).total / 4096 == pytest.approx(259_992_950_784, rel=1e-5)


def test_encoder_decoder() -> None:
    encoder, decoder = model(T5).layers
    attention = Attention(heads=8, head_dim=64, causal=False)
    assert encoder == Layers(count=6, hidden=512, attention=attention, mlp=Mlp(width=2048, matrices=2))
    assert (decoder.attention, decoder.cross_attention) == (Attention(heads=8, head_dim=64), attention)


def test_what_is_assumed_is_said() -> None:
    assert model(LLAMA).notes == ()
    odd = model({**LLAMA, "model_type": "novel", "hidden_act": "gelu"})
    assert odd.layers[0].mlp == Mlp(width=14336, matrices=2)
    assert "gelu" in odd.notes[0]
    vision = model({"model_type": "llava", "text_config": LLAMA, "vision_config": VIT})
    assert (vision.layers, vision.vocab) == (model(LLAMA).layers, 128256)
    assert "not counted" in vision.notes[0]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba2", "hidden_size": 1}, "state-space"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 32}, "linear attention"),
        ({"model_type": "llama"}, "holds no layers"), ({**LLAMA, "num_attention_heads": "many"}, "holds no heads"), ({}, "holds no"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        model(config)
    assert "TOML" in (refused.value.hint or "")
