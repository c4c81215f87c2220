"""Cohere's dialect, the native one and OpenAI's list of models: what goes in and what comes out."""

from __future__ import annotations

import base64
import threading
from typing import Any

import numpy as np
import pytest

from embedserve_runtime.api.input_types import InputTypeName, choose_prompt
from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.heads.quantization import OutputDtype, compute_row_scales, quantize
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_models import SPACE, VOCABULARY, build_card
from tests.support.tiny_runners import build_mean_run

PROMPTS = {"query": "query: ", "passage": "passage: "}
WIDE = 16


def rows_of(*texts: str, dimensions: int = WIDE, unit: bool = True) -> FloatArray:
    sequences = [[2, *(VOCABULARY.index(word) for word in text.split()), 3] for text in texts]
    rows = build_mean_run(dimensions)(PackedBatch.pack([np.array(s, dtype=np.int32) for s in sequences]))
    return normalize(rows) if unit else rows


async def post(path: str, body: Any, headers: dict[str, str] | None = None, **options: Any) -> Any:
    card = build_card(dimensions=WIDE, prompts=PROMPTS)
    async with serve_in_process(card=card, **options) as server:
        return await server.client.post(path, json=body, headers=headers)


COHERE_TYPES = {
    "float": OutputDtype.FLOAT32,
    "int8": OutputDtype.INT8,
    "uint8": OutputDtype.UINT8,
    "binary": OutputDtype.BINARY,
    "ubinary": OutputDtype.UBINARY,
}


