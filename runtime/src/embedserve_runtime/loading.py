"""From settings to a model that can run: find or fetch the folder, read its card, build the engine."""

from __future__ import annotations

import numpy as np

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu_quota import usable_cpus
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.model.card import ModelCard, read_card
from embedserve_runtime.model.checkpoint import Checkpoint, Weights, dense_tensors
from embedserve_runtime.model.sources import open_model
from embedserve_runtime.runner import DenseWeights, ModelRunner


def load_runner(config: RuntimeConfig) -> ModelRunner:
    """Blocks until the model is in memory. Raises ModelError, SourceUnavailable or ConfigError."""
    located = open_model(config.model)
    card = read_card(located.folder, located.revision, config.model)
    weights = Weights(card.encoder, Checkpoint.open(card.folder))
    engine = OnnxEngine(card.encoder, weights, config.engine.threads or usable_cpus())
    return ModelRunner(card, engine, _dense_weights(card))


def _dense_weights(card: ModelCard) -> list[DenseWeights]:
    tensors = {
        name: tensor.astype(np.float32, copy=False)
        for name, tensor in dense_tensors(card.folder, card.pipeline.dense)
    }
    return [
        DenseWeights(tensors[f"dense.{number}.weight"], tensors.get(f"dense.{number}.bias"), layer.activation)
        for number, layer in enumerate(card.pipeline.dense)
    ]
