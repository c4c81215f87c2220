"""peft and sentence-transformers against folders with the adapters that peft has saved, on both engines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import BertModel

from embedserve_runtime.config import load_config
from embedserve_runtime.loading.runners import load_runner
from tests.oracles.outside import answers, needs_oracles
from tests.runtime.engines.engines import ENGINES
from tests.runtime.model.test_card import edit
from tests.runtime.model.test_unread_tensors import pooled
from tests.runtime.pipelines.folders import TEXTS, bert, embed
from tests.support.tolerances import FP32_MAX_ABS_DIFF

pytestmark = needs_oracles

SETTINGS: dict[str, dict[str, Any]] = {
    "queries and values": {"r": 4, "lora_alpha": 12, "target_modules": ["query", "value"]},
    "rslora": {"r": 4, "lora_alpha": 12, "use_rslora": True, "target_modules": ["query", "dense"]},
    "ranks and alphas of some modules": {
        "r": 4,
        "lora_alpha": 12,
        "target_modules": "all-linear",
        "rank_pattern": {"query": 2, "layer.0.output.dense": 3},
        "alpha_pattern": {"output.dense": 5},
    },
    "a table": {"r": 4, "lora_alpha": 12, "target_modules": ["word_embeddings", "key"]},
    "trained biases": {"r": 4, "lora_alpha": 12, "target_modules": ["query"], "bias": "all"},
    "a whole module": {
        "r": 4,
        "lora_alpha": 12,
        "target_modules": ["query"],
        "modules_to_save": ["LayerNorm"],
    },
    "some layers": {"r": 4, "lora_alpha": 12, "target_modules": ["query"], "layers_to_transform": [1]},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """Folder and answer of each, from one process."""
    home = tmp_path_factory.mktemp("lora")
    bare = bert(home / "bare", BertModel, num_hidden_layers=2)
    edit(bare / "tokenizer_config.json", tokenizer_class="BertTokenizerFast")
    asks = []
    for number, settings in enumerate(SETTINGS.values()):
        folder = home / str(number)
        shutil.copytree(bare, folder)
        pooled(folder)
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
        asks.append(
            {"oracle": "lora", "bare": str(bare), "folder": str(folder), "settings": settings, "texts": TEXTS}
        )
    found = answers(asks)
    return {
        name: (Path(str(ask["folder"])), answer)
        for name, ask, answer in zip(SETTINGS, asks, found, strict=True)
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SETTINGS)
def test_an_adapter_is_merged_as_peft_merges_it(
    models: dict[str, tuple[Path, Mapping[str, Any]]], name: str, engine: str
) -> None:
    folder, want = models[name]
    runner = load_runner(load_config(flags={"model": {"source": str(folder)}, "engine": {"kind": engine}}))
    assert runner.card.adapter is not None
    ours = embed(runner, TEXTS)
    for oracle in ("served", "merged"):
        assert np.abs(ours - np.array(want[oracle])).max() <= FP32_MAX_ABS_DIFF
