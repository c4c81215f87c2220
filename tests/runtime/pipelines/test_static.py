"""Static embedding models: vectors equal those of model2vec 0.10 bit for bit, and those of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model2vec import StaticModel
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from embedserve_runtime.api.routes import EMBEDDING_ROUTES
from embedserve_runtime.config import ModelSettings, load_config
from embedserve_runtime.errors import (
    ConfigError,
    EmbedserveError,
    EngineFailure,
    InputTooLong,
    ModelFileMissing,
    ModelInvalid,
    UnsupportedArchitecture,
)
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.support.server_process import start_server
from tests.support.static_models import DIMENSIONS, MODEL2VEC, TEXTS, WORDS, Saved, sentence_transformer
from tests.support.tolerances import FP32_MAX_ABS_DIFF


def runner_of(folder: Path, **settings: object) -> Runner:
    return load_runner(load_config(flags={"model": {"source": str(folder)}, **settings}))


def card_of(folder: Path, **settings: object) -> ModelCard:
    return read_card(folder, "local", ModelSettings.model_validate({"source": str(folder), **settings}))


def results_of(runner: Runner, texts: Sequence[str]) -> ModelOutput:
    ids = TextTokenizer.from_card(runner.card).encode(texts, "", TruncationRules(truncate=True))
    return runner.run(PackedBatch.pack(ids), OutputKind.DENSE | OutputKind.HIDDEN)


def vectors_of(runner: Runner, texts: Sequence[str]) -> FloatArray:
    dense = results_of(runner, texts).dense
    assert dense is not None
    return normalize(dense) if runner.card.pipeline.normalize else dense


def test_the_oracle_is_the_version_that_the_rules_are_taken_from() -> None:
    assert version("model2vec").startswith("0.10.")


@pytest.mark.parametrize("case", MODEL2VEC.values(), ids=MODEL2VEC.keys())
def test_vectors_are_those_of_model2vec_bit_for_bit(case: Saved, tmp_path: Path) -> None:
    model = case.save(tmp_path)
    want = np.concatenate([model.encode([text]) for text in TEXTS])
    np.testing.assert_array_equal(vectors_of(runner_of(tmp_path), TEXTS), want.astype(np.float32))


@cache
def loaded(case: str) -> tuple[StaticModel, Runner, TextTokenizer]:
    with TemporaryDirectory() as folder:
        model = MODEL2VEC[case].save(Path(folder))
        runner = runner_of(Path(folder))
        return model, runner, TextTokenizer.from_card(runner.card)


ANY_TEXTS = st.lists(
    st.one_of(
        st.lists(
            st.sampled_from([*WORDS, "The ", " ", ", ", "zebra", "Café ", "猫", "[UNK]"]), min_size=1
        ).map("".join),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    ),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("case", MODEL2VEC)
@settings(max_examples=25, deadline=None)
@given(texts=ANY_TEXTS)
def test_vectors_of_any_texts_are_those_of_model2vec_bit_for_bit(case: str, texts: list[str]) -> None:
    model, runner, tokenizer = loaded(case)
    dense = runner.run(
        PackedBatch.pack(tokenizer.encode(texts, "", TruncationRules(truncate=True))), OutputKind.DENSE
    ).dense
    assert dense is not None
    got = normalize(dense) if runner.card.pipeline.normalize else dense
    np.testing.assert_array_equal(got, model.encode(texts).astype(np.float32))


def test_half_precision_tables_are_summed_in_float32(tmp_path: Path) -> None:
    model = Saved(dtype="float16", normalize=False).save(tmp_path)
    got = vectors_of(runner_of(tmp_path), TEXTS)
    # model2vec rounds the mean to the dtype of the table.
    np.testing.assert_array_equal(got.astype(np.float16), model.encode(list(TEXTS)))


@pytest.mark.parametrize("layout", ["root", "own folder"])
@pytest.mark.parametrize("truncation", [None, 4])
def test_vectors_are_those_of_sentence_transformers(
    layout: str, truncation: int | None, tmp_path: Path
) -> None:
    model = sentence_transformer(tmp_path, normalize=truncation is None, truncation=truncation)
    want = model.encode(list(TEXTS))
    _move_module(tmp_path, layout)
    assert np.abs(vectors_of(runner_of(tmp_path), TEXTS) - want).max() <= FP32_MAX_ABS_DIFF


def test_dense_modules_behind_a_table_are_applied(tmp_path: Path) -> None:
    modules = [*sentence_transformer(tmp_path / "table", normalize=False), Dense(DIMENSIONS, 3), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(
        str(tmp_path / "whole"), create_model_card=False
    )
    want = SentenceTransformer(str(tmp_path / "whole"), device="cpu").encode(list(TEXTS))
    assert np.abs(vectors_of(runner_of(tmp_path / "whole"), TEXTS) - want).max() <= FP32_MAX_ABS_DIFF


def _move_module(folder: Path, layout: str) -> None:
    """Move the module where another version of sentence-transformers would have saved it."""
    modules = json.loads((folder / "modules.json").read_text())
    target = "" if layout == "root" else "0_StaticEmbedding"
    current, modules[0]["path"] = modules[0]["path"], target
    (folder / target).mkdir(exist_ok=True)
    for name in ("model.safetensors", "tokenizer.json"):
        if (folder / current / name) != (folder / target / name):
            shutil.move(folder / current / name, folder / target / name)
    (folder / "modules.json").write_text(json.dumps(modules))


def test_a_table_of_model2vec_keeps_its_rules_when_sentence_transformers_wraps_it(tmp_path: Path) -> None:
    model = Saved().save(tmp_path)
    (tmp_path / "config.json").unlink()  # now only modules.json says that vectors are normalized
    want = model.encode(list(TEXTS))
    np.testing.assert_array_equal(vectors_of(runner_of(tmp_path), TEXTS), want)


def test_a_text_gets_the_same_bits_alone_and_in_a_batch(tmp_path: Path) -> None:
    Saved(weights=True).save(tmp_path)
    runner = runner_of(tmp_path)
    together = vectors_of(runner, TEXTS)
    np.testing.assert_array_equal(np.concatenate([vectors_of(runner, [text]) for text in TEXTS]), together)


def test_a_negative_id_is_refused_by_its_index(tmp_path: Path) -> None:
    Saved().save(tmp_path)
    batch = PackedBatch.pack([np.array([1, 2], dtype=np.int32), np.array([3, -1], dtype=np.int32)])
    with pytest.raises(EngineFailure, match="batch of 4 tokens has a negative token id at 3"):
        runner_of(tmp_path).run(batch, OutputKind.DENSE)


def test_hidden_states_are_the_rows_and_zeros_for_what_takes_no_part(tmp_path: Path) -> None:
    Saved(normalize=False).save(tmp_path)
    results = results_of(runner_of(tmp_path), TEXTS)
    assert results.hidden is not None
    assert results.dense is not None
    for states, vector in zip(results.hidden, results.dense, strict=True):
        counted = states[np.abs(states).sum(axis=1) > 0]
        want = counted.mean(axis=0) if len(counted) else np.zeros(DIMENSIONS)
        assert np.abs(vector - want).max() <= FP32_MAX_ABS_DIFF


def test_what_is_beyond_the_characters_that_are_read_is_refused_without_truncation(tmp_path: Path) -> None:
    Saved(max_length=5).save(tmp_path)
    tokenizer = TextTokenizer.from_card(card_of(tmp_path))
    with pytest.raises(InputTooLong, match="reads at most"):
        tokenizer.encode(["extraordinary " * 3], "", TruncationRules(truncate=False))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param({"max_length": 9}, False, id="the length that the files allow is part of the identity"),
        pytest.param({"normalize": False}, False, id="normalizing is"),
        pytest.param({"weights": True}, False, id="weights are"),
        pytest.param({"shared": 5}, False, id="rows and mapping are"),
    ],
)
def test_the_identity_of_a_static_model(change: dict[str, object], same: bool, tmp_path: Path) -> None:
    Saved().save(tmp_path / "first")
    Saved(**change).save(tmp_path / "second")  # type: ignore[arg-type]  # a table of fields
    spaces = {card_of(tmp_path / name).vector_space for name in ("first", "second")}
    assert (len(spaces) == 1) is same


def _drop_last_row(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({"embeddings": tensors["embeddings"][:-1]}, folder / "model.safetensors")


def _map_beyond(folder: Path) -> None:
    table = load_file(folder / "model.safetensors")["embeddings"]
    save_file({"embeddings": table, "mapping": np.arange(1, len(table) + 1)}, folder / "model.safetensors")


def _pool(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 9, "name": "9", "path": "9", "type": "sentence_transformers.models.Pooling"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "9").mkdir()
    (folder / "9" / "config.json").write_text('{"pooling_mode": "mean"}')


@pytest.mark.parametrize(
    ("breaking", "settings", "error", "message"),
    [
        pytest.param(
            _drop_last_row, {}, ModelInvalid, r"rows for 15 tokens.*ids up to 15", id="a row is missing"
        ),
        pytest.param(_map_beyond, {}, ModelInvalid, "mapping must give each token one", id="a wrong mapping"),
        pytest.param(
            _pool,
            {},
            UnsupportedArchitecture,
            "StaticEmbedding, (Normalize, )?Pooling are not supported together",
            id="a pooling after it",
        ),
        pytest.param(
            lambda folder: (folder / "tokenizer.json").unlink(),
            {},
            ModelFileMissing,
            "tokenizer.json not found",
            id="no tokenizer",
        ),
        pytest.param(None, {"pooling": "cls"}, ConfigError, "has the mean, not cls", id="another pooling"),
        pytest.param(None, {"task": "rerank"}, ConfigError, "gives dense vectors, not rerank", id="a task"),
        pytest.param(None, {"dimensions": 8}, ConfigError, "8 is more than the model's 7", id="dimensions"),
    ],
)
def test_what_would_give_other_vectors_is_refused_by_name(
    breaking: object, settings: dict[str, object], error: type[EmbedserveError], message: str, tmp_path: Path
) -> None:
    Saved().save(tmp_path)
    if callable(breaking):
        breaking(tmp_path)
    with pytest.raises(error, match=message):
        card_of(tmp_path, **settings)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"kind": "torch"}, "has none; set it to auto or static"),
        ({"precision": "float16"}, "sums in float32"),
    ],
)
def test_an_engine_for_layers_is_refused(engine: dict[str, str], message: str, tmp_path: Path) -> None:
    Saved().save(tmp_path)
    with pytest.raises(ConfigError, match=message):
        runner_of(tmp_path, engine=engine)


def test_the_static_engine_is_refused_for_an_encoder(minilm: Path) -> None:
    with pytest.raises(ConfigError, match="this is a bert encoder"):
        runner_of(minilm, engine={"kind": "static"})


BODIES: dict[str, object] = {
    "/": {"inputs": "The cat sleeps."},
    "/embed": {"inputs": "The cat sleeps."},
    "/embed_all": {"inputs": "The cat sleeps."},
    "/similarity": {"inputs": {"source_sentence": "cat", "sentences": ["sun", "cat"]}},
    "/v1/embeddings": {"input": "The cat sleeps.", "model": "static"},
    "/v1/encode": {"inputs": ["The cat sleeps."], "outputs": ["dense", "hidden", "tokens"]},
    "/v2/embed": {"texts": ["The cat sleeps."], "model": "static", "input_type": "search_query",
                  "embedding_types": ["float"]},
    "/v1/score": {"query": "cat", "documents": ["sun"]},
    "/vertex": {"instances": [{"inputs": "The cat sleeps."}]},
}  # fmt: skip
OTHER_TASKS = {"/embed_sparse", "/predict", "/rerank", "/v1/rerank", "/v2/rerank"}


@pytest.mark.parametrize("kind", ["model2vec", "sentence-transformers"])
def test_every_embedding_route_serves_a_static_model(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if kind == "model2vec":
        want = Saved().save(folder).encode("The cat sleeps.")
    else:
        want = sentence_transformer(folder, normalize=True).encode("The cat sleeps.")
    assert set(BODIES) | OTHER_TASKS == set(EMBEDDING_ROUTES)
    with start_server(folder, tmp_path) as server, httpx.Client() as client:
        server.wait_until_ready()
        client.base_url = httpx.URL(server.address)
        for route, body in BODIES.items():
            answer = client.post(route, json=body)
            assert answer.status_code == 200, (route, answer.text)
        vector = np.array(client.post("/embed", json=BODIES["/embed"]).json()[0], dtype=np.float32)
    assert np.abs(vector - want).max() <= FP32_MAX_ABS_DIFF
