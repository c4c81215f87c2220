"""Encoders of the census in small: transformers' own model with random weights, then as the repository publishes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel

from tests.census import jina, layouts, tokenizers
from tests.census.tokenizers import MAX_TOKENS
from tests.support.models import tiny

HIDDEN = 36
SHAPE: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": MAX_TOKENS,
    "pad_token_id": 0,
}
# The rows of positions before the first one, and one token type.
ROBERTA = {**SHAPE, "pad_token_id": 1, "max_position_embeddings": MAX_TOKENS + 2, "type_vocab_size": 1}
DISTILBERT: Mapping[str, Any] = {
    "dim": HIDDEN,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 50,
    "max_position_embeddings": MAX_TOKENS,
}
# Heads that are wider than their part of the hidden size, and share keys.
DECODER = {**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10}
SMALL_HEADS = {**SHAPE, "num_attention_heads": 6, "num_key_value_heads": 2}
# PyLate's documents are longer than a text of the other tests.
LONG = {"max_position_embeddings": 4 * MAX_TOKENS}
GEMMA = {**DECODER, "sliding_window": 6, "hidden_activation": "gelu_pytorch_tanh"}
GEMMA3 = {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]}
# A cap of 50, as the repositories have it, would change nothing here.
GEMMA2 = {**GEMMA, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0}
# Global layers of other heads.
EMBEDDING_GEMMA2 = {
    **DECODER,
    "sliding_window": 6,
    "sliding_window_pattern": 2,
    "global_head_dim": 12,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 14,
    "embedding_dim": 40,
}
DEBERTA = {
    **SHAPE,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_buckets": 16,
    "pooler_hidden_size": HIDDEN,
    "max_relative_positions": -1,
}
T5 = {
    "d_model": HIDDEN,
    "d_kv": 8,
    "d_ff": 50,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": MAX_TOKENS,
    "rope_theta": 1e6,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
NTK = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """family: how the names of its classes in transformers begin. publish: from transformers' layout to that of the
    repository, where it is another. model: the class without a head."""

    family: str
    tokenizer: Callable[[Path], None]
    settings: Mapping[str, Any] = field(default_factory=lambda: SHAPE)
    publish: Callable[[Path], None] | None = None
    model: str = "Model"


def _own_code(name: str) -> Callable[[Path], None]:
    return lambda folder: layouts.edit_config(folder, auto_map={"AutoModel": name})


ENCODERS: Mapping[str, EncoderKind] = {
    "bert": EncoderKind("Bert", tokenizers.save_wordpiece),
    "bert-sentencepiece": EncoderKind("Bert", tokenizers.save_sentencepiece),
    "bert-contriever": EncoderKind(
        "Bert",
        tokenizers.save_wordpiece,
        publish=lambda folder: layouts.edit_config(folder, architectures=["Contriever"]),
    ),
    "distilbert": EncoderKind("DistilBert", tokenizers.save_wordpiece, DISTILBERT),
    "distilbert-own-tokenizer": EncoderKind(
        "DistilBert",
        tokenizers.save_wordpiece,
        DISTILBERT,
        publish=lambda folder: (folder / "tokenizer.json").unlink(),
    ),
    "mpnet": EncoderKind("MPNet", tokenizers.save_wordpiece, ROBERTA),
    "roberta": EncoderKind("Roberta", tokenizers.save_roberta, ROBERTA),
    "xlm-roberta": EncoderKind("XLMRoberta", tokenizers.save_sentencepiece, ROBERTA),
    "xlm-roberta-flash": EncoderKind(
        "XLMRoberta", tokenizers.save_sentencepiece, ROBERTA, jina.publish_flash
    ),
    "xlm-roberta-flash-adapters": EncoderKind(
        "JinaEmbeddingsV3", tokenizers.save_sentencepiece, ROBERTA, jina.publish_adapters
    ),
    "jina-xlm-roberta": EncoderKind(
        "JinaEmbeddingsV3", tokenizers.save_sentencepiece_with_markers, ROBERTA, jina.publish_colbert
    ),
    "camembert": EncoderKind("Camembert", tokenizers.save_sentencepiece, ROBERTA),
    "modernbert": EncoderKind(
        "ModernBert",
        tokenizers.save_wordpiece,
        {**SHAPE, **LONG, "local_attention": 10},
    ),
    "new": EncoderKind(
        "Gte", tokenizers.save_sentencepiece, {**SHAPE, "rope_parameters": NTK}, layouts.publish_new
    ),
    "gte": EncoderKind("Gte", tokenizers.save_sentencepiece),
    # Its own code rounds the width of the gate to steps of 256.
    "nomic-bert": EncoderKind(
        "NomicBert",
        tokenizers.save_wordpiece,
        {**SHAPE, "intermediate_size": 256},
        layouts.publish_nomic_bert,
    ),
    "deberta-v2": EncoderKind("DebertaV2", tokenizers.save_wordpiece, DEBERTA),
    "deberta": EncoderKind(
        "Deberta",
        tokenizers.save_wordpiece,
        {**SHAPE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pooler_hidden_size": HIDDEN},
    ),
    "electra": EncoderKind("Electra", tokenizers.save_wordpiece, {**SHAPE, "embedding_size": 20}),
    "ernie": EncoderKind("Ernie", tokenizers.save_wordpiece, {**SHAPE, "use_task_id": True}),
    "t5": EncoderKind("T5", tokenizers.save_t5, T5, model="EncoderModel"),
    "qwen2": EncoderKind("Qwen2", tokenizers.save_qwen, SMALL_HEADS),
    "qwen2-own-code": EncoderKind(
        "Qwen2", tokenizers.save_qwen, SMALL_HEADS, _own_code("modeling_qwen.Qwen2Model")
    ),
    "qwen2-bidirectional": EncoderKind(
        "Qwen2",
        tokenizers.save_qwen,
        {**SMALL_HEADS, "is_causal": False},
        _own_code("modeling_qwen.Qwen2Model"),
    ),
    "qwen2-bidirectional-eos": EncoderKind(
        "Qwen2", tokenizers.save_qwen, {**SMALL_HEADS, "is_causal": False}, layouts.publish_gte_qwen2
    ),
    "qwen3": EncoderKind("Qwen3", tokenizers.save_qwen, DECODER),
    "jina-ranking": EncoderKind("Qwen3", tokenizers.save_qwen, DECODER, layouts.publish_jina_ranking),
    "pplx-qwen3": EncoderKind(
        "Qwen3",
        tokenizers.save_qwen_without_eos,
        {**DECODER, **LONG, "is_causal": False},
        layouts.publish_pplx,
    ),
    "qwen3-projection": EncoderKind(
        "Qwen3", tokenizers.save_qwen_without_eos, DECODER, layouts.publish_projection
    ),
    "mistral-eos": EncoderKind(
        "Mistral", tokenizers.save_llama_with_eos, SMALL_HEADS, tokenizers.ask_for_eos
    ),
    "gritlm": EncoderKind(
        "Mistral", tokenizers.save_llama, SMALL_HEADS, _own_code("modeling_gritlm7b.MistralModel")
    ),
    "llama": EncoderKind("Llama", tokenizers.save_llama_with_eos, SMALL_HEADS),
    "reasonir": EncoderKind(
        "Llama", tokenizers.save_llama, SMALL_HEADS, _own_code("modeling_reasonir_8b.ReasonIRModel")
    ),
    "llama-bidirectional": EncoderKind(
        "Llama",
        tokenizers.save_llama,
        {**SMALL_HEADS, "is_causal": False},
        layouts.publish_llama_bidirectional,
    ),
    "ministral3": EncoderKind(
        "Ministral3",
        tokenizers.save_llama,
        {
            **DECODER,
            "is_causal": False,
            "rope_parameters": YARN,
            "max_position_embeddings": 16 * MAX_TOKENS,
        },
    ),
    "gemma": EncoderKind("Gemma", tokenizers.save_gemma, DECODER),
    "gemma2": EncoderKind("Gemma2", tokenizers.save_gemma, GEMMA2),
    "gemma2-own-code": EncoderKind(
        "Gemma2",
        tokenizers.save_gemma,
        GEMMA2,
        _own_code("modeling_gemma2.CodeXEmbedModel2B"),
    ),
    "embedding-gemma2": EncoderKind(
        "EmbeddingGemma2Text", tokenizers.save_gemma, EMBEDDING_GEMMA2, layouts.publish_embedding_gemma2
    ),
    "gemma3": EncoderKind("Gemma3Text", tokenizers.save_gemma, GEMMA3),
    "gemma3-bidirectional": EncoderKind(
        "Gemma3Text", tokenizers.save_gemma, {**GEMMA3, "use_bidirectional_attention": True}
    ),
    "eurobert": EncoderKind("EuroBert", tokenizers.save_llama_with_eos, SMALL_HEADS | LONG),
    "jina-embeddings-v3": EncoderKind("JinaEmbeddingsV3", tokenizers.save_sentencepiece, ROBERTA),
    "lfm2": EncoderKind(
        "Lfm2", tokenizers.save_llama, {**SMALL_HEADS, "layer_types": ["conv", "full_attention"]}
    ),
}


def save_encoder(kind: EncoderKind, folder: Path, head: str = "", **settings: Any) -> PreTrainedModel:
    """Save the model in transformers' layout with its tokenizer. head: the end of its class, empty without one."""
    folder.mkdir(parents=True, exist_ok=True)
    kind.tokenizer(folder)
    vocabulary = layouts.count_tokens(folder)
    config = getattr(transformers, f"{kind.family}Config")(
        vocab_size=vocabulary, **{**kind.settings, **settings}
    )
    return tiny(folder, getattr(transformers, f"{kind.family}{head or kind.model}"), config)
