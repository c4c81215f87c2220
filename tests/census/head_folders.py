"""Folders of rerankers, of sparse models, of models with a vector for each token, and of tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Router, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from transformers import (
    AutoTokenizer,
    GemmaConfig,
    GemmaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.description import ClassifierHead, Task
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.service import EmbedQuery
from embedserve_runtime.service.roles import resolve_prompt
from embedserve_runtime.tokenizing import InputEncoders, TextTokenizer
from tests.census import tokenizers
from tests.census.built import Built, Measure
from tests.census.dense_folders import publish
from tests.census.encoders import ENCODERS, HIDDEN, save_encoder
from tests.census.foreign import FOREIGN
from tests.census.gte_multilingual import build_gte_multilingual
from tests.census.layouts import count_tokens, edit_config, edit_tensors, read_json, write_json
from tests.census.repositories import Kind
from tests.runtime.heads.head_cases import CLASSIFIER, save_jina
from tests.runtime.heads.head_runner import greatest, logits_of
from tests.runtime.heads.test_bge_m3 import M3
from tests.runtime.heads.test_causal import reference
from tests.runtime.heads.test_causal import save as save_causal
from tests.runtime.pipelines.folders import CUT, TEXTS, tokens_of
from tests.runtime.pipelines.test_sparse_pipelines import rows
from tests.support.models import tiny
from tests.support.static_models import TEXTS as STATIC_TEXTS
from tests.support.static_models import Saved, sentence_transformer

PAIRS = [("a query", text) for text in TEXTS]
COLUMNS = 10


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

    return Built(folder, Task.RERANK, "CrossEncoder", lambda runner: greatest(_score(runner) - want()))


def _score(runner: Runner) -> FloatArray:
    head = runner.card.head
    assert isinstance(head, ClassifierHead)
    ids = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, CUT)
    return apply_score_function(logits_of(runner, ids), head.scores)[:, 0].astype(np.float32)


def _build_jina_reranker(folder: Path) -> Built:
    logits = save_jina(folder, "JinaBert", CLASSIFIER, {"num_labels": 1})
    tokenizers.save_tiny_wordpiece(folder)

    def measure(runner: Runner) -> float:
        ids = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, CUT)
        want = np.array([logits(np.asarray(one))[0, 0] for one in ids])
        return greatest(_score(runner) - 1 / (1 + np.exp(-want)))

    return Built(folder, Task.RERANK, "a forward pass of the tests'", measure)


def _build_llama_reranker(folder: Path) -> Built:
    """A pair in a prompt of its own, which no file of the repository says; the mean of all tokens is scored."""
    encoder, twin = ENCODERS["llama-bidirectional"], folder / "of_transformers"
    settings = {"num_labels": 1, "max_position_embeddings": 600}
    model = save_encoder(encoder, twin, CLASSIFIER, **settings)
    tokenizers.save_llama(twin, max_tokens=600)
    tokenizer = AutoTokenizer.from_pretrained(twin)

    def measure(runner: Runner) -> float:
        want = []
        for query, document in PAIRS:
            ids = tokenizer(f"question:{query} \n \n passage:{document}", return_tensors="pt")["input_ids"]
            with torch.no_grad():
                pooled = model.model(ids).last_hidden_state.mean(dim=1)
                want.append(torch.sigmoid(model.score(pooled)).item())
        return greatest(_score(runner) - np.array(want, dtype=np.float32))

    return Built(publish(encoder, twin, folder / "published"), Task.RERANK, "the model's page", measure)


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

    def measure(runner: Runner) -> float:
        head = runner.card.head
        assert isinstance(head, ClassifierHead)
        assert head.template is not None
        instruction = head.template.instruction or ""
        want = [reference(model, folder, pair, instruction, name) for pair in PAIRS]
        return greatest(_score(runner) - np.array(want, dtype=np.float32))

    return Built(folder, Task.RERANK, "the model's page", measure)


def _save_qwen3(folder: Path) -> PreTrainedModel:
    model = save_causal(folder, **HEADS)
    (folder / "README.md").unlink()
    return model


def _save_qwen2(folder: Path) -> PreTrainedModel:
    vocabulary = _save_qwen3(folder).config.vocab_size
    return tiny(folder, Qwen2ForCausalLM, Qwen2Config(vocab_size=vocabulary, **SIZES, **HEADS))


def _save_gemma(folder: Path) -> PreTrainedModel:
    tokenizers.save_gemma(folder, max_tokens=SIZES["max_position_embeddings"])
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


def build_sparse(kind: Kind, folder: Path) -> Built:
    if kind.encoder in FOREIGN:
        FOREIGN[kind.encoder].save(folder)
        return Built(folder, Task.SPARSE)
    encoder = ENCODERS[kind.encoder]
    head = "ForCausalLM" if kind.encoder == "qwen3" else "ForMaskedLM"
    save_encoder(encoder, folder / "encoder", head)
    if head == "ForCausalLM":
        # Vectors over the vocabulary by a language model, which code of its own makes.
        edit_config(folder / "encoder", auto_map={"AutoModel": "splade.SpladeModel"})
        return Built(folder / "encoder", Task.SPARSE)
    twin = folder / "of_the_loader"
    model = Transformer(str(folder / "encoder"), transformer_task="fill-mask")
    log = {"activation_function": "log1p_relu"} if "log1p-twice" in kind.behind else {}
    pooling = SpladePooling(**log)
    asymmetric = "weights-for-queries" in kind.behind
    modules: list[torch.nn.Module] = [model, pooling]
    if asymmetric:
        torch.manual_seed(2)
        weights = torch.rand(len(model.tokenizer.get_vocab()))
        modules = [
            Router.for_query_document([SparseStaticEmbedding(model.tokenizer, weights)], [model, pooling])
        ]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(twin), create_model_card=False)
    published = _publish_inside(kind, twin, folder / "published")
    return Built(published, Task.SPARSE, "SparseEncoder", _measure_sparse(twin, asymmetric))


def _publish_inside(kind: Kind, twin: Path, target: Path) -> Path:
    """Publish the encoder, which lies in a folder of its own where queries have another way."""
    encoder = ENCODERS[kind.encoder]
    if encoder.publish is None:
        return twin
    shutil.copytree(twin, target)
    (config,) = (path for path in target.rglob("config.json") if "model_type" in read_json(path))
    encoder.publish(config.parent)
    return target


def _measure_sparse(twin: Path, asymmetric: bool) -> Callable[[Runner], float]:
    @cache
    def want() -> list[FloatArray]:
        model = SparseEncoder(str(twin), device="cpu")
        ways = [model.encode_document, model.encode_query] if asymmetric else [model.encode]
        return [way(TEXTS, convert_to_sparse_tensor=False).numpy() for way in ways]

    def measure(runner: Runner) -> float:
        batches = [tokens_of(runner.card, TEXTS, query=query) for query in (False, True)[: len(want())]]
        return max(
            greatest(_run_sparse(runner, batch, of_loader.shape[1]) - of_loader)
            for batch, of_loader in zip(batches, want(), strict=True)
        )

    return measure


def _run_sparse(runner: Runner, batch: list[TokenSequence], columns: int) -> FloatArray:
    found = runner.run(PackedBatch.pack(batch), OutputKind.SPARSE).sparse
    assert found is not None
    return rows(list(found), columns)


def build_multi_vector(kind: Kind, folder: Path) -> Built:
    if kind.encoder in FOREIGN:
        FOREIGN[kind.encoder].save(folder)
        return Built(folder, Task.MULTI_VECTOR)
    save_encoder(ENCODERS[kind.encoder], folder / "encoder")
    if kind.behind == "hf-colbert":
        return _build_hf_colbert(folder / "encoder")
    torch.manual_seed(3)
    widths = [HIDDEN, 2 * HIDDEN, COLUMNS] if kind.behind == "projections" else [HIDDEN, COLUMNS]
    layers = [
        Dense(
            into,
            out,
            bias=False,
            activation_function=torch.nn.Identity(),
            module_input_name="token_embeddings",
        )
        for into, out in pairwise(widths)
    ]
    saved = folder / "saved"
    model = MultiVectorEncoder(modules=[Transformer(str(folder / "encoder")), *layers], device="cpu")
    model.save_pretrained(str(saved), create_model_card=False)
    _write_as_pylate(saved, len(layers))
    published = _publish_inside(kind, saved, folder / "published")

    return Built(published, Task.MULTI_VECTOR, "MultiVectorEncoder", _compare_multi_vectors(saved))


def _compare_multi_vectors(folder: Path) -> Measure:
    """folder: as the loader reads it."""

    def measure(runner: Runner) -> float:
        want = MultiVectorEncoder(str(folder), device="cpu").encode_document(TEXTS, convert_to_numpy=True)
        card = runner.card
        way = InputEncoders.for_model(card, TextTokenizer.from_card(card)).documents
        ids = way.encode(TEXTS, resolve_prompt(card, EmbedQuery(TEXTS, role="document")), CUT)
        found = runner.run(PackedBatch.pack(ids), OutputKind.MULTI_VECTOR).multi_vectors
        assert found is not None
        return max(greatest(one - other) for one, other in zip(found, want, strict=True))

    return measure


def _write_as_pylate(folder: Path, projections: int) -> None:
    """The folder as PyLate 1 to 3 saved it: no modules but the projections, all settings in one file."""
    modules = read_json(folder / "modules.json")[: 1 + projections]
    for module in modules[1:]:
        module["type"] = "pylate.models.Dense.Dense"
        path = folder / module["path"] / "config.json"
        content = read_json(path)
        dropped = ("module_input_name", "module_output_name")
        write_json(path, {key: value for key, value in content.items() if key not in dropped})
    write_json(folder / "modules.json", modules)
    path = folder / "config_sentence_transformers.json"
    settings = {
        "model_type": "ColBERT",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 24,
        "document_length": 180,
        "attend_to_expansion_tokens": False,
        "do_query_expansion": False,
        "skiplist_words": [".", ","],
    }
    write_json(path, read_json(path) | settings)


def _build_hf_colbert(folder: Path) -> Built:
    """The layout of the ColBERT library: the projection at the root, all settings in artifact.metadata."""
    projection = {"linear.weight": torch.randn(COLUMNS, HIDDEN) * 0.3}
    edit_tensors(folder, renamed={"": "bert."}, added=projection)
    edit_config(folder, architectures=["HF_ColBERT"])
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_token": "[Q]",
        "doc_token": "[D]",
        "attend_to_mask_tokens": False,
        "dim": COLUMNS,
        "doc_maxlen": 60,
        "query_maxlen": 32,
        "mask_punctuation": True,
    }
    write_json(folder / "artifact.metadata", metadata)
    return Built(folder, Task.MULTI_VECTOR, "MultiVectorEncoder", _compare_multi_vectors(folder))


def build_several(kind: Kind, folder: Path) -> Built:
    if kind.encoder in FOREIGN:
        FOREIGN[kind.encoder].save(folder)
        return Built(folder, Task.EMBED)
    if kind.encoder == "new":
        # Compared in full by test_gte_multilingual.py.
        return Built(build_gte_multilingual(folder, "new").folder, Task.EMBED)
    model = M3.save(folder, 2, 3, HIDDEN, torch.float32)

    def measure(runner: Runner) -> float:
        texts = ("ba de ba ba fi", "ku", "pai xyz pai nou <mask>")
        ids = [model.ids(text) for text in texts]
        found = runner.run(PackedBatch.pack(ids), OutputKind.DENSE)
        assert found.dense is not None
        dense = found.dense / np.linalg.norm(found.dense, axis=1, keepdims=True)
        return greatest(dense - np.stack([model.reference(one)[0] for one in ids]))

    return Built(folder, Task.EMBED, "the formulas of FlagEmbedding", measure)


def build_static(kind: Kind, folder: Path) -> Built:
    texts = list(STATIC_TEXTS)
    want: Callable[[], FloatArray]
    if kind.encoder == "model2vec":
        table = Saved(weights=True).save(folder)
        want, loader = lambda: table.encode(texts, max_length=512), "model2vec"
    else:
        model = sentence_transformer(folder, normalize=False)
        want, loader = lambda: model.encode(texts), "sentence-transformers"

    def measure(runner: Runner) -> float:
        found = runner.run(PackedBatch.pack(tokens_of(runner.card, texts)), OutputKind.DENSE).dense
        assert found is not None
        vectors = found
        if runner.card.pipeline.normalize:
            vectors = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return greatest(vectors - want())

    return Built(folder, Task.EMBED, loader, measure, is_table=True)
