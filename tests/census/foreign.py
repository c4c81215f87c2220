"""Encoders of the census that transformers has no class for, or whose class needs more than text: what their
config.json says, and a tensor under the name that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.census import tokenizers
from tests.census.layouts import WEIGHTS, count_tokens, write_json

HIDDEN = 36


@dataclass(frozen=True, slots=True)
class ForeignEncoder:
    """words: the name of its table of words. has_files: whether there are weights that are not an ONNX file."""

    model_type: str
    architecture: str
    words: str = "model.embed_tokens.weight"
    config: Mapping[str, Any] = field(default_factory=dict)
    has_files: bool = True

    def save(self, folder: Path) -> None:
        """Write config.json, a tokenizer, and the table of words."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizers.save_llama(folder)
        if not self.has_files:
            return
        rows = count_tokens(folder)
        content = {"model_type": self.model_type, "architectures": [self.architecture]}
        shape = {"hidden_size": HIDDEN, "vocab_size": rows, "num_hidden_layers": 2}
        write_json(folder / "config.json", {**content, **shape, **self.config})
        save_file({self.words: torch.zeros(rows, HIDDEN)}, folder / WEIGHTS, {"format": "pt"})


FOREIGN: Mapping[str, ForeignEncoder] = {
    "jina-v4": ForeignEncoder("jina_embeddings_v4", "JinaEmbeddingsV4Model"),
    "jina-clip": ForeignEncoder(
        "jina_clip", "JinaCLIPModel", "text_model.transformer.embeddings.word_embeddings.weight"
    ),
    "nv-embed": ForeignEncoder("nvembed", "NVEmbedModel", "embedding_model.embed_tokens.weight"),
    "llama-nemotron-vl": ForeignEncoder("llama_nemotron_vl", "LlamaNemotronVLModel"),
    "qwen3-vl": ForeignEncoder("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen3-5": ForeignEncoder("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "pplx-contextual": ForeignEncoder("pplx_contextual_qwen3_5", "PPLXContextualModel"),
    "c2llm": ForeignEncoder("c2llm", "C2LLMForEmbedding"),
    "unknown": ForeignEncoder("", "Model"),
    "contextual-document-embedding": ForeignEncoder("", "ContextualDocumentEmbeddingTransformer"),
    "codesage": ForeignEncoder("codesage", "CodeSageModel", "wte.weight"),
    "minicpm": ForeignEncoder("minicpm", "LayerWiseMiniCPMForCausalLM"),
    "cost-wise-gemma": ForeignEncoder("cost_wise_gemma", "CostWiseGemmaForCausalLM"),
    "jina-vl-ranking": ForeignEncoder("qwen2_vl", "JinaVLForRanking"),
    "t5gemma2": ForeignEncoder("t5gemma2", "T5Gemma2ForConditionalGeneration"),
    "querit": ForeignEncoder("", "QueritModel"),
    "xmod": ForeignEncoder("xmod", "HF_ColBERT", "roberta.embeddings.word_embeddings.weight"),
    "bm42": ForeignEncoder("bert", "BertModel", has_files=False),
    "minicoil": ForeignEncoder("", "", has_files=False),
}
