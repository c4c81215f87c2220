"""A model's folder is read once, into its card; card and tensors are all that the model is built from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.base.modules import Module, Normalize

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.assembly import build_runners
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.tensors import ModelTensors
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, dense_of
from tests.runtime.pipelines.folders import TEXTS, tokens_of
from tests.runtime.pipelines.test_dense_routes import (
    OWN,
    SHARED,
    SIZE,
    Bare,
    Chain,
    dense,
    pooling,
    saved,
)


def pooled_and_dense(bare: Bare) -> list[Module]:
    return [bare.encoder(), pooling(), dense(SIZE, 10), Normalize()]


def static_table(bare: Bare) -> list[Module]:
    return [bare.table(), Normalize()]


CHAINS: dict[str, Chain] = {
    "pooling and a dense module": pooled_and_dense,
    "a table": static_table,
    **SHARED,
    **OWN,
}

READING = """
import json, sys
from pathlib import Path

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.model.reading import read_card

opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
read_card(Path(sys.argv[1]), "local", ModelSettings(source="m"))
print(json.dumps(opened))
"""


def vectors(card: ModelCard, folder: Path) -> list[FloatArray]:
    """Return the vectors of texts as documents, and as queries where they are encoded otherwise."""
    (runner,) = build_runners(
        card, ModelTensors(folder), lambda *arguments: [ENGINES["onnx"].build(*arguments)]
    )
    roles = (False,) if card.query is None else (False, True)
    return [dense_of(runner, tokens_of(card, TEXTS, query=query)) for query in roles]


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_a_model_is_built_from_its_card_and_tensors_without_its_folder(tmp_path: Path, chain: Chain) -> None:
    folder, tensors = tmp_path / "model", tmp_path / "tensors"
    saved(folder, *chain(Bare(tmp_path)))
    card = card_of(folder)
    want = vectors(card, folder)
    for path in folder.rglob("*.safetensors"):
        copy = tensors / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, copy)
    shutil.rmtree(folder)
    for ours, theirs in zip(vectors(card, tensors), want, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_the_same_model_in_another_folder_has_the_same_card(tmp_path: Path, chain: Chain) -> None:
    folder, copy = tmp_path / "model", tmp_path / "another folder"
    saved(folder, *chain(Bare(tmp_path)))
    shutil.copytree(folder, copy)
    assert card_of(folder, source="m") == card_of(copy, source="m")


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_each_file_that_says_how_a_model_is_run_is_opened_once(tmp_path: Path, chain: Chain) -> None:
    folder = tmp_path / "model"
    saved(folder, *chain(Bare(tmp_path)))
    completed = subprocess.run(
        [sys.executable, "-c", READING, str(folder)], check=True, capture_output=True, text=True
    )
    openings = Counter(path for path in json.loads(completed.stdout) if Path(path).is_relative_to(folder))
    small_files = {str(path) for path in folder.rglob("*.json")}
    assert {path: openings[path] for path in small_files} == dict.fromkeys(small_files, 1)
