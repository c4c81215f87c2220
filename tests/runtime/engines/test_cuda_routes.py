"""Tests on a CUDA device of asymmetric models: both heads of a shared encoder side by side, two encoders on
one device, residual layers, and all of them while the next batches are under way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.engines.torch.heads import TokenLayers
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.dense import DenseHead, RoutedHead
from embedserve_runtime.heads.layers import HeadLayerWeights, apply_layers
from embedserve_runtime.heads.token_heads import LoadedMultiVectorHead
from embedserve_runtime.loading.assembly import build_runners
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import HeadLayer, MultiVectorHead
from embedserve_runtime.model.pipeline import DenseLayer, Pooling
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.runners.base import EncoderRunner, Heads, RoutedRunner, Runner
from embedserve_runtime.runners.device import DeviceRunner, to_host_layers
from tests.runtime.engines.test_forms import LAYERS, MAX_TOKENS, VOCABULARY, encoder_of
from tests.runtime.engines.test_torch_engine import saved
from tests.runtime.heads.head_runner import card_of
from tests.runtime.pipelines.folders import TEXTS, finished, tokens_of
from tests.runtime.pipelines.test_dense_routes import OWN, PROMPTS, SHARED, Bare, Chain
from tests.runtime.pipelines.test_dense_routes import saved as saved_pipeline
from tests.support.tolerances import FP32_MAX_ABS_DIFF, SIXTEEN_BIT_MIN_COSINE

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

CUDA = torch.device("cuda", 0)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
HIDDEN = 20
# No runner reads the card.
CARD = cast("ModelCard", None)
MIXES = {
    "documents": lambda number: False,
    "queries": lambda number: True,
    "both in turns": lambda number: number % 2 == 0,
    "one query among documents": lambda number: number == 3,
}


def layer(out: int, activation: Activation, *, residual: bool, inside: int = HIDDEN) -> HeadLayerWeights:
    """residual: by a matrix where the widths differ, else the input itself."""
    source = np.random.default_rng(out)

    def drawn(*shape: int) -> FloatArray:
        return source.normal(size=shape).astype(np.float32) / np.float32(inside**0.5)

    described = HeadLayer.from_dense(DenseLayer("", inside, out, True, activation, residual))
    matrix = drawn(out, inside) if residual and out != inside else None
    return HeadLayerWeights(described, drawn(out, inside), drawn(out), None, None, matrix)


def batch_of(is_query: Callable[[int], bool], count: int = 9, *, prompts: bool = True) -> PackedBatch:
    """prompts: of queries, which pooling leaves out."""
    source = np.random.default_rng(count)
    texts = []
    for number in range(count):
        ids = source.integers(0, VOCABULARY, source.integers(1, MAX_TOKENS + 1)).astype(np.int32)
        query = is_query(number)
        texts.append(TokenSequence(ids, pool_start=3 if query and prompts else 0, is_query_role=query))
    return PackedBatch.pack(texts)


def both_runners(folder: Path, heads: Heads, dtype: torch.dtype) -> tuple[EncoderRunner, DeviceRunner]:
    encoder = encoder_of(LAYERS["grouped heads, window, rotary"])
    weights = saved(folder, encoder)
    engines = [TorchEngine(encoder, weights, CUDA, dtype) for _ in range(2)]
    return EncoderRunner(CARD, engines[0], heads), DeviceRunner(CARD, engines[1], heads)


def assert_close(got: ModelOutput, want: ModelOutput, dtype: torch.dtype) -> None:
    atol = 1e-4 if dtype is torch.float32 else 0.05
    if want.dense is not None:
        assert got.dense is not None
        np.testing.assert_allclose(got.dense, want.dense, atol=atol)
    for name in ("multi_vectors", "hidden"):
        ours, theirs = getattr(got, name), getattr(want, name)
        assert (ours is None) == (theirs is None)
        for ours_row, theirs_row in zip(ours or (), theirs or (), strict=True):
            np.testing.assert_allclose(ours_row, theirs_row, atol=atol)


@pytest.mark.parametrize("out", [7, HIDDEN], ids=["by a matrix", "the input itself"])
@pytest.mark.parametrize("activation", Activation)
def test_a_residual_layer_on_the_device_is_that_of_the_host(activation: Activation, out: int) -> None:
    layers = [layer(out, activation, residual=True), layer(5, activation, residual=True, inside=out)]
    values = np.random.default_rng(0).normal(size=(33, HIDDEN)).astype(np.float32)
    got = TokenLayers(to_host_layers(layers), CUDA)(torch.from_numpy(values).to(CUDA)).cpu().numpy()
    np.testing.assert_allclose(got, apply_layers(layers, values), atol=1e-5, rtol=1e-4)


@DTYPES
def test_residual_layers_on_tokens_give_the_vectors_of_the_host(tmp_path: Path, dtype: torch.dtype) -> None:
    layers = (
        layer(HIDDEN, Activation.IDENTITY, residual=True),
        layer(6, Activation.IDENTITY, residual=True),
    )
    head = MultiVectorHead(tuple(each.layer for each in layers), normalize=True, skipped=0)
    on_host, on_device = both_runners(
        tmp_path, Heads(multi_vectors=LoadedMultiVectorHead(head, layers)), dtype
    )
    batch = batch_of(MIXES["documents"])
    want = on_host.run(batch, OutputKind.MULTI_VECTOR)
    assert_close(on_device.run(batch, OutputKind.MULTI_VECTOR), want, dtype)


@DTYPES
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("count", [9, 700], ids=["few sequences", "more than a graph of their tokens has"])
def test_heads_side_by_side_give_each_sequence_the_row_of_its_way(
    tmp_path: Path, mix: str, count: int, dtype: torch.dtype
) -> None:
    routes = RoutedHead(
        DenseHead(
            (Pooling.MEAN, Pooling.MAX), (layer(11, Activation.TANH, residual=True, inside=2 * HIDDEN),)
        ),
        DenseHead((Pooling.CLS,), (layer(11, Activation.GELU, residual=True),)),
    )
    on_host, on_device = both_runners(tmp_path, Heads(dense=routes), dtype)
    batches = [batch_of(MIXES[mix], size) for size in (count, 1, count // 2)]
    under_way = [on_device.submit(batch, OutputKind.DENSE) for batch in batches[:2]]
    assert_close(under_way[0].results(), on_host.run(batches[0], OutputKind.DENSE), dtype)
    under_way.append(on_device.submit(batches[2], OutputKind.DENSE))
    for batch, run in zip(batches[1:], under_way[1:], strict=True):
        assert_close(run.results(), on_host.run(batch, OutputKind.DENSE), dtype)
    outputs = OutputKind.DENSE | OutputKind.HIDDEN
    assert_close(on_device.run(batches[0], outputs), on_host.run(batches[0], outputs), dtype)


def on_cuda(folder: Path, dtype: torch.dtype) -> Runner:
    (runner,) = build_runners(
        card_of(folder),
        ModelTensors(folder),
        lambda encoder, weights: [TorchEngine(encoder, weights, CUDA, dtype)],
    )
    return runner


@DTYPES
@pytest.mark.parametrize("chain", [*SHARED.values(), *OWN.values()], ids=[*SHARED, *OWN])
def test_an_asymmetric_model_on_the_device_equals_sentence_transformers_while_batches_overlap(
    tmp_path: Path, chain: Chain, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    folder = tmp_path / "model"
    model = saved_pipeline(folder, *chain(Bare(tmp_path)), **PROMPTS)
    runner = on_cuda(folder, dtype)
    assert isinstance(runner, DeviceRunner | RoutedRunner)
    assert runner.max_in_flight == 2
    card = runner.card
    assert card.query is not None
    queries = tokens_of(card, TEXTS, "query", query=True)
    documents = tokens_of(card, TEXTS, "document")
    turns = [each for pair in zip(queries, documents, strict=True) for each in pair]
    submitted = [runner.submit(PackedBatch.pack(texts), OutputKind.DENSE) for texts in (turns, turns[::-1])]
    first, second = (each.results().dense for each in submitted)
    assert first is not None
    assert second is not None
    for rows in (first, second[::-1]):
        for got, want in (
            (finished(card.query.card, rows[::2]), model.encode_query(TEXTS)),
            (finished(card, rows[1::2]), model.encode_document(TEXTS)),
        ):
            if dtype is torch.float32:
                np.testing.assert_allclose(got, want, atol=FP32_MAX_ABS_DIFF)
            norms = np.linalg.norm(got, axis=1) * np.linalg.norm(want, axis=1)
            assert ((got * want).sum(axis=1) / norms).min() >= SIXTEEN_BIT_MIN_COSINE
