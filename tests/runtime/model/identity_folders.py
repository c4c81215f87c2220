"""Tiny folders of every kind that the loader reads, each with all the small files of its kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from tests.runtime.engines.cases import CASES
from tests.runtime.model.test_card import edit
from tests.support.models import tiny
from tests.support.static_models import Saved
from tests.support.tiny_tokenizers import qwen_tokenizer, xlm_roberta_tokenizer

Build = Callable[[Path], None]
VOCABULARY = 97
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 30,
    "max_position_embeddings": 48,
}
PROMPTS = {"query": "ba de ", "document": "fi ", "other": ""}


def pipeline(folder: Path) -> None:
    """A BERT with pooling, dense layer, normalizing and prompts, as sentence-transformers saves it, with the files of
    former versions besides."""
    bare = folder / "bare"
    tiny(bare, BertModel, BertConfig(**SHAPE))
    xlm_roberta_tokenizer(bare)
    torch.manual_seed(1)
    modules = [
        Transformer(str(bare)),
        Pooling(24),
        Dense(24, 10, activation_function=torch.nn.Tanh()),
        Normalize(),
    ]
    model = SentenceTransformer(
        modules=modules, device="cpu", prompts=PROMPTS, default_prompt_name="document"
    )
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    edit(folder / "saved" / "sentence_bert_config.json", max_seq_length=32, do_lower_case=False)
    ranges = {"min": [-1.0] * 10, "max": [1.0] * 10}
    (folder / "saved" / "quantization_ranges.json").write_text(json.dumps(ranges))


def encoder(name: str) -> Build:
    """A row of the table of encoders with a tokenizer and pooling of the last token."""
    (case,) = (case for case in CASES if case.name == name)

    def build(folder: Path) -> None:
        saved = folder / "saved"
        saved.mkdir()
        case.build(saved)
        xlm_roberta_tokenizer(saved)
        lines = [("", "Transformer"), ("1_Pooling", "Pooling")]
        (saved / "1_Pooling").mkdir()
        (saved / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
        modules = [
            {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for idx, (path, kind) in enumerate(lines)
        ]
        (saved / "modules.json").write_text(json.dumps(modules))

    return build


def checkpoint(model: type[PreTrainedModel], config: Callable[[], Any]) -> Build:
    """A folder of transformers alone, with a head."""

    def build(folder: Path) -> None:
        tiny(folder / "saved", model, config())
        xlm_roberta_tokenizer(folder / "saved")

    return build


def bge_m3(folder: Path) -> None:
    saved = folder / "saved"
    tiny(saved, XLMRobertaModel, XLMRobertaConfig(**SHAPE | {"type_vocab_size": 1}))
    xlm_roberta_tokenizer(saved)
    for name, columns in (("sparse_linear.pt", 1), ("colbert_linear.pt", 7)):
        torch.manual_seed(columns)
        torch.save(torch.nn.Linear(24, columns).state_dict(), saved / name)


def multi_vector(folder: Path) -> None:
    """A ColBERT as PyLate saves it."""
    saved = folder / "saved"
    tiny(saved, BertModel, BertConfig(**SHAPE))
    xlm_roberta_tokenizer(saved)
    (saved / "1_Dense").mkdir()
    source = np.random.default_rng(3)
    save_file(
        {"linear.weight": source.normal(size=(8, 24)).astype(np.float32)},
        saved / "1_Dense" / "model.safetensors",
    )
    activation = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 24, "out_features": 8, "bias": False, "activation_function": activation}
    (saved / "1_Dense" / "config.json").write_text(json.dumps(dense))
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    (saved / "modules.json").write_text(json.dumps(modules))
    settings = {
        "model_type": "ColBERT",
        "prompts": {},
        "query_prefix": "ka",
        "document_prefix": "ki",
        "query_length": 12,
        "document_length": 30,
        "attend_to_expansion_tokens": False,
        "skiplist_words": ["ba", "bo"],
        "do_query_expansion": True,
    }
    (saved / "config_sentence_transformers.json").write_text(json.dumps(settings))


def routed(folder: Path) -> None:
    """Queries by a table of weights, documents by a masked LM."""
    bare = folder / "bare"
    tiny(bare, BertForMaskedLM, BertConfig(**SHAPE | {"vocab_size": 75}))
    xlm_roberta_tokenizer(bare)
    documents = Transformer(str(bare), transformer_task="fill-mask")
    torch.manual_seed(2)
    router = Router.for_query_document(
        [SparseStaticEmbedding(documents.tokenizer, torch.rand(75))], [documents, SpladePooling("max")]
    )
    model = SparseEncoder(modules=[router], device="cpu")
    model.save_pretrained(str(folder / "saved"), create_model_card=False)


def causal_reranker(folder: Path) -> None:
    """A Qwen3 that ranks by two tokens, as LogitScore says them."""
    saved = folder / "saved"
    tokenizer = qwen_tokenizer(saved)
    config = Qwen3Config(
        vocab_size=len(tokenizer) + 5,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=40,
        head_dim=10,
        max_position_embeddings=600,
        pad_token_id=tokenizer.pad_token_id,
    )
    tiny(saved, Qwen3ForCausalLM, config)
    metadata = "---\nbase_model: Qwen/Qwen3-Reranker-0.6B\n---\n"
    (saved / "README.md").write_text(metadata)


def with_adapter(folder: Path) -> None:
    saved = folder / "saved"
    encoder("qwen3, causal")(folder)
    source = np.random.default_rng(4)
    content = {
        "peft_type": "LORA",
        "base_model_name_or_path": "acme/base",
        "r": 2,
        "lora_alpha": 6,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {"v_proj": 5},
        "target_modules": ["q_proj", "v_proj"],
        "lora_dropout": 0.1,
        "init_lora_weights": True,
    }
    (saved / "adapter_config.json").write_text(json.dumps(content))
    hidden, sizes = _sizes_of(saved)
    tensors = {}
    for name, out in sizes.items():
        stem = f"base_model.model.layers.0.self_attn.{name}"
        tensors[f"{stem}.lora_A.weight"] = source.normal(size=(2, hidden)).astype(np.float32)
        tensors[f"{stem}.lora_B.weight"] = source.normal(size=(out, 2)).astype(np.float32)
    save_file(tensors, saved / "adapter_model.safetensors")


def _sizes_of(folder: Path) -> tuple[int, Mapping[str, int]]:
    config = json.loads((folder / "config.json").read_text())
    head = config["head_dim"]
    sizes = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    return config["hidden_size"], sizes


def static(folder: Path) -> None:
    Saved(weights=True, max_length=9).save(folder / "saved")


def _modern() -> ModernBertConfig:
    shape = SHAPE | {"pad_token_id": 1, "num_labels": 1, "local_attention": 8, "num_hidden_layers": 2}
    return ModernBertConfig(**shape)


FOLDERS: dict[str, Build] = {
    "a dense pipeline": pipeline,
    "a decoder": encoder("qwen3, window of 6, gelu"),
    "a reranker": checkpoint(
        BertForSequenceClassification, lambda: BertConfig(**SHAPE, num_labels=1, pad_token_id=1)
    ),
    "queries and documents by different modules": routed,
}
"""Those of each way through the loader."""

MORE_FOLDERS: dict[str, Build] = {
    **{
        name: encoder(name)
        for name in (
            "roberta, odd heads",
            "distilbert, odd heads",
            "mpnet, odd heads",
            "modernbert, window of 5",
            "gte, linear scaling, large epsilon",
            "nomic, odd heads",
            "deberta, v3",
            "deberta, wide convolution, own words' width",
            "nomic v2, two of five experts",
            "jina, three heads",
            "jina code, three heads",
            "qwen2, bidirectional, yarn",
            "mistral, window of 6",
            "llama, causal, llama3 scaling",
            "gemma, biases, silu",
            "gemma2, causal, window of 6",
            "gemma3, bidirectional, biases, scaled global layers",
        )
    },
    "labels": checkpoint(
        BertForSequenceClassification, lambda: BertConfig(**SHAPE, num_labels=3, pad_token_id=1)
    ),
    "a ModernBERT reranker": checkpoint(ModernBertForSequenceClassification, _modern),
    "a masked LM": checkpoint(BertForMaskedLM, lambda: BertConfig(**SHAPE)),
    "token weights": checkpoint(BertForTokenClassification, lambda: BertConfig(**SHAPE, num_labels=1)),
    "BGE-M3": bge_m3,
    "a multi-vector model": multi_vector,
    "a causal reranker": causal_reranker,
    "an adapter": with_adapter,
    "a static model": static,
}
"""Those of other families and heads."""
# What a folder is served as, where nothing in it says so.
TASKS = {"a masked LM": "sparse"}
