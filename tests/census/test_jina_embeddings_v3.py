"""jina-embeddings-v3 in its own layout: each task's adapter, against transformers' class with upstream's merging."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from embedserve_runtime.config import ModelSettings, load_config
from embedserve_runtime.errors import ConfigError, ModelError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.runners.base import Runner
from tests.census.dense_folders import save_dense
from tests.census.jina import INSTRUCTIONS, merge_adapter
from tests.census.kinds import ENGINES
from tests.census.layouts import WEIGHTS, edit_config, edit_tensors
from tests.census.tokenizers import MAX_TOKENS
from tests.runtime.heads.head_runner import dense_of, greatest
from tests.runtime.pipelines.folders import TEXTS, finished, tokens_of
from tests.support.tolerances import FP32_MAX_ABS_DIFF

TASKS = ("retrieval", "separation", "classification", "text-matching")
Want = Callable[[str], FloatArray]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Want]:
    """The folder, and what upstream makes of the texts with an adapter and its instruction."""
    home = tmp_path_factory.mktemp("jina")
    twin, folder = save_dense("xlm-roberta-flash-adapters", "mean normalize", home, max_length=MAX_TOKENS)

    @cache
    def want(adapter: str) -> FloatArray:
        merged = merge_adapter(folder, twin, home / adapter, adapter)
        model = SentenceTransformer(str(merged), device="cpu")
        vectors: FloatArray = model.encode(TEXTS, prompt=INSTRUCTIONS[adapter] or None)
        return vectors

    return folder, want


def settings_of(folder: Path, *tasks: str) -> ModelSettings:
    return ModelSettings(source=str(folder), adapters=tasks)


def card_of(folder: Path, *tasks: str) -> ModelCard:
    return read_card(folder, "local", settings_of(folder, *tasks))


def runner_of(folder: Path, engine: str, *tasks: str) -> Runner:
    model = {"source": str(folder), "adapters": list(tasks)}
    return load_runner(load_config(flags={"model": model, "engine": {"kind": engine, "threads": 1}}))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("task", TASKS)
def test_the_vectors_of_a_task_are_those_of_its_adapter(
    published: tuple[Path, Want], engine: str, task: str
) -> None:
    folder, want = published
    runner = runner_of(folder, engine, task)
    documents = "retrieval.passage" if task == "retrieval" else task
    assert runner.card.default_prompt == documents
    found = finished(runner.card, dense_of(runner, tokens_of(runner.card, TEXTS)))
    assert greatest(found - want(documents)) <= FP32_MAX_ABS_DIFF


@pytest.mark.parametrize("engine", ENGINES)
def test_queries_of_retrieval_have_an_adapter_of_their_own(published: tuple[Path, Want], engine: str) -> None:
    folder, want = published
    runner = runner_of(folder, engine, "retrieval")
    tokens = tokens_of(runner.card, TEXTS, "retrieval.query", query=True)
    found = finished(runner.card, dense_of(runner, tokens))
    assert greatest(found - want("retrieval.query")) <= FP32_MAX_ABS_DIFF
    assert greatest(found - want("retrieval.passage")) > 0.01


def test_each_task_and_the_plain_weights_have_a_vector_space_of_their_own(
    published: tuple[Path, Want],
) -> None:
    folder, _ = published
    cards = [card_of(folder), *(card_of(folder, task) for task in TASKS)]
    assert len({card.vector_space for card in cards}) == len(cards)
    assert {card.adapter_tasks for card in cards} == {TASKS}
    assert [card.adapter_task for card in cards] == [None, *TASKS]


def test_a_card_has_the_prompts_of_its_task_alone(published: tuple[Path, Want]) -> None:
    folder, _ = published
    assert card_of(folder).prompts == {}
    assert set(card_of(folder, "retrieval").prompts) == {"retrieval.query", "retrieval.passage"}
    assert card_of(folder, "separation").prompts == {"separation": ""}


def test_a_task_that_the_model_has_not_is_refused_with_the_list(published: tuple[Path, Want]) -> None:
    folder, _ = published
    with pytest.raises(ConfigError, match=r"'clustering' is not a task .*known: retrieval, separation, "):
        card_of(folder, "clustering")


def test_the_instructions_of_config_json_count_where_no_other_file_has_them(
    published: tuple[Path, Want], tmp_path: Path
) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(published[0], folder)
    (folder / "config_sentence_transformers.json").unlink()
    card = card_of(folder, "retrieval")
    assert card.prompts == {name: INSTRUCTIONS[name] for name in ("retrieval.query", "retrieval.passage")}


def drop_factors(folder: Path) -> None:
    kept = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if ".lora_" not in name}
    save_file(kept, folder / WEIGHTS)


BROKEN: dict[str, tuple[Callable[[Path], None], type[ModelError], str]] = {
    "fewer adapters than names": (
        lambda folder: edit_config(folder, lora_adaptations=["retrieval.query", "separation"]),
        ModelInvalid,
        r"has shape \[5, .*names 2 adapters",
    ),
    "no factors": (drop_factors, ModelInvalid, "the checkpoint has no factors of any"),
    "one factor of two": (
        lambda folder: edit_tensors(folder, renamed={"roberta.encoder.layers.1.mlp.fc2.p": "lost."}),
        ModelInvalid,
        "lacks 1 tensors|lacks the tensor",
    ),
    "factors of a module that nothing reads": (
        lambda folder: edit_tensors(
            folder,
            added={f"roberta.x.parametrizations.weight.0.lora_{one}": torch.ones(5, 4, 4) for one in "AB"},
        ),
        UnsupportedArchitecture,
        r"nothing that config.json describes reads the tensors roberta\.x\.",
    ),
}


@pytest.mark.parametrize(("change", "error", "words"), BROKEN.values(), ids=BROKEN)
def test_a_checkpoint_that_does_not_fit_its_list_of_adapters_is_refused(
    published: tuple[Path, Want],
    tmp_path: Path,
    change: Callable[[Path], None],
    error: type[ModelError],
    words: str,
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(published[0], folder)
    change(folder)
    with pytest.raises(error, match=words):
        card_of(folder, "separation")
