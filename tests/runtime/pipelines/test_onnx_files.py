"""ONNX files that a repository ships: chosen, fed and read, and equal to the same model run by its family."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from e2e.hub import HubServer
from embedserve_runtime.config import ModelSettings, load_config
from embedserve_runtime.errors import (
    ConfigError,
    EmbedserveError,
    EngineFailure,
    ModelFileMissing,
    ModelInvalid,
    UnsupportedArchitecture,
)
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence
from embedserve_runtime.forward.grouping import PADDING_SHARE, choose_padded_sizes
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead, Task
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.sources import fetch_model
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.heads.head_runner import sequences
from tests.support.models import minilm_folder, small_tokenizer, tiny, tiny_bert
from tests.support.onnx_files import export, table_graph, unknown_family
from tests.support.tolerances import FP32_MAX_ABS_DIFF

HIDDEN: dict[str, list[int | str | None] | None] = {"last_hidden_state": ["b", "s", 4]}


def runner_of(folder: Path, engine: dict[str, str] | None = None, **model: object) -> Runner:
    flags = {"model": {"source": str(folder), **model}, "engine": {"threads": 1, **(engine or {})}}
    return load_runner(load_config(flags=flags))


def card_of(folder: Path, **settings: object) -> ModelCard:
    return read_card(folder, "local", ModelSettings.model_validate({"source": str(folder), **settings}))


def results_of(runner: Runner, outputs: OutputKind) -> ModelOutput:
    return runner.run(PackedBatch.pack(sequences()), outputs)


def given(array: FloatArray | None) -> FloatArray:
    assert array is not None
    return array


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tiny BERT as safetensors weights and as two ONNX files."""
    folder = tmp_path_factory.mktemp("bert")
    model = tiny_bert(folder)
    export(model, folder / "onnx" / "model.onnx")
    export(model, folder / "onnx" / "whole.onnx", ("token_embeddings", "sentence_embedding"))
    small_tokenizer(folder)
    return folder


def test_hidden_states_and_vectors_are_those_of_the_family(bert: Path) -> None:
    outputs = OutputKind.DENSE | OutputKind.HIDDEN
    want = results_of(runner_of(bert), outputs)
    got = results_of(runner_of(bert, onnx_file="onnx/model.onnx"), outputs)
    assert np.abs(given(got.dense) - given(want.dense)).max() <= FP32_MAX_ABS_DIFF
    for ours, theirs in zip(got.hidden or (), want.hidden or (), strict=True):
        assert np.abs(ours - theirs).max() <= FP32_MAX_ABS_DIFF


@pytest.mark.parametrize("pooling", ["cls", "max", "weighted_mean", "last"])
def test_hidden_states_are_pooled_as_asked(bert: Path, pooling: str) -> None:
    want = results_of(runner_of(bert, pooling=pooling), OutputKind.DENSE).dense
    for file in ("onnx/model.onnx", "onnx/whole.onnx"):
        got = results_of(runner_of(bert, onnx_file=file, pooling=pooling), OutputKind.DENSE).dense
        assert np.abs(given(got) - given(want)).max() <= FP32_MAX_ABS_DIFF


def test_a_sentence_embedding_is_used_as_it_comes(bert: Path) -> None:
    want = given(results_of(runner_of(bert), OutputKind.DENSE).dense)
    got = results_of(runner_of(bert, onnx_file="onnx/whole.onnx"), OutputKind.DENSE | OutputKind.HIDDEN)
    assert np.abs(given(got.dense) - normalize(want)).max() <= FP32_MAX_ABS_DIFF
    assert [len(states) for states in got.hidden or ()] == [len(sequence) for sequence in sequences()]


