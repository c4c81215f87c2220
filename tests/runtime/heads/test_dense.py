from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling as ReferencePooling

from embedserve_runtime.engines.torch.heads import TokenLayers
from embedserve_runtime.heads import dense
from embedserve_runtime.heads.layers import HeadLayerWeights
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.heads.description import HeadLayer
from embedserve_runtime.model.pipeline import DenseLayer, Pooling
from embedserve_runtime.runners.device import to_host_layers

SIZE = 6
LENGTHS = (1, 5, 3)
REFERENCE_MODES = {
    Pooling.CLS: "cls",
    Pooling.MEAN: "mean",
    Pooling.MEAN_SQRT: "mean_sqrt_len_tokens",
    Pooling.WEIGHTED_MEAN: "weightedmean",
    Pooling.MAX: "max",
    Pooling.LAST: "lasttoken",
}


def packed_states() -> tuple[np.ndarray, np.ndarray]:
    hidden = np.random.default_rng(1).normal(size=(sum(LENGTHS), SIZE)).astype(np.float32)
    return hidden, np.cumsum((0, *LENGTHS), dtype=np.int32)


@pytest.mark.parametrize(
    "poolings", [*((pooling,) for pooling in Pooling), (Pooling.CLS, Pooling.MEAN, Pooling.MAX)]
)
def test_pooling_of_packed_states_equals_sentence_transformers_on_padded_ones(
    poolings: tuple[Pooling, ...],
) -> None:
    hidden, cu_seqlens = packed_states()
    padded = torch.zeros(len(LENGTHS), max(LENGTHS), SIZE)
    mask = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        padded[row, :length] = torch.from_numpy(hidden[cu_seqlens[row] : cu_seqlens[row + 1]])
        mask[row, :length] = 1
    reference = ReferencePooling(SIZE, pooling_mode=tuple(REFERENCE_MODES[pooling] for pooling in poolings))
    want = reference({"token_embeddings": padded, "attention_mask": mask})["sentence_embedding"].numpy()
    np.testing.assert_allclose(dense.pool_all(hidden, cu_seqlens, poolings), want, atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        (Activation.IDENTITY, torch.nn.Identity()),
        (Activation.TANH, torch.nn.Tanh()),
        (Activation.RELU, torch.nn.ReLU()),
        (Activation.SIGMOID, torch.nn.Sigmoid()),
        (Activation.SILU, torch.nn.SiLU()),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "residual"), [(4, False), (4, True), (SIZE, True)])
def test_a_dense_layer_equals_that_of_sentence_transformers_on_host_and_device(
    activation: Activation, function: torch.nn.Module, bias: bool, out: int, residual: bool
) -> None:
    reference = Dense(SIZE, out, bias=bias, activation_function=function, use_residual=residual)
    vectors, _ = packed_states()
    tensors = {name: value.detach().numpy() for name, value in reference.named_parameters()}
    layer = HeadLayerWeights(
        HeadLayer.from_dense(DenseLayer("", SIZE, out, bias, activation, residual)),
        tensors["linear.weight"],
        tensors.get("linear.bias"),
        None,
        None,
        tensors.get("residual.weight"),
    )
    want = reference({"sentence_embedding": torch.from_numpy(vectors)})["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(layer(vectors), want, atol=1e-6)
    on_device = TokenLayers(to_host_layers([layer]), torch.device("cpu"))
    np.testing.assert_allclose(on_device(torch.from_numpy(vectors)).numpy(), want, atol=1e-6)


def test_normalised_rows_have_norm_one_and_a_zero_row_stays_zero() -> None:
    vectors = np.array([[3, 4], [0, 0], [1e-20, 0]], dtype=np.float32)
    normalized = dense.normalize(vectors)
    np.testing.assert_allclose(normalized[0], [0.6, 0.8])
    assert np.isfinite(normalized).all()
    assert not normalized[1].any()


def test_a_cut_keeps_the_first_dimensions() -> None:
    np.testing.assert_array_equal(
        dense.truncate_dimensions(np.arange(6, dtype=np.float32).reshape(2, 3), 2), [[0, 1], [3, 4]]
    )
