"""PyLate itself against the routes of our server, on both engines: folders that it has made and saved, its markers,
expansion, skipped words, projection and pooling of documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import BertModel

from embedserve_runtime.config import load_config
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.runners import load_runner
from tests.oracles.outside import answers, needs_oracles
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.test_late_interaction import DOCUMENTS, QUERIES
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import bert
from tests.support.in_process_server import serve_in_process
from tests.support.tolerances import FP32_MAX_ABS_DIFF

pytestmark = needs_oracles

FACTOR = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is when nothing is said": {"embedding_size": 10},
    "expansion that is seen, lengths, words to skip": {
        "embedding_size": 30,
        "bias": True,
        "query_length": 14,
        "document_length": 21,
        "attend_to_expansion_tokens": True,
        "skiplist_words": [",", "the"],
    },
    "no expansion, markers that are words": {
        "embedding_size": 10,
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "do_query_expansion": False,
        "skiplist_words": [],
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """Folder and answer of each, from one process."""
    home = tmp_path_factory.mktemp("pylate")
    bare = bert(home / "bare", BertModel, max_position_embeddings=192)
    edit(bare / "tokenizer_config.json", tokenizer_class="BertTokenizerFast")
    asks = [
        {
            "oracle": "pylate",
            "bare": str(bare),
            "folder": str(home / str(number)),
            "settings": settings,
            "queries": QUERIES,
            "documents": DOCUMENTS,
            "pool_factor": FACTOR,
            "protected_tokens": 1,
        }
        for number, settings in enumerate(SETTINGS.values())
    ]
    said = answers(asks)
    return {name: (home / str(number), said[number]) for number, name in enumerate(SETTINGS)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SETTINGS)
async def test_vectors_of_queries_and_documents_are_pylates(
    models: dict[str, tuple[Path, Mapping[str, Any]]], name: str, engine: str
) -> None:
    folder, want = models[name]
    settings = {"model": {"source": str(folder)}, "engine": {"kind": engine, "threads": 1}}
    async with serve_in_process(model=load_runner(load_config(flags=settings))) as server:

        async def vectors(**body: Any) -> list[FloatArray]:
            answer = await server.client.post("/v1/encode", json=body)
            return [np.array(one, dtype=np.float32) for one in answer.json()["multi_vector"]]

        queries = await vectors(inputs=QUERIES, input_type="query")
        documents = await vectors(inputs=DOCUMENTS, input_type="document")
        pooled = await vectors(inputs=DOCUMENTS, input_type="document", pool_factor=FACTOR)
    for ours, theirs in zip((*queries, *documents), (*want["queries"], *want["documents"]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=FP32_MAX_ABS_DIFF)
    for ours, theirs in zip(pooled, want["pooled"], strict=True):
        # PyLate leaves the means as they are, and in the order of its tree.
        means = np.array(theirs, dtype=np.float32)
        unit = means / np.linalg.norm(means, axis=1, keepdims=True)
        order, others = ours[:, 0].argsort(), unit[:, 0].argsort()
        np.testing.assert_allclose(ours[order], unit[others], atol=FP32_MAX_ABS_DIFF)