@pytest.mark.parametrize("labels", [1, 3])
def test_logits_and_token_types_are_those_of_the_family(tmp_path: Path, labels: int) -> None:
    config = BertConfig(
        vocab_size=97, hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=50,
        max_position_embeddings=70, num_labels=labels, id2label={i: f"label {i}" for i in range(labels)},
    )  # fmt: skip
    model = tiny(tmp_path, BertForSequenceClassification, config)
    assert isinstance(model, BertForSequenceClassification)
    export(model, tmp_path / "model.onnx", ("logits",))
    small_tokenizer(tmp_path)
    family, shipped = runner_of(tmp_path), runner_of(tmp_path, onnx_file="model.onnx")
    pairs = PackedBatch.pack(
        [TokenSequence(ids, (np.arange(len(ids)) > len(ids) // 2).astype(np.int32)) for ids in sequences()]
    )
    want, got = (given(runner.run(pairs, OutputKind.LOGITS).logits) for runner in (family, shipped))
    assert np.abs(got - want).max() <= FP32_MAX_ABS_DIFF
    assert shipped.card.task is (Task.RERANK if labels == 1 else Task.CLASSIFY)
    assert shipped.card.pair_types
    heads = [runner.card.head for runner in (family, shipped)]
    assert isinstance(heads[0], ClassifierHead)
    assert isinstance(heads[1], ClassifierHead)
    assert (heads[0].labels, heads[0].scores) == (heads[1].labels, heads[1].scores)


def test_states_and_a_weight_for_each_token_of_one_graph_make_dense_and_sparse_vectors(
    tmp_path: Path,
) -> None:
    torch.manual_seed(2)
    config = BertConfig(
        hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, num_labels=1
    )
    model = tiny(tmp_path, BertForTokenClassification, config)
    assert isinstance(model, BertForTokenClassification)
    export(model, tmp_path / "model.onnx", ("last_hidden_state", "logits"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder() / name, tmp_path)
    runner = runner_of(tmp_path, onnx_file="model.onnx")
    tokenizer = TextTokenizer.from_card(runner.card)
    texts = ["words and more words, and \u2603 too", "one", "a longer text, so that there is padding"]
    ids = tokenizer.encode(texts, "", TruncationRules(truncate=True))
    outputs = OutputKind.DENSE | OutputKind.SPARSE
    results = runner.run(PackedBatch.pack(ids), outputs)
    assert runner.card.outputs == outputs | OutputKind.HIDDEN
    assert results.sparse is not None
    for row, vector, token_ids in zip(given(results.dense), results.sparse, ids, strict=True):
        with torch.no_grad():
            hidden = model.bert(torch.tensor(token_ids[None], dtype=torch.int64)).last_hidden_state[0]
            logits = model.classifier(hidden)[:, 0].numpy()
        np.testing.assert_allclose(row, hidden[0].numpy(), atol=FP32_MAX_ABS_DIFF)
        weights: dict[int, float] = {}
        for token, logit in zip(token_ids.tolist(), logits.tolist(), strict=True):
            if logit > 0 and token not in (0, 100, 101, 102):  # [PAD], [UNK], [CLS], [SEP]
                weights[token] = max(logit, weights.get(token, 0.0))
        got = dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True))
        assert got == pytest.approx(weights, abs=FP32_MAX_ABS_DIFF)
    assert any(len(vector.indices) for vector in results.sparse)
    assert card_of(tmp_path, onnx_file="model.onnx").sparse_width == runner.card.encoder.embeddings.vocabulary


def test_a_family_runs_from_its_weights_unless_a_file_is_chosen(bert: Path) -> None:
    assert card_of(bert).backbone is None


@pytest.mark.parametrize(
    ("outputs", "want"),
    [
        pytest.param(HIDDEN, ("last_hidden_state", None), id="by its usual name"),
        pytest.param(
            {"token_embeddings": ["b", "s", 4]}, ("token_embeddings", None), id="by another usual name"
        ),
        pytest.param({"x": ["b", "s", 4]}, ("x", None), id="the only one of three sides"),
        pytest.param({"x": ["b", 4]}, (None, "x"), id="the only one of two sides"),
        pytest.param(
            {"sentence_embedding": ["b", "d"]}, (None, "sentence_embedding"), id="size from config.json"
        ),
        pytest.param({"last_hidden_state": None}, ("last_hidden_state", None), id="without a declared shape"),
        pytest.param(
            {"pooler_output": ["b", 4], **HIDDEN}, ("last_hidden_state", None), id="hidden before pooler"
        ),
        pytest.param(
            {"sentence_embedding": ["b", 4], "token_embeddings": ["b", "s", 4]},
            ("token_embeddings", "sentence_embedding"),
            id="both",
        ),
    ],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_outputs_are_found_by_name_and_by_shape(
    outputs: dict[str, list[int | str | None] | None],
    want: tuple[str | None, str | None],
    side: str,
    tmp_path: Path,
) -> None:
    folder = unknown_family(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"padding_side": side}))
    table = table_graph(folder / "model.onnx", outputs)
    runner = runner_of(folder)
    graph = runner.card.backbone
    assert (graph.hidden, graph.pooled) == want  # type: ignore[union-attr]  # an ONNX file is all there is
    batch = PackedBatch.pack([ids % 50 for ids in sequences()])
    results = runner.run(batch, runner.card.outputs)
    parts = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
    rows = [table[part].sum(axis=0) if want[1] else table[part].mean(axis=0) for part in parts]
    assert np.abs(given(results.dense) - np.stack(rows)).max() <= FP32_MAX_ABS_DIFF
    assert (results.hidden is not None) is (want[0] is not None)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"element": TensorProto.INT32}, id="int32 inputs"),
        pytest.param({"external": "model.onnx_data"}, id="external data"),
        pytest.param(
            {"further": [("past_key_values.0.key", TensorProto.FLOAT, ["b", 2, "past", 3])]},
            id="an empty cache",
        ),
    ],
)
def test_graphs_are_fed_by_what_they_declare(options: dict[str, object], tmp_path: Path) -> None:
    table = table_graph(unknown_family(tmp_path) / "onnx" / "model.onnx", HIDDEN, **options)  # type: ignore[arg-type]
    ids = np.array([7, 3, 9], dtype=np.int32)
    hidden = runner_of(tmp_path).run(PackedBatch.pack([ids]), OutputKind.HIDDEN).hidden
    assert hidden is not None
    np.testing.assert_array_equal(hidden[0], table[ids])


