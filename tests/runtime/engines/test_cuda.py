"""Tests that need a CUDA device: every form and every encoder of the table in 16 bit by the fused kernels, CUDA
graphs, heads on the device, and what happens when its memory runs out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from embedserve_runtime.engines.torch.engine import ForwardOptions, TorchEngine
from embedserve_runtime.engines.torch.fused.support import EightBit, find_flash_obstacle, find_fused_obstacle
from embedserve_runtime.engines.torch.graphs import DeviceOutput, OutputLevel
from embedserve_runtime.engines.torch.heads import HostLayer, PooledHead, VocabularyHead
from embedserve_runtime.engines.torch.host_transfer import SparseTransfer
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.memory import FIRST_WAIT_S, MemoryBudget
from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.forward.engine import MemoryStatus
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads import dense, sparse
from embedserve_runtime.heads.dense import DenseHead
from embedserve_runtime.heads.layers import HeadLayerWeights
from embedserve_runtime.heads.token_heads import LoadedMultiVectorHead
from embedserve_runtime.model import families
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import NormPlacement
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from embedserve_runtime.model.heads.description import HeadLayer, MultiVectorHead, SparseHead, SparsePooling
from embedserve_runtime.model.pipeline import DenseLayer, Pooling
from embedserve_runtime.runners.base import EncoderRunner, Heads
from embedserve_runtime.runners.device import DeviceRunner, to_host_layers
from tests.runtime.engines.case import Case
from tests.runtime.engines.cases import CASES
from tests.runtime.engines.test_device_memory import SetClock
from tests.runtime.engines.test_forms import (
    ATTENTION,
    LAYER,
    LAYERS,
    MAX_TOKENS,
    MLP,
    OUTER,
    VOCABULARY,
    encoder_of,
    random_batch,
)
from tests.runtime.engines.test_torch_engine import forward, saved
from tests.support.tolerances import EIGHT_BIT_MIN_COSINE, SIXTEEN_BIT_MIN_COSINE

if not torch.cuda.is_available():
    pytest.skip("required a CUDA device", allow_module_level=True)

CUDA = torch.device("cuda", 0)
SIXTEEN_BIT = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("form", LAYERS)
@pytest.mark.parametrize("kernel", [None, *KernelKind], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *SIXTEEN_BIT], ids=str)
def test_every_attention_that_can_run_a_form_gives_the_hidden_states_of_the_cpu(
    tmp_path: Path, form: str, kernel: KernelKind | None, dtype: torch.dtype
) -> None:
    encoder = encoder_of(LAYERS[form])
    weights = saved(tmp_path, encoder)
    try:
        engine = TorchEngine(encoder, weights, CUDA, dtype, ForwardOptions(kernel))
    except UnsupportedArchitecture as error:
        assert "cannot run" in str(error)  # noqa: PT017
        return
    if kernel is None:
        assert (engine.kernel is KernelKind.FUSED) == (find_fused_obstacle(encoder, CUDA, dtype) is None)
    assert (
        compute_cosines(engine.forward(random_batch()), forward(encoder, weights)).min()
        >= SIXTEEN_BIT_MIN_COSINE
    )


@pytest.mark.parametrize("form", LAYERS)
@pytest.mark.parametrize("lengths", [(16,), (9, 1, 16, 2)], ids=["one text", "several"])
def test_for_few_tokens_every_form_gives_the_hidden_states_of_the_cpu(
    tmp_path: Path, form: str, lengths: tuple[int, ...]
) -> None:
    encoder = encoder_of(LAYERS[form])
    weights = saved(tmp_path, encoder)
    source = np.random.default_rng(2)
    batch = PackedBatch.pack([source.integers(0, VOCABULARY, count).astype(np.int32) for count in lengths])
    engine = TorchEngine(encoder, weights, CUDA, torch.bfloat16)
    exact = TorchEngine(encoder, weights, torch.device("cpu"), torch.float32)
    assert compute_cosines(engine.forward(batch), exact.forward(batch)).min() >= SIXTEEN_BIT_MIN_COSINE


@pytest.mark.parametrize("form", OUTER)
def test_fused_embeddings_and_final_norm_give_the_hidden_states_of_the_cpu(tmp_path: Path, form: str) -> None:
    embeddings, final_norm = OUTER[form]
    encoder = encoder_of((replace(LAYER, placement=NormPlacement.PRE),), embeddings, final_norm)
    weights = saved(tmp_path, encoder)
    engine = TorchEngine(encoder, weights, CUDA, torch.bfloat16, ForwardOptions(KernelKind.FUSED))
    assert (
        compute_cosines(engine.forward(random_batch()), forward(encoder, weights)).min()
        >= SIXTEEN_BIT_MIN_COSINE
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_encoder_of_the_table_stays_close_to_transformers_in_16_bit(tmp_path: Path, case: Case) -> None:
    reference = case.build(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    weights = Weights(encoder, Checkpoint.open(tmp_path))
    batch = case.batch()
    want = dense.pool(reference(batch), batch.cu_seqlens, Pooling.MEAN)
    engine = TorchEngine(encoder, weights, CUDA, torch.bfloat16)
    vectors = dense.pool(engine.forward(batch), batch.cu_seqlens, Pooling.MEAN)
    assert compute_cosines(vectors, want).min() >= SIXTEEN_BIT_MIN_COSINE


@pytest.mark.parametrize("kind", EightBit)
@pytest.mark.parametrize("gated", [False, True], ids=["plain MLP", "gated MLP"])
@pytest.mark.parametrize("placement", [NormPlacement.PRE, NormPlacement.POST])
@pytest.mark.parametrize("copies", [1, 300], ids=["few tokens", "many tokens"])
def test_products_in_8_bit_stay_close_to_the_cpu(
    tmp_path: Path, kind: EightBit, gated: bool, placement: NormPlacement, copies: int
) -> None:
    attention = replace(ATTENTION, heads=4, kv_heads=4, head_size=16, scale=0.25)
    mlp = replace(MLP, intermediate=96, gated=gated)
    layer = replace(LAYER, attention=attention, mlp=mlp, placement=placement)
    encoder = replace(encoder_of((layer, layer)), hidden_size=64)
    weights = saved(tmp_path, encoder)
    engine = TorchEngine(encoder, weights, CUDA, kind)
    assert engine.description.precision == kind
    batch = random_batch()
    bounds = [batch.token_ids[start:end] for start, end in pairwise(batch.cu_seqlens)]
    got = engine.forward(PackedBatch.pack(bounds * copies))
    want = np.tile(forward(encoder, weights), (copies, 1))
    assert compute_cosines(got, want).min() >= EIGHT_BIT_MIN_COSINE


def test_8_bit_is_refused_with_the_reason_where_it_cannot_be(tmp_path: Path) -> None:
    encoder = encoder_of(LAYERS["gated"])
    with pytest.raises(UnsupportedArchitecture, match=r"fp8 cannot run this .* encoder: 8 bit takes widths"):
        TorchEngine(encoder, saved(tmp_path, encoder), CUDA, EightBit.FP8)


def prepared(folder: Path, head: PooledHead | None, dtype: torch.dtype = torch.bfloat16) -> TorchEngine:
    encoder = encoder_of(LAYERS["grouped heads, window, rotary"])
    engine = TorchEngine(encoder, saved(folder, encoder), CUDA, dtype)
    engine.prepare(head)
    return engine


def rows_of(engine: TorchEngine, batch: PackedBatch) -> FloatArray:
    parts = engine.run(batch, lambda output, _: output.start_copy(), forward_output=OutputLevel.ROWS)
    return np.concatenate([part.wait() for part in parts])


def test_a_graph_gives_what_the_same_kernels_give_without_one_for_every_batch_that_fits(
    tmp_path: Path,
) -> None:
    encoder = encoder_of(LAYERS["grouped heads, window, rotary"])
    weights = saved(tmp_path, encoder)
    plain = TorchEngine(encoder, weights, CUDA, torch.bfloat16)
    graphs = TorchEngine(encoder, weights, CUDA, torch.bfloat16)
    graphs.prepare(None)
    source = np.random.default_rng(0)
    for count in (1, 3, 40, 5, 200, 1):
        lengths = source.integers(1, MAX_TOKENS + 1, count)
        batch = PackedBatch.pack([source.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths])
        np.testing.assert_allclose(graphs.forward(batch), plain.forward(batch), atol=0.05)


def test_small_batches_give_the_same_rows_alone_and_while_others_are_under_way(tmp_path: Path) -> None:
    engine = prepared(tmp_path, PooledHead([Pooling.MEAN], [], CUDA))
    source = np.random.default_rng(0)
    batches = [
        PackedBatch.pack([source.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths])
        for lengths in ((3,), (5, 2), (1,), (9, 9, 1))
    ]
    alone = [rows_of(engine, batch) for batch in batches]
    # The second of each pair finds the graph with the copies taken, and the last one free again.
    under_way = [
        engine.run(batch, lambda output, _: output.start_copy(), forward_output=OutputLevel.ROWS)
        for batch in (*batches, *batches)
    ]
    for want, parts in zip((*alone, *alone), under_way, strict=True):
        np.testing.assert_array_equal(np.concatenate([part.wait() for part in parts]), want)
    np.testing.assert_array_equal(rows_of(engine, batches[0]), alone[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pooling", Pooling)
def test_pooling_and_dense_layers_on_the_device_are_those_of_the_host(
    tmp_path: Path, pooling: Pooling, dtype: torch.dtype
) -> None:
    source = np.random.default_rng(0)
    weight, bias, residual = (
        source.normal(size=shape).astype(np.float32) for shape in ((7, 40), (7,), (7, 40))
    )
    dense_layer = HeadLayer.from_dense(DenseLayer("", 40, 7, True, Activation.TANH, residual=True))
    layers = [HeadLayerWeights(dense_layer, weight, bias, None, None, residual)]
    head = PooledHead([pooling, Pooling.CLS], to_host_layers(layers), CUDA)
    engine = prepared(tmp_path, head, dtype)
    batch = random_batch()
    hidden = engine.forward(batch)
    want = DenseHead([pooling, Pooling.CLS], layers)(hidden, batch)
    np.testing.assert_allclose(rows_of(engine, batch), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", SparsePooling)
@pytest.mark.parametrize("log_twice", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sparse_vectors_on_the_device_are_those_of_the_host(
    tmp_path: Path, pooling: SparsePooling, log_twice: bool, dtype: torch.dtype
) -> None:
    source = np.random.default_rng(0)
    layers = (HeadLayer(20, 12, (), (), Activation.GELU), HeadLayer(12, 301, (), ()))
    loaded, copied = [], []
    for layer in layers:
        weight, bias = (
            torch.from_numpy(source.normal(size=shape)).to(dtype).float().numpy()
            for shape in ((layer.out_features, layer.in_features), layer.out_features)
        )
        loaded.append(HeadLayerWeights(layer, weight, bias, None, None))
        copied.append(HostLayer(weight, bias, layer.activation))
    head = SparseHead(layers, pooling, log_twice)
    on_device = VocabularyHead(head, copied, CUDA, dtype)
    engine = prepared(tmp_path, None, dtype)
    batch = random_batch()
    want = sparse.pool_logits(engine.forward(batch), batch.cu_seqlens, head, loaded)

    def start_copy(output: DeviceOutput, _: PackedBatch) -> SparseTransfer:
        return SparseTransfer.start(on_device(output.states, output.batch))

    (transfer,) = engine.run(batch, start_copy, forward_output=OutputLevel.HIDDEN)
    rows = np.zeros_like(want)
    for row, (indices, values) in zip(rows, transfer.wait_rows(), strict=True):
        assert (np.diff(indices) > 0).all()
        row[indices] = values
    tolerance = 1e-4 if dtype is torch.float32 else 0.05
    np.testing.assert_allclose(rows, want, atol=tolerance * max(1.0, float(want.max())))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="required two CUDA devices")
def test_engines_on_two_devices_give_the_same_hidden_states_with_and_without_graphs(tmp_path: Path) -> None:
    encoder = encoder_of(LAYERS["gated"])
    weights = saved(tmp_path, encoder)
    engines = [
        TorchEngine(encoder, weights, torch.device("cuda", number), torch.bfloat16) for number in (0, 1)
    ]
    want = engines[0].forward(random_batch())
    np.testing.assert_array_equal(engines[1].forward(random_batch()), want)
    for engine in engines:
        engine.prepare(None)
        np.testing.assert_allclose(engine.forward(random_batch()), want, atol=0.05)


def test_a_batch_that_does_not_fit_into_memory_is_run_in_halves_later_ones_stay_smaller_then_grow_back(
    tmp_path: Path,
) -> None:
    encoder = encoder_of(LAYERS["gated"])
    engine = TorchEngine(encoder, saved(tmp_path, encoder), CUDA, torch.bfloat16)
    clock = SetClock()
    engine.budget = MemoryBudget(clock)
    source = np.random.default_rng(0)
    batch = PackedBatch.pack(
        [source.integers(0, VOCABULARY, MAX_TOKENS).astype(np.int32) for _ in range(60_000)]
    )
    torch.cuda.reset_peak_memory_stats()
    want = engine.forward(batch)
    needed = torch.cuda.max_memory_allocated() / torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.8 * needed)
    try:
        np.testing.assert_array_equal(engine.forward(batch), want)
        assert engine.memory.failures == 1
        assert engine.memory.max_batch_tokens == batch.tokens // 2
        np.testing.assert_array_equal(engine.forward(batch), want)
        assert engine.memory.failures == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    clock.now += FIRST_WAIT_S
    np.testing.assert_array_equal(engine.forward(batch), want)
    assert engine.memory == MemoryStatus(failures=1, max_batch_tokens=None)


def test_a_runner_with_its_heads_on_the_device_gives_what_one_with_heads_on_the_host_gives(
    tmp_path: Path,
) -> None:
    encoder = encoder_of(LAYERS["causal"])
    weights = saved(tmp_path, encoder)
    source = np.random.default_rng(0)
    layer = HeadLayer(20, 9, (), ())
    loaded = HeadLayerWeights(layer, source.normal(size=(9, 20)).astype(np.float32), None, None, None)
    heads = Heads(
        dense=DenseHead((Pooling.MEAN, Pooling.LAST), ()),
        multi_vectors=LoadedMultiVectorHead(MultiVectorHead((layer,), normalize=True, skipped=1), (loaded,)),
    )
    # Neither runner reads the card.
    card = cast("ModelCard", None)
    on_host = EncoderRunner(card, TorchEngine(encoder, weights, CUDA, torch.bfloat16), heads)
    on_device = DeviceRunner(card, TorchEngine(encoder, weights, CUDA, torch.bfloat16), heads)
    outputs = OutputKind.DENSE | OutputKind.MULTI_VECTOR | OutputKind.HIDDEN
    first, second = (on_device.submit(random_batch(), outputs) for _ in range(2))
    want = on_host.run(random_batch(), outputs)
    assert want.dense is not None
    assert want.multi_vectors is not None
    assert want.hidden is not None
    for got in (first.results(), second.results()):
        assert got.dense is not None
        assert np.abs(got.dense - want.dense).max() <= 0.05
        pairs = zip(
            (*(got.multi_vectors or ()), *(got.hidden or ())),
            (*want.multi_vectors, *want.hidden),
            strict=True,
        )
        assert (
            max(float(np.abs(left_rows - right_rows).max(initial=0.0)) for left_rows, right_rows in pairs)
            <= 0.05
        )


# Of flash-attn-4's own dependencies, at their import and at the compilation of its kernel.
@pytest.mark.filterwarnings("ignore:cutlass:DeprecationWarning", "ignore:Argument aux_data:UserWarning")
@pytest.mark.parametrize(
    "form", ["plain", "causal", "grouped", "heads of 128", "a window in every second layer"]
)
def test_long_texts_through_flash_attn_4_have_the_hidden_states_of_our_own_attention(
    tmp_path: Path, form: str
) -> None:
    plain = replace(ATTENTION, heads=4, kv_heads=4, head_size=64, scale=0.125)
    forms = {
        "plain": [plain],
        "causal": [replace(plain, causal=True)],
        "grouped": [replace(plain, kv_heads=2)],
        "heads of 128": [replace(plain, head_size=128)],
        "a window in every second layer": [plain, replace(plain, window=5)],
    }
    encoder = encoder_of(tuple(replace(LAYER, attention=attention) for attention in forms[form]))
    reason = find_flash_obstacle(encoder, CUDA, torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)
    weights = saved(tmp_path, encoder)
    flash, ours = (
        TorchEngine(encoder, weights, CUDA, torch.bfloat16, ForwardOptions(kernel))
        for kernel in (KernelKind.FLASH, KernelKind.FUSED)
    )
    assert flash.description.attention == "flash"
    batch = random_batch()
    assert compute_cosines(flash.forward(batch), ours.forward(batch)).min() >= SIXTEEN_BIT_MIN_COSINE
    assert compute_cosines(flash.forward(batch), forward(encoder, weights)).min() >= SIXTEEN_BIT_MIN_COSINE
