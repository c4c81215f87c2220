"""Forms of `/v1/encode` for vector stores, ranges of int8, and vectors of parts of a text (late chunking)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers.util.quantization import quantize_embeddings

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.ranges import RANGES_FILE
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.support.in_process_server import serve_in_process
from tests.support.models import tiny_bert
from tests.support.tiny_models import build_splade_card
from tests.support.tokenizers import with_minilm_tokenizer
from tests.support.tolerances import FP32_MAX_ABS_DIFF

TEXTS = ["hello world", "deep learning, a list of numbers"]
SIZE = 36


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder = tmp_path_factory.mktemp("bert")
    tiny_bert(model_folder, vocab_size=30_522)
    return with_minilm_tokenizer(model_folder)


@pytest.fixture(scope="module")
def runner(folder: Path) -> Runner:
    return loaded(folder)


def loaded(folder: Path) -> Runner:
    return load_runner(RuntimeConfig.model_validate({"model": {"source": str(folder)}}))


async def encoded(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/encode", json={"inputs": TEXTS} | body)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def test_dense_vectors_are_written_as_literals_of_pgvector(runner: Runner) -> None:
    async with serve_in_process(model=runner) as server:
        want = np.array((await encoded(server.client))["dense"], dtype=np.float32)
        literals = (await encoded(server.client, encoding="pgvector"))["dense"]
        bits = (await encoded(server.client, encoding="pgvector", dtype="ubinary"))["dense"]
        tokens = (await encoded(server.client, encoding="pgvector", outputs=["hidden"]))["hidden"]
    np.testing.assert_array_equal(
        np.array([json.loads(literal) for literal in literals], dtype=np.float32), want
    )
    assert bits == ["".join(str(int(number > 0)) for number in row) for row in want]
    assert [len(json.loads(text)) for text in tokens[0]] == [SIZE] * 4


async def test_sparse_vectors_are_written_as_literals_and_as_weights_by_text() -> None:
    async with serve_in_process(card=build_splade_card()) as server:
        body = {"sparse_tokens": True, "sparse_map": True}
        plain = await encoded(server.client, **body)
        literals = (await encoded(server.client, encoding="pgvector"))["sparse"]
        packed = await encoded(server.client, encoding="base64", sparse_map=True)
    for vector, literal, by_text, own in zip(
        plain["sparse"], literals, plain["sparse_map"], packed["sparse"], strict=True
    ):
        entries, _, width = literal.partition("/")
        pairs = [entry.split(":") for entry in entries.strip("{}").split(",")]
        assert [int(index) - 1 for index, _ in pairs] == vector["indices"]
        assert [float(value) for _, value in pairs] == vector["values"]
        assert int(width) > max(vector["indices"])
        assert by_text == dict(zip(vector["tokens"], vector["values"], strict=True))
        assert np.frombuffer(base64.b64decode(own["indices"]), "<i4").tolist() == vector["indices"]
    assert packed["sparse_map"] == plain["sparse_map"]


RANGES = {"min": [-0.3] * SIZE, "max": [0.2] * (SIZE - 1) + [-0.3]}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
async def test_ranges_of_the_request_quantise_as_sentence_transformers_does(
    dtype: str, runner: Runner
) -> None:
    async with serve_in_process(model=runner) as server:
        vectors = np.array((await encoded(server.client))["dense"], dtype=np.float32)
        content = await encoded(server.client, dtype=dtype, ranges=RANGES)
    want = quantize_embeddings(vectors, dtype, ranges=np.array([RANGES["min"], RANGES["max"]]))
    assert content["dense"] == want.tolist()
    assert "scales" not in content


async def test_ranges_of_the_folder_are_taken_when_they_are_asked_for(folder: Path, tmp_path: Path) -> None:
    tiny_bert(tmp_path, vocab_size=30_522)
    with_minilm_tokenizer(tmp_path)
    (tmp_path / RANGES_FILE).write_text(json.dumps(RANGES))
    async with serve_in_process(model=loaded(tmp_path)) as server:
        stored = await encoded(server.client, dtype="uint8", ranges="stored")
        with_given_ranges = await encoded(server.client, dtype="uint8", ranges=RANGES)
        cut = {"inputs": TEXTS, "dtype": "int8", "ranges": "stored", "dimensions": 8}
        refused = await server.client.post("/v1/encode", json=cut)
    assert stored["dense"] == with_given_ranges["dense"]
    assert (refused.status_code, "leave out dimensions" in refused.text) == (422, True)
    (tmp_path / RANGES_FILE).write_text(json.dumps({"min": [0.0], "max": [1.0]}))
    with pytest.raises(ModelInvalid, match="has 1 and 1 numbers, the vectors have 36 dimensions"):
        loaded(tmp_path)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such file": ({"dtype": "int8", "ranges": "stored"}, "has no quantization_ranges.json"),
    "too few": ({"dtype": "int8", "ranges": {"min": [0.0], "max": [1.0]}}, "36 dimensions"),
    "turned round": (
        {"dtype": "int8", "ranges": {"min": RANGES["max"], "max": RANGES["min"]}},
        "dimension 0: the least number is larger",
    ),
    "for floats": ({"ranges": RANGES}, "are for int8 and uint8"),
    "int8 in pgvector": ({"dtype": "int8", "encoding": "pgvector"}, "no type for int8"),
    "chunks without ranges": ({"dtype": "int8", "spans": [[], []]}, "with `ranges` only"),
    "spans of one input": ({"spans": [[[0, 1]]]}, "a list for each of 2 inputs"),
    "beyond the text": ({"spans": [[[0, 12]], []]}, "from 0 to 12 does not lie in its 11 characters"),
    "empty": ({"spans": [[[3, 3]], []]}, "from 3 to 3"),
    "of blanks": ({"spans": [[[5, 6]], []]}, "no token lies in the span from 5 to 6"),
    "of ids": ({"inputs": [[101, 102]], "spans": [[[0, 1]]]}, "token ids, which have no characters"),
    "fewer than one": ({"pool_factor": 0.5}, "pool_factor"),
}


@pytest.mark.parametrize(("body", "want_message"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_makes_no_sense_is_refused(
    body: dict[str, Any], want_message: str, runner: Runner
) -> None:
    async with serve_in_process(model=runner) as server:
        answer = await server.client.post("/v1/encode", json={"inputs": TEXTS} | body)
    assert answer.status_code == 422
    assert want_message in answer.json()["message"]


async def test_chunks_are_means_of_the_states_that_one_forward_of_the_whole_text_gives(
    runner: Runner,
) -> None:
    text, prompt = "Berlin is a city. It has many people; they like it.", "passage: "
    spans = [(0, 17), (18, len(text)), (10, 16), (14, 15)]
    card = runner.card
    tokenizer = TextTokenizer.from_card(card)
    (ids,) = tokenizer.encode([text], prompt, TruncationRules(truncate=True))
    (tokens,) = tokenizer.locate([text], prompt, TruncationRules(truncate=True))
    hidden = runner.run(PackedBatch.pack([ids]), OutputKind.HIDDEN).hidden
    assert hidden is not None
    want = []
    for start, end in spans:
        inside = [
            row
            for token, row in zip(tokens, hidden[0], strict=True)
            if token.start is not None
            and set(range(token.start, token.stop or 0)) & set(range(start + len(prompt), end + len(prompt)))
        ]
        want.append(np.mean(inside, axis=0))
    body = {"inputs": [text, TEXTS[0]], "prompt": prompt, "spans": [spans, []], "normalize": True}
    async with serve_in_process(model=runner) as server:
        alone = await encoded(server.client, **body)
        whole_text = await encoded(server.client, **body, outputs=["dense", "hidden"], dimensions=8)
        bits = await encoded(server.client, **body, dtype="ubinary", encoding="base64")
    np.testing.assert_allclose(alone["chunks"][0], normalize(np.array(want)), atol=FP32_MAX_ABS_DIFF)
    assert (alone["chunks"][1], "dense" in alone, "hidden" in alone) == ([], False, False)
    assert [np.shape(chunk) for chunk in whole_text["chunks"]] == [(4, 8), (0,)]
    assert [np.shape(vector) for vector in whole_text["hidden"]] == [(len(ids), SIZE), (6, SIZE)]
    assert np.shape(whole_text["dense"]) == (2, 8)
    packed = np.packbits(np.array(alone["chunks"][0]) > 0, axis=1)
    assert [base64.b64decode(vector) for vector in bits["chunks"][0]] == [row.tobytes() for row in packed]