async def test_cohere_gives_all_types_asked_for_of_the_same_vectors() -> None:
    body = {"texts": ["hello", "a vector"], "embedding_types": [*COHERE_TYPES, "base64"], "model": "any"}
    answer = await post("/v2/embed", body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    want_rows = rows_of("hello", "a vector")
    for kind, precision in COHERE_TYPES.items():
        np.testing.assert_allclose(
            content["embeddings"][kind], quantize(want_rows, precision), rtol=1e-6, err_msg=kind
        )
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in content["embeddings"]["base64"]]
    np.testing.assert_allclose(decoded, want_rows, rtol=1e-6)
    assert content["texts"] == ["hello", "a vector"]
    assert content["response_type"] == "embeddings_by_type"
    assert content["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7}}
    assert content["id"] == answer.headers["x-request-id"]


COHERE_VECTORS = [
    pytest.param({"texts": ["hello"]}, rows_of("hello"), id="floats by default"),
    pytest.param(
        {"texts": ["hello"], "input_type": "search_query"}, rows_of("query : hello"), id="a query's prompt"
    ),
    pytest.param(
        {"texts": ["hello"], "input_type": "search_document"},
        rows_of("passage : hello"),
        id="a document's prompt, whichever name the model gives it",
    ),
    pytest.param(
        {"texts": ["hello"], "input_type": "clustering"}, rows_of("hello"), id="no prompt of that kind"
    ),
    pytest.param(
        {"inputs": [{"content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}]}]},
        rows_of("hello world"),
        id="inputs in parts",
    ),
    pytest.param(
        {"texts": ["hello " * 40 + "world"], "truncate": "START"},
        rows_of("hello " * 29 + "world"),
        id="the start is cut off",
    ),
    pytest.param(
        {"texts": ["hello " * 40], "truncate": "END"}, rows_of("hello " * 30), id="the end is cut off"
    ),
    pytest.param(
        {"texts": ["hello"], "output_dimension": 8},
        normalize(rows_of("hello", unit=False)[:, :8]),
        id="fewer dimensions",
    ),
]


@pytest.mark.parametrize(("body", "want_rows"), COHERE_VECTORS)
async def test_cohere_vectors(body: dict[str, Any], want_rows: FloatArray) -> None:
    answer = await post("/v2/embed", body)
    np.testing.assert_allclose(answer.json()["embeddings"]["float"], want_rows, rtol=1e-5)


COHERE_REFUSED = [
    pytest.param({"texts": []}, 400, id="no texts"),
    pytest.param({}, 422, id="neither texts nor inputs"),
    pytest.param({"texts": ["a"], "inputs": []}, 422, id="both"),
    pytest.param({"images": ["data:image/png;base64,AA=="]}, 422, id="images"),
    pytest.param({"texts": ["a"], "input_type": "image"}, 422, id="images by type"),
    pytest.param({"texts": ["hello " * 50], "truncate": "NONE"}, 422, id="too long and not to be cut"),
    pytest.param({"texts": ["a"], "embedding_types": ["float64"]}, 422, id="an unknown type"),
    pytest.param({"texts": ["a"], "max_tokens": 2}, 422, id="no more tokens than the special ones"),
    pytest.param(
        {"inputs": [{"content": [{"type": "image_url", "image_url": {}}]}]}, 422, id="content that is no text"
    ),
]


@pytest.mark.parametrize(("body", "want_status"), COHERE_REFUSED)
async def test_cohere_refuses_with_a_message(body: dict[str, Any], want_status: int) -> None:
    answer = await post("/v2/embed", body)
    assert answer.status_code == want_status
    assert set(answer.json()) == {"message", "code", "id"}


@pytest.mark.parametrize(
    ("input_type", "default", "want"),
    [
        (None, "query", (None, None, None)),
        ("search_query", None, ("query", "query", None)),
        ("clustering", None, (None, None, None)),
        ("clustering", "query", (None, None, "")),
        ("clustering", "other", (None, None, None)),
    ],
)
def test_the_prompt_of_another_input_type_is_never_taken(
    input_type: InputTypeName | None, default: str | None, want: tuple[str | None, str | None, str | None]
) -> None:
    card = build_card(prompts=PROMPTS | {"other": "o: "}, default_prompt=default)
    assert choose_prompt(card, input_type) == want


def from_base64(content: Any, dtype: str) -> list[Any]:
    return [np.frombuffer(base64.b64decode(text), dtype) for text in content]


NUMPY = {
    "float32": "<f4",
    "float16": "<f2",
    "int8": "i1",
    "uint8": "u1",
    "binary": "i1",
    "ubinary": "u1",
}


@pytest.mark.parametrize("encoder", ["json", "base64", "bytes"])
@pytest.mark.parametrize("dtype", NUMPY)
async def test_native_vectors_are_the_same_numbers_in_every_encoding(dtype: str, encoder: str) -> None:
    body = {
        "inputs": ["hello", "world"],
        "dtype": dtype,
        "encoding": "base64" if encoder == "base64" else "json",
    }
    headers = {"accept": "application/octet-stream"} if encoder == "bytes" else None
    answer = await post("/v1/encode", body, headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-embedserve-vector-space"] == SPACE
    want = quantize(rows_of("hello", "world"), OutputDtype(dtype))
    if encoder == "bytes":
        assert answer.headers["x-embedserve-dtype"] == dtype
        shape = [int(part) for part in answer.headers["x-embedserve-shape"].split(",")]
        vectors: Any = np.frombuffer(answer.content, NUMPY[dtype]).reshape(shape)
    else:
        content = answer.json()
        assert (content["dtype"], content["encoding"], content["token_counts"]) == (dtype, encoder, [3, 3])
        vectors = from_base64(content["dense"], NUMPY[dtype]) if encoder == "base64" else content["dense"]
        if dtype in ("int8", "uint8"):
            codes = np.array(vectors, dtype=np.float32) - (128 if dtype == "uint8" else 0)
            back = codes * np.array(content["scales"])[:, None]
            np.testing.assert_allclose(back, rows_of("hello", "world"), atol=0.005)
    np.testing.assert_allclose(vectors, want.astype(np.float32), rtol=1e-6)


async def test_native_tokens_hidden_states_and_vectors_come_from_one_pass() -> None:
    batches: list[PackedBatch] = []
    good = build_mean_run(WIDE)

    def run(batch: PackedBatch) -> FloatArray:
        batches.append(batch)
        return good(batch)

    body = {
        "inputs": ["Héllo world", [9, 10]],
        "outputs": ["dense", "tokens", "hidden"],
        "normalize": False,
    }
    answer = await post("/v1/encode", body, run=run)
    content = answer.json()
    first = content["tokens"][0]
    assert [(t["text"], t["start"], t["end"], t["special"]) for t in first] == [
        ("[CLS]", None, None, True),
        ("Héllo", 0, 5, False),
        ("world", 6, 11, False),
        ("[SEP]", None, None, True),
    ]
    assert [(t["id"], t["text"], t["start"]) for t in content["tokens"][1]] == [
        (9, "hello", None),
        (10, "world", None),
    ]
    assert [len(states) for states in content["hidden"]] == content["token_counts"] == [4, 2]
    np.testing.assert_allclose(np.mean(content["hidden"][0], axis=0), content["dense"][0], rtol=1e-5)
    assert len({batch.tokens for batch in batches}) == 1, (
        "the test's runner asks for rows and states of one batch"
    )


async def test_native_offsets_of_tokens_do_not_count_the_prompt() -> None:
    body = {"inputs": "hello", "outputs": ["tokens"], "prompt_name": "query"}
    tokens = (await post("/v1/encode", body)).json()["tokens"][0]
    assert [(t["text"], t["start"], t["end"]) for t in tokens[1:4]] == [
        ("query", None, None),
        (":", None, None),
        ("hello", 0, 5),
    ]


async def test_native_hidden_states_as_base64_are_one_matrix_an_input() -> None:
    body = {"inputs": "hello", "outputs": ["hidden"], "encoding": "base64", "dtype": "float16"}
    (text,) = (await post("/v1/encode", body)).json()["hidden"]
    assert np.frombuffer(base64.b64decode(text), "<f2").reshape(-1, WIDE).shape == (3, WIDE)


NATIVE_VECTORS = [
    pytest.param({"prompt": "query: "}, "query : hello", id="a prompt by its text"),
    pytest.param({"prompt_name": "passage"}, "passage : hello", id="a prompt by its name"),
]


@pytest.mark.parametrize(("options", "want_text"), NATIVE_VECTORS)
async def test_native_prompts(options: dict[str, Any], want_text: str) -> None:
    answer = await post("/v1/encode", {"inputs": "hello"} | options)
    np.testing.assert_allclose(answer.json()["dense"], rows_of(want_text), rtol=1e-5)


BYTES = {"accept": "application/octet-stream"}
NATIVE_REFUSED = [
    pytest.param({"outputs": []}, {}, id="nothing asked for"),
    pytest.param({"outputs": ["dense", "tokens"]}, BYTES, id="tokens as bytes"),
    pytest.param({"outputs": ["hidden"], "dtype": "int8"}, {}, id="hidden states in integers"),
    pytest.param({"prompt": "a", "prompt_name": "query"}, {}, id="two prompts"),
    pytest.param({"inputs": [[5]], "prompt": "a"}, {}, id="a prompt before ids"),
    pytest.param({"dtype": "float64"}, {}, id="an unknown dtype"),
    pytest.param({}, {"x-embedserve-timeout": "soon"}, id="a timeout that is no number"),
    pytest.param({}, {"x-embedserve-timeout": "-1"}, id="a timeout in the past"),
]


@pytest.mark.parametrize(("options", "headers"), NATIVE_REFUSED)
async def test_native_refuses_with_a_message(options: dict[str, Any], headers: dict[str, str]) -> None:
    answer = await post("/v1/encode", {"inputs": "hello"} | options, headers)
    assert answer.status_code == 422
    assert set(answer.json()) == {"message", "code", "id"}


async def test_hidden_states_beyond_the_bound_are_refused() -> None:
    batching = BatchingSettings(max_hidden_bytes=3 * WIDE * 4)
    assert (await post("/embed_all", {"inputs": "hello"}, batching=batching)).status_code == 200
    refused = await post("/embed_all", {"inputs": "hello world"}, batching=batching)
    assert refused.status_code == 422
    assert "Send fewer or shorter inputs" in refused.json()["error"]


async def test_hidden_states_that_are_not_finite_are_a_500() -> None:
    def run(batch: PackedBatch) -> FloatArray:
        rows = np.ones((len(batch.lengths), WIDE), dtype=np.float32)
        rows[-1] = np.nan if len(rows) > 1 else 1.0
        return rows

    answer = await post("/embed_all", {"inputs": "hello"}, run=run)
    assert answer.status_code == 500


async def test_more_text_than_can_be_listed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedserve_runtime.service.limits.MAX_LISTED_CHARACTERS", 5)
    body = {"inputs": ["hello", "world"]}
    assert (await post("/tokenize", body)).status_code == 422
    assert (await post("/v1/encode", body | {"outputs": ["tokens"]})).status_code == 422


async def test_models_lists_the_one_that_is_served() -> None:
    async with serve_in_process() as server:
        listed = (await server.client.get("/v1/models")).json()
        model = (await server.client.get("/v1/models/tiny")).json()
        unknown = await server.client.get("/v1/models/other")
    assert listed == {"object": "list", "data": [model]}
    assert (model["id"], model["object"]) == ("tiny", "model")
    assert unknown.status_code == 404


async def test_a_client_that_waits_no_longer_gets_504() -> None:
    async def ask(server: InProcessServer, seconds: str) -> int:
        headers = {"x-embedserve-timeout": seconds}
        return (await server.client.post("/embed", json={"inputs": "hello"}, headers=headers)).status_code

    def slow(batch: PackedBatch) -> FloatArray:
        time_is_up.wait()
        return build_mean_run()(batch)

    time_is_up = threading.Event()
    async with serve_in_process(slow) as server:
        assert await ask(server, "0.001") == 504
        assert await ask(server, "1e-230") == 504
        time_is_up.set()
        assert await ask(server, "1000") == 200


def test_scales_of_a_row_of_zeros_keep_it() -> None:
    zeros = np.zeros((1, 4), dtype=np.float32)
    assert quantize(zeros, OutputDtype.INT8).tolist() == [[0, 0, 0, 0]]
    assert compute_row_scales(zeros).tolist() == [0.0]
