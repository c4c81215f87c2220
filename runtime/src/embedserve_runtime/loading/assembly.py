"""Assembles a runner from a model's card and an engine: loads the tensors of its heads and joins them to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from embedserve_runtime.config import EngineSettings
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.engines.onnx.bundled import BundledOnnxEngine, BundledOnnxRunner
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.engines.protocol import EncoderEngine
from embedserve_runtime.engines.static import SparseStaticRunner, StaticRunner
from embedserve_runtime.heads.classification import LoadedClassifierHead
from embedserve_runtime.heads.dense import DenseHead, RoutedHead
from embedserve_runtime.heads.layers import HeadLayerWeights, apply_layers
from embedserve_runtime.heads.sparse import LoadedSparseHead
from embedserve_runtime.heads.token_heads import LoadedLexicalHead, LoadedMultiVectorHead
from embedserve_runtime.model.adapted_tensors import open_encoder_tensors
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import StoredTensors, Weights
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    HeadLayer,
    LexicalHead,
    MultiVectorHead,
    SparseHead,
    TokenHead,
)
from embedserve_runtime.model.heads.tensors import read_head_tensors
from embedserve_runtime.model.sparse_static import SparseStaticTable, read_token_weights
from embedserve_runtime.model.static import StaticTable, read_table_tensors
from embedserve_runtime.model.tensors import ModelTensors, read_dense_tensors
from embedserve_runtime.runners.base import (
    EncoderRunner,
    Heads,
    RoutedRunner,
    Runner,
    TaskRunner,
    TokenWeightRunner,
)

OpenEngines = Callable[[Encoder, Weights], Sequence[EncoderEngine]]


def build_runners(card: ModelCard, tensors: ModelTensors, engines_of: OpenEngines) -> Sequence[Runner]:
    """Build the runners of the card's task, one a device, with the tensors of its heads loaded, on the device where
    it can.

    Two engines a device where queries have an encoder of their own; as many for each task that is served.
    """
    if card.other_tasks:
        tasks = [
            _build_task_runners(task_card, tensors, engines_of) for task_card in (card, *card.other_tasks)
        ]
        return [TaskRunner(task_runners) for task_runners in zip(*tasks, strict=True)]
    return _build_task_runners(card, tensors, engines_of)


def _build_task_runners(card: ModelCard, tensors: ModelTensors, engines_of: OpenEngines) -> Sequence[Runner]:
    documents = _build_routed_runners(card, tensors, engines_of)
    if card.query is None or card.shares_encoder:
        return documents
    queries = _build_routed_runners(card.query.card, tensors, engines_of)
    # A table serves all devices.
    count = max(len(documents), len(queries))
    return [
        RoutedRunner(documents[number % len(documents)], queries[number % len(queries)])
        for number in range(count)
    ]


def _build_routed_runners(
    card: ModelCard, tensors: ModelTensors, engines_of: OpenEngines
) -> Sequence[Runner]:
    match card.backbone:
        case StaticTable() as table:
            own = read_table_tensors(tensors.open_checkpoint(card.encoder_path), table.tensor)
            return [StaticRunner(card, table, own, partial(apply_layers, _load_dense_layers(card, tensors)))]
        case SparseStaticTable():
            return [SparseStaticRunner(card, read_token_weights(tensors, card.encoder_path))]
    checkpoint = open_encoder_tensors(card, tensors)
    engines = engines_of(card.encoder, Weights(card.encoder, checkpoint))
    heads = load_heads(card, tensors, checkpoint)
    return [_build_encoder_runner(engine, card, heads) for engine in engines]


def _build_encoder_runner(engine: EncoderEngine, card: ModelCard, heads: Heads) -> Runner:
    if not isinstance(engine, OnnxEngine):
        # Imported here, as for the engine below.
        from embedserve_runtime.engines.torch.engine import TorchEngine
        from embedserve_runtime.runners.device import DeviceRunner

        if isinstance(engine, TorchEngine) and engine.runs_heads:
            return DeviceRunner(card, engine, heads)
    return EncoderRunner(card, engine, heads)


def open_bundled_runner(
    card: ModelCard, graph: BundledOnnx, tensors: ModelTensors, settings: EngineSettings
) -> Runner:
    engine = BundledOnnxEngine(graph, card.encoder.hidden_size, settings.threads or count_usable_cpus())
    if graph.pooled is not None:
        return BundledOnnxRunner(
            card, graph, engine, partial(apply_layers, _load_dense_layers(card, tensors))
        )
    dense = _load_dense_head(card, tensors)
    lexical = next((head for head in card.token_heads if isinstance(head, LexicalHead)), None)
    if lexical is not None:
        return TokenWeightRunner(card, engine, dense, LoadedLexicalHead(lexical, ()))
    return EncoderRunner(card, engine, Heads(dense=dense))


def load_heads(card: ModelCard, tensors: ModelTensors, checkpoint: StoredTensors) -> Heads:
    """Load the heads of a model with their tensors. checkpoint: the encoder's. Raises ModelInvalid."""
    heads = Heads()
    if card.head is None:
        heads = Heads(dense=_load_dense_head(card, tensors))
    for head in (*(() if card.head is None else (card.head,)), *card.token_heads):
        layers = _load_head_layers(head, tensors, checkpoint)
        match head:
            case ClassifierHead():
                heads = replace(heads, logits=LoadedClassifierHead(head, layers))
            case SparseHead():
                heads = replace(heads, sparse=LoadedSparseHead(head, layers))
            case LexicalHead():
                heads = replace(heads, sparse=LoadedLexicalHead(head, layers))
            case MultiVectorHead():
                heads = replace(heads, multi_vectors=LoadedMultiVectorHead(head, layers))
    return heads


def _load_head_layers(
    head: Head | TokenHead, tensors: ModelTensors, checkpoint: StoredTensors
) -> tuple[HeadLayerWeights, ...]:
    arrays = {
        name: tensor.astype(np.float32, copy=False)
        for name, tensor in read_head_tensors(tensors, checkpoint, head.layers)
    }
    return HeadLayerWeights.load_all(head.layers, arrays)


def _load_dense_head(card: ModelCard, tensors: ModelTensors) -> DenseHead | RoutedHead:
    documents = DenseHead(card.pipeline.pooling, _load_dense_layers(card, tensors))
    if card.query is None or not card.shares_encoder:
        return documents
    query = card.query.card
    return RoutedHead(documents, DenseHead(query.pipeline.pooling, _load_dense_layers(query, tensors)))


def _load_dense_layers(card: ModelCard, tensors: ModelTensors) -> tuple[HeadLayerWeights, ...]:
    dense = card.pipeline.dense
    arrays = {
        name: tensor.astype(np.float32, copy=False) for name, tensor in read_dense_tensors(tensors, dense)
    }
    return HeadLayerWeights.load_all([HeadLayer.from_dense(layer) for layer in dense], arrays, prefix="dense")