def test_half_precision_outputs_become_float32(tmp_path: Path) -> None:
    table = table_graph(unknown_family(tmp_path) / "model.onnx", HIDDEN, half=True)
    dense = given(
        runner_of(tmp_path).run(PackedBatch.pack([np.array([5], np.int32)]), OutputKind.DENSE).dense
    )
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(dense[0], table[5].astype(np.float16).astype(np.float32))


Prepare = Callable[[Path], object]


@pytest.mark.parametrize(
    ("prepare", "settings", "error", "message"),
    [
        pytest.param(
            lambda f: None, {}, UnsupportedArchitecture, "'novel'.*no ONNX file to run instead", id="no file"
        ),
        pytest.param(
            lambda f: [table_graph(f / "onnx" / name, HIDDEN) for name in ("a.onnx", "b.onnx")],
            {},
            ModelInvalid,
            r"set model.onnx_file to one of onnx/a.onnx, onnx/b.onnx",
            id="several files",
        ),
        pytest.param(
            lambda f: table_graph(f / "model.onnx", HIDDEN),
            {"onnx_file": "onnx/model_O4.onnx"},
            ConfigError,
            "onnx/model_O4.onnx is not in the model; there: model.onnx",
            id="another file",
        ),
        pytest.param(
            lambda f: table_graph(f / "model.onnx", {"x": ["b", "s", 4], "y": ["b", "s", 4]}),
            {},
            ModelInvalid,
            r"which output is meant .* x \[\?, \?, 4\], y",
            id="two outputs alike",
        ),
        pytest.param(
            lambda f: table_graph(f / "model.onnx", {"logits": ["b", "s", 4]}),
            {},
            UnsupportedArchitecture,
            r"one row of logits for each text.*logits \[\?, \?, 4\]",
            id="a masked LM",
        ),
        pytest.param(
            lambda f: table_graph(f / "model.onnx", {"sentence_embedding": ["b", 4]}),
            {"pooling": "cls"},
            UnsupportedArchitecture,
            "no output that can be used for this task: sentence_embedding",
            id="a pooling without hidden states",
        ),
        pytest.param(
            lambda f: table_graph(f / "model.onnx", HIDDEN, further=[("pixels", TensorProto.FLOAT, [3])]),
            {},
            UnsupportedArchitecture,
            r"input pixels \[3\] .* cannot be filled; known: input_ids",
            id="an unknown input",
        ),
        pytest.param(
            lambda f: (table_graph(f / "model.onnx", HIDDEN, external="w.bin"), (f / "w.bin").unlink()),
            {},
            ModelFileMissing,
            "w.bin, the weights of model.onnx, not found",
            id="external data missing",
        ),
        pytest.param(
            lambda f: (f / "model.onnx").write_bytes(b"\x3a\x90\x4e junk"),
            {},
            ModelInvalid,
            "model.onnx is not a readable ONNX file: it is cut short",
            id="a broken file",
        ),
        pytest.param(
            lambda f: table_graph(f / "model.onnx", HIDDEN),
            {"task": "sparse"},
            ConfigError,
            "sparse vectors are not made from an ONNX file",
            id="sparse",
        ),
        pytest.param(
            lambda f: table_graph(f / "model.onnx", {"logits": ["b", 4]}),
            {},
            ModelInvalid,
            "names 2 labels, the ONNX file gives 4 logits",
            id="labels",
        ),
    ],
)
def test_what_cannot_be_told_or_run_stops_the_start(
    prepare: Prepare, settings: dict[str, object], error: type[EmbedserveError], message: str, tmp_path: Path
) -> None:
    prepare(unknown_family(tmp_path))
    with pytest.raises(error, match=message):
        card_of(tmp_path, **settings)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"kind": "torch"}, "torch does not run ONNX files"),
        ({"precision": "float16"}, "its precision in itself"),
    ],
)
def test_an_engine_that_runs_no_files_is_refused(
    engine: dict[str, str], message: str, tmp_path: Path
) -> None:
    table_graph(unknown_family(tmp_path) / "model.onnx", HIDDEN)
    with pytest.raises(ConfigError, match=message):
        runner_of(tmp_path, engine)


