"""The side on which long texts are cut where a request does not say it, against sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import BertForSequenceClassification, BertModel

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.heads.description import Task
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import bert
from tests.support.in_process_server import serve_in_process
from tests.support.tolerances import FP32_MAX_ABS_DIFF

LONG = "the first words of a text " * 20 + "and the last ones, which are others"


def direction(folder: Path, side: str) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": side, "max_length": 20, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def write_side(folder: Path, config: str | None, file: str | None) -> None:
    edit(folder / "tokenizer_config.json", **({} if config is None else {"truncation_side": config}))
    if file is not None:
        direction(folder, file)


SIDES: dict[str, tuple[str | None, str | None, str]] = {
    "by tokenizer_config.json": ("left", None, "left"),
    "by tokenizer.json": (None, "Left", "left"),
    "by the first where they differ": ("right", "Left", "right"),
    "the right one where none says it": (None, None, "right"),
}


@pytest.mark.parametrize(("config", "file", "want"), SIDES.values(), ids=SIDES)
async def test_a_route_without_a_side_cuts_where_sentence_transformers_does(
    tmp_path: Path, config: str | None, file: str | None, want: str
) -> None:
    folder = bert(tmp_path, BertModel)
    write_side(folder, config, file)
    runner = runner_of(folder, "torch")
    assert runner.card.tokenizer.truncation_side == want
    reference = SentenceTransformer(str(folder), device="cpu")
    assert reference.tokenizer.truncation_side == want
    reference.max_seq_length = runner.card.max_length
    vectors = reference.encode([LONG], normalize_embeddings=True)
    async with serve_in_process(model=runner) as server:
        content = (await server.client.post("/v1/embeddings", json={"input": LONG, "model": "any"})).json()
    assert greatest(np.array(content["data"][0]["embedding"], dtype=np.float32) - vectors[0]) <= (
        FP32_MAX_ABS_DIFF
    )


async def test_a_route_that_documents_a_side_keeps_to_it(tmp_path: Path) -> None:
    folder = bert(tmp_path, BertModel)
    write_side(folder, "left", None)

    async with serve_in_process(model=runner_of(folder, "torch")) as server:

        async def embed(**body: Any) -> list[float]:
            row: list[float] = (await server.client.post("/embed", json={"inputs": LONG, **body})).json()[0]
            return row

        from_left = await embed(truncate=True, truncation_direction="Left")
        right = await embed(truncate=True, truncation_direction="Right")
        assert await embed(truncate=True) == right != from_left
        cohere = {"texts": [LONG], "model": "any", "embedding_types": ["float"]}
        (end,) = (await server.client.post("/v2/embed", json=cohere)).json()["embeddings"]["float"]
        (start,) = (await server.client.post("/v2/embed", json={**cohere, "truncate": "START"})).json()[
            "embeddings"
        ]["float"]
    assert greatest(np.array([end, start], np.float32) - np.array([right, from_left], np.float32)) <= 1e-6


async def test_pairs_are_cut_on_the_tokenizers_side_where_the_route_has_none(tmp_path: Path) -> None:
    folder = bert(tmp_path, BertForSequenceClassification, num_labels=1)
    write_side(folder, "left", None)
    runner = runner_of(folder, "torch")
    assert runner.card.task is Task.RERANK
    async with serve_in_process(model=runner) as server:
        body = {"query": "a text", "documents": [LONG], "model": "any"}
        (result,) = (await server.client.post("/v2/rerank", json=body)).json()["results"]
        sides = {}
        for side in ("Left", "Right"):
            texts = {"query": "a text", "texts": [LONG], "truncate": True, "truncation_direction": side}
            (sides[side],) = (await server.client.post("/rerank", json=texts)).json()
    assert result["relevance_score"] == pytest.approx(sides["Left"]["score"], rel=1e-6)
    assert sides["Left"]["score"] != pytest.approx(sides["Right"]["score"], rel=1e-6)


def test_a_side_that_there_is_not_is_refused(tmp_path: Path) -> None:
    folder = bert(tmp_path, BertModel)
    write_side(folder, "middle", None)
    with pytest.raises(ModelInvalid, match=r"tokenizer_config.json: truncation_side"):
        card_of(folder)
