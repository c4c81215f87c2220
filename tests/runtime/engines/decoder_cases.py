"""Rows of the families that come from language models, against transformers."""

from __future__ import annotations

from transformers import (
    EmbeddingGemma2TextConfig,
    EmbeddingGemma2TextModel,
    EuroBertConfig,
    EuroBertModel,
    Gemma2Config,
    Gemma2Model,
    Gemma3TextConfig,
    Gemma3TextModel,
    GemmaConfig,
    GemmaModel,
    LlamaConfig,
    LlamaModel,
    Ministral3Config,
    Ministral3Model,
    MistralConfig,
    MistralModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
)

from tests.runtime.engines.case import rows_of

SHAPE = {
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 40,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10, "rope_theta": 100.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 20,
    "rope_theta": 500.0,
}

qwen2 = rows_of(Qwen2Model, Qwen2Config, **SHAPE)
qwen3 = rows_of(Qwen3Model, Qwen3Config, **SHAPE, head_dim=10)
mistral = rows_of(MistralModel, MistralConfig, **SHAPE)
eurobert = rows_of(EuroBertModel, EuroBertConfig, **SHAPE, mask_token_id=1)
MINISTRAL3 = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 40,
    "rope_theta": 100.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
ministral3 = rows_of(
    Ministral3Model,
    Ministral3Config,
    **SHAPE | {"max_position_embeddings": 160},
    head_dim=10,
    rope_parameters=MINISTRAL3,
)
llama = rows_of(LlamaModel, LlamaConfig, **SHAPE)
# Few layers and small heads: the norms' weights are 1 more than stored, and scores so large lose float32's last digits.
gemma = rows_of(GemmaModel, GemmaConfig, **SHAPE | {"num_hidden_layers": 2}, head_dim=4)
# A cap of 50 would change nothing here.
gemma2 = rows_of(
    Gemma2Model,
    Gemma2Config,
    **SHAPE,
    head_dim=10,
    sliding_window=6,
    query_pre_attn_scalar=7,
    attn_logit_softcapping=2.0,
)
embedding_gemma2 = rows_of(
    EmbeddingGemma2TextModel,
    EmbeddingGemma2TextConfig,
    **SHAPE,
    head_dim=10,
    global_head_dim=12,
    num_global_key_value_heads=1,
    sliding_window=5,
    sliding_window_pattern=2,
    hidden_size_per_layer_input=14,
    embedding_dim=22,
)
gemma3 = rows_of(
    Gemma3TextModel,
    Gemma3TextConfig,
    **SHAPE,
    head_dim=10,
    sliding_window=6,
    sliding_window_pattern=2,
    query_pre_attn_scalar=7,
)

DECODERS = (
    qwen2("qwen2, causal"),
    qwen2("qwen2, bidirectional, yarn", is_causal=False, rope_parameters=YARN, num_key_value_heads=1),
    qwen2("qwen2, window of 6 from layer 1", **WINDOW),
    qwen2("qwen2, bidirectional, window of 6", **WINDOW, is_causal=False, num_key_value_heads=6),
    qwen3("qwen3, causal"),
    qwen3("qwen3, biases, bidirectional", attention_bias=True, is_causal=False, num_key_value_heads=2),
    qwen3("qwen3, window of 6, gelu", **WINDOW, hidden_act="gelu", rms_norm_eps=0.1),
    mistral("mistral, window of 6", sliding_window=6),
    mistral("mistral, no window, large heads", sliding_window=None, head_dim=16, num_key_value_heads=1),
    mistral("mistral, bidirectional", sliding_window=6, is_causal=False),
    ministral3("ministral3, causal"),
    ministral3("ministral3, bidirectional, one key head", is_causal=False, num_key_value_heads=1),
    ministral3("ministral3, window of 6, gelu", sliding_window=6, hidden_act="gelu"),
    llama("llama, causal, llama3 scaling", rope_parameters=LLAMA3),
    llama("llama, biases, bidirectional", attention_bias=True, mlp_bias=True, is_causal=False),
    llama(
        "llama, linear scaling, one key head",
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0},
        num_key_value_heads=1,
    ),
    llama("llama, dynamic scaling at rest", rope_parameters={"rope_type": "dynamic", "factor": 4.0}),
    eurobert("eurobert, grouped heads"),
    eurobert("eurobert, biases, one key head", attention_bias=True, mlp_bias=True, num_key_value_heads=1),
    eurobert("eurobert, gelu, other base", hidden_act="gelu", rope_parameters={"rope_theta": 50.0}),
    gemma("gemma, causal"),
    gemma("gemma, bidirectional, one key head", is_causal=False, num_key_value_heads=1),
    gemma("gemma, biases, silu", attention_bias=True, hidden_act="silu", num_key_value_heads=6),
    gemma2("gemma2, causal, window of 6"),
    gemma2("gemma2, bidirectional, one key head", is_causal=False, num_key_value_heads=1),
    gemma2(
        "gemma2, biases, no cap, global layers first",
        attention_bias=True,
        attn_logit_softcapping=None,
        query_pre_attn_scalar=70,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0},
    ),
    embedding_gemma2("embedding_gemma2, heads of two sizes"),
    embedding_gemma2(
        "embedding_gemma2, part of the global heads turned",
        rope_parameters={
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
        },
    ),
    embedding_gemma2(
        "embedding_gemma2, biases, one layer, silu",
        num_hidden_layers=1,
        attention_bias=True,
        hidden_activation="silu",
    ),
    gemma3("gemma3, causal, window of 6"),
    gemma3("gemma3, bidirectional, even window", use_bidirectional_attention=True),
    gemma3(
        "gemma3, bidirectional, biases, scaled global layers",
        use_bidirectional_attention=True,
        attention_bias=True,
        sliding_window=10,
        sliding_window_pattern=3,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
        },
    ),
)