def test_an_output_of_another_size_than_config_json_says_is_an_engine_failure(tmp_path: Path) -> None:
    table_graph(unknown_family(tmp_path, hidden_size=5) / "model.onnx", {"last_hidden_state": None})
    runner = runner_of(tmp_path)
    with pytest.raises(
        EngineFailure, match=r"last_hidden_state of model.onnx has shape \[1, 1, 4\], not \[1, 1, 5\]"
    ):
        runner.run(PackedBatch.pack([np.array([5], np.int32)]), OutputKind.DENSE)


def test_the_identity_covers_the_files_and_the_pipeline(tmp_path: Path) -> None:
    def space(name: str, external: str | None = None, **settings: object) -> str:
        table_graph(unknown_family(tmp_path / name) / "model.onnx", HIDDEN, external=external)
        return card_of(tmp_path / name, **settings).vector_space

    first = space("first")
    assert space("same", max_length=9) == first
    assert len({first, space("pooled", pooling="cls"), space("external", "data.bin")}) == 3
    changed = tmp_path / "external" / "data.bin"
    before = card_of(tmp_path / "external").vector_space
    changed.write_bytes(bytes(reversed(changed.read_bytes())))
    assert card_of(tmp_path / "external").vector_space != before


@pytest.mark.parametrize("lengths", [[9], [512, 500, 499, 100, 20, 19, 19, 1], [7] * 40, [64, 1, 1, 1, 1, 1]])
def test_blocks_hold_every_sequence_and_little_padding(lengths: list[int]) -> None:
    sizes = choose_padded_sizes(np.array(lengths, dtype=np.int32))
    assert sum(sizes) == len(lengths)
    for block in np.split(np.array(lengths), np.cumsum(sizes)[:-1]):
        assert len(block) * block[0] - block.sum() <= PADDING_SHARE * block.sum()


def test_one_variant_of_the_file_is_fetched_and_no_other_weights(bert: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repositories" / "lab" / "model" / "main"
    shutil.copytree(bert, repository)
    table_graph(repository / "onnx" / "model_int8.onnx", HIDDEN, external="model_int8.onnx_data")
    with HubServer(tmp_path / "repositories") as hub:
        settings = ModelSettings(source="lab/model", endpoint=hub.url, store=tmp_path / "store")
        plain = _weights(fetch_model(settings).folder)
        chosen = settings.model_copy(update={"onnx_file": "onnx/model_int8.onnx"})
        variant = _weights(fetch_model(chosen).folder)
    assert plain == {"model.safetensors"}
    assert variant == {"onnx/model_int8.onnx", "onnx/model_int8.onnx_data"}


def test_the_file_is_fetched_where_no_family_fits(tmp_path: Path) -> None:
    repository = unknown_family(tmp_path / "repositories" / "lab" / "model" / "main")
    for name in ("model.onnx", "model_quantized.onnx"):
        table_graph(repository / "onnx" / name, HIDDEN)
    (repository / "model.safetensors").write_bytes(b"not needed")
    with HubServer(tmp_path / "repositories") as hub:
        settings = ModelSettings(source="lab/model", endpoint=hub.url, store=tmp_path / "store")
        assert _weights(fetch_model(settings).folder) == {"onnx/model.onnx"}


def _weights(folder: Path) -> set[str]:
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if not name.endswith((".json", ".txt"))}
