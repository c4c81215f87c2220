"""Folders of rerankers: with a classifier, with modules behind an encoder, language models that answer with a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from transformers import (
    AutoTokenizer,
    GemmaConfig,
    GemmaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.description import ClassifierHead, Task
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer
from tests.census import tokenizers
from tests.census.built import Built, Results
from tests.census.dense_folders import publish
from tests.census.encoders import ENCODERS, HIDDEN, save_encoder
from tests.census.foreign import FOREIGN
from tests.census.layouts import count_tokens, edit_config
from tests.census.repositories import Kind
from tests.runtime.heads.head_cases import CLASSIFIER, save_jina
from tests.runtime.heads.head_runner import logits_of
from tests.runtime.heads.test_causal import reference
from tests.runtime.heads.test_causal import save as save_causal
from tests.runtime.pipelines.folders import CUT, TEXTS
from tests.support.models import tiny

PAIRS = [("a query", text) for text in TEXTS]


def build_reranker(kind: Kind, folder: Path) -> Built:
    if kind.encoder in FOREIGN:
        FOREIGN[kind.encoder].save(folder)
        return Built(folder, Task.RERANK)
    if kind.encoder == "jina-bert":
        return _build_jina_reranker(folder)
    if kind.encoder == "llama-bidirectional":
        return _build_llama_reranker(folder)
    if not kind.behind.startswith("classifier"):
        return RERANKERS[kind.behind](kind, folder)
    encoder = ENCODERS[kind.encoder]
    pooling = {"classifier_pooling": "mean"} if kind.behind.endswith("mean") else {}
    twin = folder / "of_the_loader"
    save_encoder(encoder, twin, CLASSIFIER, num_labels=1, **pooling)
    return _compare_scores(publish(encoder, twin, folder / "published"), twin)


def _compare_scores(folder: Path, twin: Path) -> Built:
    @cache
    def want() -> FloatArray:
        scores: FloatArray = CrossEncoder(str(twin), device="cpu").predict(PAIRS)
        return scores

    return Built(folder, Task.RERANK, "CrossEncoder", _score, lambda _: [want()], twin)


def _score(runner: Runner) -> Results:
    head = runner.card.head
    assert isinstance(head, ClassifierHead)
    ids = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, CUT)
    return [apply_score_function(logits_of(runner, ids), head.scores)[:, 0].astype(np.float32)]


def _build_jina_reranker(folder: Path) -> Built:
    logits = save_jina(folder, "JinaBert", CLASSIFIER, {"num_labels": 1})
    tokenizers.save_tiny_wordpiece(folder)

    def expected(runner: Runner) -> Results:
        ids = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, CUT)
        want = np.array([logits(np.asarray(one))[0, 0] for one in ids])
        return [1 / (1 + np.exp(-want))]

    return Built(folder, Task.RERANK, "a forward pass of the tests'", _score, expected)


def _build_llama_reranker(folder: Path) -> Built:
    """A pair in a prompt of its own, which no file of the repository says; the mean of all tokens is scored."""
    encoder, twin = ENCODERS["llama-bidirectional"], folder / "of_transformers"
    settings = {"num_labels": 1, "max_position_embeddings": 600}
    model = save_encoder(encoder, twin, CLASSIFIER, **settings)
    tokenizers.save_llama(twin, max_length=600)
    tokenizer = AutoTokenizer.from_pretrained(twin)

    def expected(_: Runner) -> Results:
        want = []
        for query, document in PAIRS:
            ids = tokenizer(f"question:{query} \n \n passage:{document}", return_tensors="pt")["input_ids"]
            with torch.no_grad():
                pooled = model.model(ids).last_hidden_state.mean(dim=1)
                want.append(torch.sigmoid(model.score(pooled)).item())
        return [np.array(want, dtype=np.float32)]

    published = publish(encoder, twin, folder / "published")
    return Built(published, Task.RERANK, "the model's page", _score, expected, twin)


def _build_module_chain(kind: Kind, folder: Path) -> Built:
    """Scores by modules behind a plain encoder, as the ettin rerankers have them."""
    save_encoder(ENCODERS[kind.encoder], folder / "encoder")
    torch.manual_seed(3)
    modules = [
        Transformer(str(folder / "encoder")),
        Pooling(HIDDEN, pooling_mode="cls"),
        Dense(HIDDEN, HIDDEN, activation_function=torch.nn.GELU()),
        LayerNorm(HIDDEN),
        Dense(HIDDEN, 1, activation_function=torch.nn.Identity(), module_output_name="scores"),
    ]
    saved = folder / "saved"
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(saved), create_model_card=False)
    return _compare_scores(saved, saved)


def _build_causal(kind: Kind, folder: Path) -> Built:
    """A language model that answers with a word. Which, and to what, the repository's name says."""
    name = CAUSAL[kind.behind]
    folder = folder / name.split("/")[1]
    folder.mkdir()
    model = LANGUAGE_MODELS[kind.encoder](folder)

    def expected(runner: Runner) -> Results:
        head = runner.card.head
        assert isinstance(head, ClassifierHead)
        assert head.template is not None
        instruction = head.template.instruction or ""
        want = [reference(model, folder, pair, instruction, name) for pair in PAIRS]
        return [np.array(want, dtype=np.float32)]

    return Built(folder, Task.RERANK, "the model's page", _score, expected)


def _save_qwen3(folder: Path) -> PreTrainedModel:
    model = save_causal(folder, **HEADS)
    (folder / "README.md").unlink()
    return model


def _save_qwen2(folder: Path) -> PreTrainedModel:
    vocabulary = _save_qwen3(folder).config.vocab_size
    return tiny(folder, Qwen2ForCausalLM, Qwen2Config(vocab_size=vocabulary, **SIZES, **HEADS))


def _save_gemma(folder: Path) -> PreTrainedModel:
    tokenizers.save_gemma(folder, max_length=SIZES["max_position_embeddings"])
    config = GemmaConfig(vocab_size=count_tokens(folder), head_dim=10, **SIZES, **HEADS)
    model = tiny(folder, GemmaForCausalLM, config)
    edit_config(folder, hidden_act="gelu")
    return model


def _build_generator(kind: Kind, folder: Path) -> Built:
    encoder = ENCODERS[kind.encoder]
    twin = folder / "of_the_loader"
    save_encoder(encoder, twin, "ForConditionalGeneration" if kind.encoder == "t5" else "ForCausalLM")
    return Built(publish(encoder, twin, folder / "published"), Task.RERANK)


HEADS: Mapping[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
SIZES: Mapping[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 600,
}
LANGUAGE_MODELS: Mapping[str, Callable[[Path], PreTrainedModel]] = {
    "gemma": _save_gemma,
    "qwen2": _save_qwen2,
    "qwen3": _save_qwen3,
}
# A repository of each way to ask.
CAUSAL = {
    "yes": "BAAI/bge-reranker-v2-gemma",
    "yes-no": "Qwen/Qwen3-Reranker-8B",
    "yes-by-5": "zeroentropy/zerank-2",
    "one-zero": "mixedbread-ai/mxbai-rerank-base-v2",
}
RERANKERS: Mapping[str, Callable[[Kind, Path], Built]] = {
    "cls dense layer-norm dense": _build_module_chain,
    "yes": _build_causal,
    "yes-no": _build_causal,
    "yes-by-5": _build_causal,
    "one-zero": _build_causal,
    "own": _build_generator,
}
