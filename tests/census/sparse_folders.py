"""Folders of models with weights over the vocabulary, as sentence-transformers saves them."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.runners.base import Runner
from tests.census.built import Built, Results
from tests.census.encoders import ENCODERS, save_encoder
from tests.census.foreign import FOREIGN
from tests.census.layouts import edit_config, read_json
from tests.census.repositories import Kind
from tests.runtime.pipelines.folders import TEXTS, tokens_of
from tests.runtime.pipelines.test_sparse_pipelines import rows


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
    published = publish_inside(kind, twin, folder / "published")

    @cache
    def want() -> Results:
        loaded = SparseEncoder(str(twin), device="cpu")
        encoders = [loaded.encode_document, loaded.encode_query] if asymmetric else [loaded.encode]
        return [encode(TEXTS, convert_to_sparse_tensor=False).numpy() for encode in encoders]

    return Built(
        published,
        Task.SPARSE,
        "SparseEncoder",
        lambda runner: _run_sparse(runner, asymmetric),
        lambda _: want(),
        twin,
    )


def publish_inside(kind: Kind, twin: Path, target: Path) -> Path:
    """Publish the encoder, which lies in a folder of its own where queries have another way."""
    encoder = ENCODERS[kind.encoder]
    if encoder.publish is None:
        return twin
    shutil.copytree(twin, target)
    (config,) = (path for path in target.rglob("config.json") if "model_type" in read_json(path))
    encoder.publish(config.parent)
    return target


def _run_sparse(runner: Runner, asymmetric: bool) -> Results:
    """The weights of texts as documents and, where they differ, as queries; float32 [texts, vocabulary] each."""
    batches = [
        tokens_of(runner.card, TEXTS, query=query) for query in ((False, True) if asymmetric else (False,))
    ]
    return [_run_batch(runner, batch) for batch in batches]


def _run_batch(runner: Runner, batch: list[TokenSequence]) -> FloatArray:
    found = runner.run(PackedBatch.pack(batch), OutputKind.SPARSE).sparse
    assert found is not None
    return rows(list(found), runner.card.sparse_width)
