"""Models with random weights in the shapes of well-known ones, for benchmarks on a GPU, and what a forward pass of them
must compute. The vocabularies are small: only rows that are read cost anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from benchmarks.packing import log_uniform, random_batch
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Attention, Encoder, Mlp
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.parity.eight_bit import build_calibration, build_sample
from tests.support.models import minilm_folder

Lengths = NDArray[np.int64]
VOCABULARY = 30_522
PARITY_LENGTHS = log_uniform(32, 5, 500)
CALIBRATION_LENGTHS = log_uniform(24, 5, 500)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model to build: `save` writes its folder. Goes to other processes."""

    name: str
    pooling: Pooling
    model: type[PreTrainedModel]
    config: Callable[[], PretrainedConfig]

    def save(self, folder: Path) -> None:
        torch.manual_seed(0)
        built = self.model._from_config(self.config()).eval()
        # Norms and biases start as ones and zeros, which are kinder to 16 bit than trained ones.
        for name, parameter in built.named_parameters():
            if parameter.ndim == 1:
                mean = 1.0 if name.endswith("weight") else 0.0
                torch.nn.init.normal_(parameter, mean=mean, std=0.1)
        built.to(torch.bfloat16).save_pretrained(folder)

    def parity_batch(self, _: Path) -> PackedBatch:
        """What 16 and 8 bit are compared on."""
        return random_batch(PARITY_LENGTHS)

    def calibration_batch(self, _: Path) -> PackedBatch:
        """What 8 bit is calibrated on."""
        return random_batch(CALIBRATION_LENGTHS)


@dataclass(frozen=True, slots=True)
class Trained:
    """A model with its real weights: `save` writes a copy of its folder."""

    name: str
    pooling: Pooling
    folder: Callable[[], Path]

    def save(self, folder: Path) -> None:
        """Raises RuntimeError where its package is not installed."""
        shutil.copytree(self.folder(), folder, dirs_exist_ok=True)

    def parity_batch(self, folder: Path) -> PackedBatch:
        """The texts that the server compares them on at start."""
        return build_sample(self._read_card(folder))

    def calibration_batch(self, folder: Path) -> PackedBatch:
        """The texts that the server calibrates 8 bit on at start."""
        return build_calibration(self._read_card(folder))

    def _read_card(self, folder: Path) -> ModelCard:
        return read_card(folder, "local", ModelSettings(source=str(folder)))


def _shape(
    name: str,
    pooling: Pooling,
    model: type[PreTrainedModel],
    config: Callable[..., PretrainedConfig],
    **settings: Any,
) -> Shape:
    return Shape(name, pooling, model, partial(config, vocab_size=VOCABULARY, **settings))


BERT_BASE = _shape("BERT-base", Pooling.MEAN, BertModel, BertConfig)
BGE_M3 = _shape(
    "BGE-M3",
    Pooling.CLS,
    XLMRobertaModel,
    XLMRobertaConfig,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    max_position_embeddings=8194,
)
MINILM = Trained("all-MiniLM-L6-v2", Pooling.MEAN, minilm_folder)
QWEN3 = _shape(
    "Qwen3-0.6B",
    Pooling.LAST,
    Qwen3Model,
    Qwen3Config,
    hidden_size=1024,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=3072,
    max_position_embeddings=8192,
)
MODERNBERT = _shape(
    "ModernBERT-base",
    Pooling.MEAN,
    ModernBertModel,
    ModernBertConfig,
    **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 0),
)


def flops(encoder: Encoder, lengths: Lengths) -> float:
    """Multiplications and additions of the linear layers and of attention: what every implementation has to do."""
    total = 0.0
    for layer in encoder.layers:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, Mlp)  # no shape here has a mixture of experts
        queries, keys = attention.heads * attention.head_size, attention.kv_heads * attention.head_size
        products = 2 * queries + 2 * keys + (3 if mlp.gated else 2) * mlp.intermediate
        total += 2 * encoder.hidden_size * products * float(lengths.sum())
        total += 4 * queries * sum(_pairs(attention, int(length)) for length in lengths)
    return total


def _pairs(attention: Attention, length: int) -> int:
    """How many keys all queries of a sequence see together."""
    positions = np.arange(length)
    window = length if attention.window is None else attention.window
    ahead = 0 if attention.causal else window
    return int((np.minimum(positions + ahead, length - 1) - np.maximum(positions - window, 0) + 1).sum())
