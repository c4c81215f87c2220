"""Late chunking and long inputs in chunks, against references computed with transformers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.runners.base import Runner
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_models import build_card, build_classifier_card
from tests.support.tolerances import FP32_MAX_ABS_DIFF

LONG = "The Spree flows through Berlin, a city of four million people. They like it. " * 40
INPUTS = ["Berlin is a city. ", "It has many people;", "they like it.", " Ünïcode, 学 too"]
# What the inputs are as one text: a blank between those that have none.
JOINED = "Berlin is a city. It has many people; they like it. Ünïcode, 学 too"
MAX_TOKENS = 256
SPECIAL_TOKENS = 2


class Reference:
    """The model as transformers runs it."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()

    def states(self, ids: Sequence[int]) -> FloatArray:
        with torch.inference_mode():
            states = self._model(torch.tensor([ids])).last_hidden_state[0]
        return np.asarray(states.numpy(), dtype=np.float32)

    def chunks(self, text: str) -> tuple[FloatArray, list[int], list[tuple[int, int]]]:
        """The vector of each chunk of a text, the number of its tokens, and where it lies."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        size = MAX_TOKENS - 2
        ids, offsets = (
            [values[start : start + size] for start in range(0, len(values), size)]
            for values in (encoded["input_ids"], encoded["offset_mapping"])
        )
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        vectors = [unit(self.states([first, *part, last]).mean(axis=0)) for part in ids]
        return np.stack(vectors), [*map(len, ids)], [(part[0][0], part[-1][1]) for part in offsets]


def unit(vector: FloatArray) -> FloatArray:
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


@pytest.fixture(scope="module")
def reference(minilm: Path) -> Reference:
    return Reference(minilm)


async def embeddings(server: InProcessServer, inputs: list[str], **fields: Any) -> list[dict[str, Any]]:
    answer = await server.client.post("/v1/embeddings", json={"input": inputs, **fields})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["data"]
    return items


async def encoded(server: InProcessServer, inputs: list[str], **fields: Any) -> dict[str, Any]:
    answer = await server.client.post("/v1/encode", json={"inputs": inputs, **fields})
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def test_late_chunking_is_one_forward_of_all_inputs_pooled_by_input(
    minilm_runner: Runner, reference: Reference
) -> None:
    encoded = reference.tokenizer(JOINED, return_offsets_mapping=True)
    states = reference.states(encoded["input_ids"])
    want, start = [], 0
    for text in INPUTS:
        start = JOINED.index(text, start)
        inside = [
            number
            for number, (first, last) in enumerate(encoded["offset_mapping"])
            if first < start + len(text) and last > start
        ]
        want.append(unit(states[inside].mean(axis=0)))
    async with serve_in_process(model=minilm_runner) as server:
        items = await embeddings(server, INPUTS, late_chunking=True)
        plain = await embeddings(server, INPUTS)
        cut = await embeddings(server, INPUTS, late_chunking=True, dimensions=8, encoding_format="base64")
    got = np.array([item["embedding"] for item in items])
    np.testing.assert_allclose(got, want, atol=FP32_MAX_ABS_DIFF)
    assert [item["index"] for item in items] == [0, 1, 2, 3]
    assert np.abs(got - [item["embedding"] for item in plain]).max() > 0.01
    for item, vector in zip(cut, want, strict=True):
        decoded = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        np.testing.assert_allclose(decoded, unit(vector[:8]), atol=FP32_MAX_ABS_DIFF * 10)


async def test_a_long_input_in_chunks_has_the_vectors_of_its_parts(
    minilm_runner: Runner, reference: Reference
) -> None:
    want, tokens, offsets = reference.chunks(LONG)
    assert len(want) == 3
    async with serve_in_process(model=minilm_runner) as server:
        items = await embeddings(server, ["hello", LONG], overflow="chunk")
        content = await encoded(server, ["hello", LONG], overflow="chunk")
        plain = await embeddings(server, ["hello"])
    assert [(item["index"], item["chunk"]) for item in items] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert items[0]["embedding"] == plain[0]["embedding"]
    np.testing.assert_allclose([item["embedding"] for item in items[1:]], want, atol=FP32_MAX_ABS_DIFF)
    assert [(item["start"], item["end"]) for item in items[1:]] == offsets
    np.testing.assert_allclose(content["chunks"][1], want, atol=FP32_MAX_ABS_DIFF)
    assert content["chunk_spans"] == [[[0, 5]], [[*span] for span in offsets]]
    assert content["token_counts"] == [1 + SPECIAL_TOKENS, sum(tokens) + SPECIAL_TOKENS * len(tokens)]
    assert "dense" not in content


async def test_the_mean_of_chunks_is_weighted_by_their_tokens(
    minilm_runner: Runner, reference: Reference
) -> None:
    vectors, tokens, _ = reference.chunks(LONG)
    want = unit(np.average(vectors, axis=0, weights=tokens))
    async with serve_in_process(model=minilm_runner) as server:
        items = await embeddings(server, ["hello", LONG], overflow="chunk-mean")
        content = await encoded(server, ["hello", LONG], overflow="chunk-mean", encoding="base64")
    assert [item["chunks"] for item in items] == [1, 3]
    np.testing.assert_allclose(items[1]["embedding"], want, atol=FP32_MAX_ABS_DIFF)
    decoded = np.frombuffer(base64.b64decode(content["dense"][1]), "<f4")
    np.testing.assert_allclose(decoded, items[1]["embedding"], atol=1e-7)
    assert [len(spans) for spans in content["chunk_spans"]] == [1, 3]


async def test_each_chunk_has_the_prompt_and_is_shorter_by_it() -> None:
    card = build_card(prompts={"query": "query: "}, max_length=8)
    async with serve_in_process(card=card) as server:
        items = await embeddings(server, ["hello world a vector is"], overflow="chunk", input_type="query")
        want = [
            await embeddings(server, [text], input_type="query") for text in ("hello world a vector", "is")
        ]
    assert [item["embedding"] for item in items] == [chunks[0]["embedding"] for chunks in want]
    assert [(item["start"], item["end"]) for item in items] == [(0, 20), (21, 23)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": ["a", ""], "late_chunking": True}, "input 1 is empty"),
    ({"input": ["a", " "], "late_chunking": True}, "input 1 has no token of its own"),
    (
        {"input": ["hello " * 20] * 2, "late_chunking": True},
        "`late_chunking` reads all inputs as one text, which has 42 tokens and the model takes at most 32; "
        "send fewer or shorter inputs",
    ),
    (
        {"input": ["hello " * 20] * 2, "late_chunking": True, "truncate": True},
        "send fewer or shorter inputs",
    ),
    ({"input": ["a", ""], "overflow": "chunk"}, "input 1 has no tokens"),
    ({"input": ["a" * 1_000_001], "overflow": "chunk"}, "splits texts into chunks, takes 1000000 characters"),
    *(
        (
            {"input": ["a"], "overflow": "chunk", **fields},
            f"`overflow`: chunk cannot be combined with `{name}`; leave one of them out",
        )
        for name, fields in (
            ("truncate_prompt_tokens", {"truncate_prompt_tokens": 5}),
            ("truncation", {"truncation": True}),
            ("truncate", {"truncate": "NONE"}),
            ("late_chunking", {"late_chunking": True}),
        )
    ),
]


@pytest.mark.parametrize(("body", "want"), REFUSED)
async def test_what_cannot_be_chunked_is_refused_by_its_input(body: dict[str, Any], want: str) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post("/v1/embeddings", json=body)
    assert answer.status_code in (400, 422)
    assert want in answer.json()["message"]


async def test_a_prompt_that_leaves_no_room_for_a_chunk_is_refused() -> None:
    card = build_card(prompts={"query": "query query query query "}, max_length=6)
    async with serve_in_process(card=card) as server:
        body = {"input": ["hello"], "overflow": "chunk", "prompt_name": "query"}
        answer = await server.client.post("/v1/embeddings", json=body)
    assert answer.status_code == 422
    assert "a prompt of 4 tokens leaves no room" in answer.json()["message"]


async def test_a_prompt_that_would_make_many_chunks_of_a_short_text_is_refused() -> None:
    card = build_card(prompts={"query": "query " * 28}, max_length=32)
    async with serve_in_process(card=card) as server:
        body = {"input": ["hello world " * 8], "overflow": "chunk", "prompt_name": "query"}
        answer = await server.client.post("/v1/embeddings", json=body)
    assert answer.status_code == 422
    assert "a prompt of 28 tokens leaves room for 2 only" in answer.json()["message"]


async def test_token_ids_and_models_without_vectors_are_not_chunked() -> None:
    async with serve_in_process(openai_token_ids=True) as server:
        for field in ({"late_chunking": True}, {"overflow": "chunk"}):
            answer = await server.client.post("/v1/embeddings", json={"input": [[5, 6]], **field})
            assert answer.status_code == 422
            assert "takes texts" in answer.json()["message"]
    async with serve_in_process(card=build_classifier_card("a", "b")) as server:
        answer = await server.client.post("/v1/embeddings", json={"input": "a", "overflow": "chunk"})
        assert answer.status_code == 424
