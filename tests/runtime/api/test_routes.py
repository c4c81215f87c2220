"""Bodies and answers of each route: one table a dialect."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.api.routes import EMBEDDING_ROUTES
from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.heads.dense import normalize
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_models import DIMENSIONS, SPACE, VOCABULARY, build_card
from tests.support.tiny_runners import build_mean_run

HELLO = VOCABULARY.index("hello")
JSON = {"content-type": "application/json"}


def rows_of(*sequences: list[int], dimensions: int = DIMENSIONS, unit: bool = True) -> FloatArray:
    """Return what the test's engine gives for token ids."""
    packed = PackedBatch.pack([np.array(sequence, dtype=np.int32) for sequence in sequences])
    rows = build_mean_run()(packed)[:, :dimensions]
    return normalize(rows) if unit else rows


def ids_of(text: str) -> list[int]:
    return [2, *(VOCABULARY.index(word) for word in text.split()), 3]


EMBED = [
    pytest.param({"inputs": "hello"}, rows_of(ids_of("hello")), id="one text is a list of one"),
    pytest.param(
        {"inputs": ["hello", "a vector"]},
        rows_of(ids_of("hello"), ids_of("a vector")),
        id="a batch keeps its order",
    ),
    pytest.param({"inputs": [2, HELLO, 3]}, rows_of([2, HELLO, 3]), id="a flat list of ids is one input"),
    pytest.param({"inputs": [[5], "hello"]}, rows_of([5], ids_of("hello")), id="ids and texts may be mixed"),
    pytest.param(
        {"inputs": "hello", "normalize": False},
        rows_of(ids_of("hello"), unit=False),
        id="normalize off gives raw rows",
    ),
    pytest.param(
        {"inputs": "hello", "normalize": None}, rows_of(ids_of("hello")), id="normalize null is true"
    ),
    pytest.param(
        {"inputs": "hello", "dimensions": 3},
        rows_of(ids_of("hello"), dimensions=3),
        id="cut, then normalized",
    ),
    pytest.param(
        {"inputs": "world", "prompt_name": "query"},
        rows_of(ids_of("query : world")),
        id="a prompt by its name",
    ),
    pytest.param(
        {"inputs": "hello " * 50},
        rows_of([2, *[HELLO] * 30, 3]),
        id="too long is cut on the right by default",
    ),
    pytest.param(
        {"inputs": "world " + "hello " * 50, "truncate": True, "truncation_direction": "Left"},
        rows_of([2, *[HELLO] * 30, 3]),
        id="or on the left",
    ),
    pytest.param(
        {"inputs": "hello", "model": "x", "parameters": {}, "encoding_format": None},
        rows_of(ids_of("hello")),
        id="unknown fields are ignored",
    ),
]


@pytest.mark.parametrize(("body", "want_rows"), EMBED)
async def test_embed(body: dict[str, Any], want_rows: FloatArray) -> None:
    async with serve_in_process(card=build_card(prompts={"query": "query: "})) as server:
        answer = await server.client.post("/embed", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    np.testing.assert_allclose(answer.json(), want_rows, rtol=1e-6)


async def test_the_numbers_of_an_answer_are_exactly_the_float32_values() -> None:
    async with serve_in_process() as server:
        answer = await server.client.post("/embed", json={"inputs": "hello world", "normalize": False})
    want_row = rows_of(ids_of("hello world"), unit=False)
    assert np.array(answer.json(), dtype=np.float32).tobytes() == want_row.tobytes()


async def test_a_default_prompt_applies_to_texts_and_not_to_ids() -> None:
    card = build_card(prompts={"query": "query: ", "none": ""}, default_prompt="query")
    async with serve_in_process(card=card) as server:
        answer = await server.client.post("/embed", json={"inputs": ["world", [HELLO]]})
        without = await server.client.post("/embed", json={"inputs": "world", "prompt_name": "none"})
    np.testing.assert_allclose(answer.json(), rows_of(ids_of("query : world"), [HELLO]), rtol=1e-6)
    np.testing.assert_allclose(without.json(), rows_of(ids_of("world")), rtol=1e-6)


async def test_a_model_with_a_cut_of_its_own_gives_that_many_dimensions() -> None:
    card = build_card(dimensions=4, full_dimensions=DIMENSIONS)
    async with serve_in_process(card=card) as server:
        answer = await server.client.post("/embed", json={"inputs": "hello"})
        refused = await server.client.post("/embed", json={"inputs": "hello", "dimensions": 5})
    np.testing.assert_allclose(answer.json(), rows_of(ids_of("hello"), dimensions=4), rtol=1e-6)
    assert refused.status_code == 422
    assert "between 1 and 4" in refused.json()["error"]


async def test_headers_tell_the_space_the_counts_and_the_times() -> None:
    async with serve_in_process() as server:
        answer = await server.client.post(
            "/embed", json={"inputs": ["hello", "a vector"]}, headers={"x-request-id": "mine-1"}
        )
    assert answer.headers["x-embedserve-vector-space"] == SPACE
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-compute-characters"] == "13"
    assert answer.headers["x-compute-tokens"] == "7"
    for name in ("compute", "total", "tokenization", "queue", "inference"):
        assert answer.headers[f"x-{name}-time"].isdigit()


OPENAI = [
    pytest.param({"input": "hello", "model": "m"}, rows_of(ids_of("hello")), 3, id="one text"),
    pytest.param({"input": ["hello", "world"]}, rows_of(ids_of("hello"), ids_of("world")), 6, id="a batch"),
    pytest.param({"input": [HELLO, 5]}, rows_of([HELLO, 5]), 2, id="one array of ids"),
    pytest.param({"input": [[HELLO], [5, 6]]}, rows_of([HELLO], [5, 6]), 3, id="a batch of arrays of ids"),
    pytest.param(
        {"input": "hello", "dimensions": 2}, rows_of(ids_of("hello"), dimensions=2), 3, id="dimensions"
    ),
    pytest.param({"input": "hello", "user": "u", "extra": 1}, rows_of(ids_of("hello")), 3, id="other fields"),
]


@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
@pytest.mark.parametrize(("body", "want_rows", "want_tokens"), OPENAI)
async def test_openai_embeddings(
    body: dict[str, Any], want_rows: FloatArray, want_tokens: int, encoding_format: str | None
) -> None:
    async with serve_in_process(openai_token_ids=True) as server:
        answer = await server.client.post("/v1/embeddings", json=body | {"encoding_format": encoding_format})
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert content["object"] == "list"
    assert content["model"] == "tiny"
    assert content["usage"] == {"prompt_tokens": want_tokens, "total_tokens": want_tokens}
    assert [(item["object"], item["index"]) for item in content["data"]] == [
        ("embedding", index) for index in range(len(want_rows))
    ]
    values = [item["embedding"] for item in content["data"]]
    if encoding_format == "base64":
        values = [np.frombuffer(base64.b64decode(value), dtype="<f4") for value in values]
    np.testing.assert_allclose(values, want_rows, rtol=1e-6)


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
async def test_an_answer_too_large_for_one_piece_is_the_same(path: str) -> None:
    card = build_card(dimensions=1_024)
    run = build_mean_run(1_024)
    async with serve_in_process(run, card=card, openai_token_ids=True) as server:
        field = "inputs" if path == "/embed" else "input"
        answer = await server.client.post(path, json={field: [[5, i % 20] for i in range(300)]})
    content = answer.json()
    values = content if path == "/embed" else [item["embedding"] for item in content["data"]]
    want_rows = normalize(run(PackedBatch.pack([np.array([5, i % 20], dtype=np.int32) for i in range(300)])))
    np.testing.assert_allclose(values, want_rows, rtol=1e-5)
    if path != "/embed":
        assert [item["index"] for item in content["data"]] == list(range(300))


async def test_info_tells_the_model_and_its_limits() -> None:
    card = build_card(prompts={"query": "query: "}, default_prompt="query")
    async with serve_in_process(card=card, batching=BatchingSettings(max_client_batch_size=7)) as server:
        answer = await server.client.get("/info")
    assert answer.headers["x-embedserve-vector-space"] == SPACE
    info = answer.json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    want = {
        "model_id": "tiny",
        "max_input_length": 32,
        "max_batch_tokens": 256,
        "max_client_batch_size": 7,
        "vector_space": SPACE,
        "dimensions": DIMENSIONS,
        "prompts": ["query"],
        "default_prompt": "query",
    }
    assert {name: info[name] for name in want} == want


ERRORS = [
    pytest.param(b"{", JSON, 400, "not valid JSON", id="cut off JSON"),
    pytest.param(b"", JSON, 400, "empty body", id="no body"),
    pytest.param(b'{"FIELD": "\xff"}', JSON, 400, "not valid JSON", id="not UTF-8"),
    pytest.param(b'{"x":' + b"[" * 4_000, JSON, 400, "not valid JSON", id="nested without end"),
    pytest.param(b'{"FIELD": "a \\ud800 b"}', JSON, 400, "not valid JSON", id="half a surrogate pair"),
    pytest.param(b"[]", JSON, 422, "the body must be an object", id="a list where an object belongs"),
    pytest.param(b"{}", JSON, 422, "` is missing", id="the inputs are missing"),
    pytest.param(
        b'{"FIELD": 5}',
        JSON,
        422,
        "must be a text, an array of token ids, or a list",
        id="a number for the inputs",
    ),
    pytest.param(b'{"FIELD": ["a", 5]}', JSON, 422, "mixes numbers with texts", id="numbers among texts"),
    pytest.param(b'{"FIELD": [["a"]]}', JSON, 422, ".0.0` must be an integer", id="texts where ids belong"),
    pytest.param(b'{"FIELD": []}', JSON, 400, "the list of inputs is empty", id="an empty batch"),
    pytest.param(b'{"FIELD": ""}', JSON, 400, "input 0 is empty", id="an empty text"),
    pytest.param(b'{"FIELD": ["a", ""]}', JSON, 400, "input 1 is empty", id="an empty text in a batch"),
    pytest.param(b'{"FIELD": [[]]}', JSON, 400, "input 0 is empty", id="an empty array of ids"),
    pytest.param(
        b'{"FIELD": [4000]}', JSON, 422, "token id 4000 is not in the vocabulary", id="an unknown id"
    ),
    pytest.param(b'{"FIELD": [-1]}', JSON, 422, "token id -1", id="a negative id"),
    pytest.param(
        b'{"FIELD": "a", "dimensions": 0}',
        JSON,
        422,
        "`dimensions` must be at least 1",
        id="no dimensions at all",
    ),
    pytest.param(b'{"FIELD": "a", "dimensions": 9}', JSON, 422, "between 1 and 8", id="more than there are"),
    pytest.param(
        b'{"FIELD": ["a","b","c","d","e"]}', JSON, 422, "batch size 5 > maximum", id="too many inputs"
    ),
    pytest.param(
        b'{"FIELD": "a"}', {"content-type": "text/plain"}, 415, "text/plain", id="not declared as JSON"
    ),
    pytest.param(
        b'{"FIELD": "a"}',
        JSON | {"x-embedserve-vector-space": "vs2-other"},
        409,
        f"this service makes {SPACE}",
        id="another vector space",
    ),
    pytest.param(
        b'{"FIELD": "' + b"a" * 5_000 + b'"}', JSON, 413, "larger than 4096 bytes", id="too large a body"
    ),
]


async def test_the_error_about_a_prompt_quotes_the_beginning_of_a_long_name() -> None:
    async with serve_in_process() as server:
        answer = await server.client.post("/embed", json={"inputs": "a", "prompt_name": "p" * 100_000})
    assert answer.status_code == 422
    assert f"{'p' * 100!r} does not exist" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
@pytest.mark.parametrize(("body", "headers", "want_status", "want_message"), ERRORS)
async def test_errors_say_the_cause_and_the_server_goes_on(
    path: str, body: bytes, headers: dict[str, str], want_status: int, want_message: str
) -> None:
    field = b"inputs" if path == "/embed" else b"input"
    memory = RequestMemory(max_body_bytes=4_096, max_pending_bytes=2**20)
    batching = BatchingSettings(max_client_batch_size=4)
    async with serve_in_process(batching=batching, memory=memory, openai_token_ids=True) as server:
        answer = await server.client.post(path, content=body.replace(b"FIELD", field), headers=headers)
        after = await server.client.post(path, json={field.decode(): "hello"})
    assert answer.status_code == want_status, answer.text
    message = check_error_shape(path, answer.json())
    assert want_message in message
    assert after.status_code == 200
    assert memory.pending == 0


def check_error_shape(path: str, content: dict[str, Any]) -> str:
    """The dialect's shape; returns the message."""
    if path == "/v1/embeddings":
        error = content["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        return str(error["message"])
    if path in {"/v1/encode", "/v1/score", "/v1/rerank", "/v2/embed", "/v2/rerank"}:
        assert set(content) == {"message", "code", "id"}
        return str(content["message"])
    assert set(content) <= {"error", "error_type", "request_id"}
    assert content["error_type"] in {"Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"}
    return str(content["error"])


@pytest.mark.parametrize(
    ("body", "want_message"),
    [
        pytest.param({"truncate": False}, "has 52 tokens and the model takes at most 32", id="too long"),
        pytest.param({"prompt_name": "nope"}, 'Available prompts: ["query"]', id="an unknown prompt"),
        pytest.param({"prompt_name": 5}, "`prompt_name` must be a text", id="a prompt that is no name"),
        pytest.param(
            {"truncation_direction": "up"}, "`truncation_direction` must be", id="an unknown direction"
        ),
    ],
)
async def test_what_tei_calls_a_validation_error(body: dict[str, Any], want_message: str) -> None:
    async with serve_in_process(card=build_card(prompts={"query": "query: "})) as server:
        answer = await server.client.post("/embed", json={"inputs": "hello " * 50} | body)
    assert answer.status_code == 422
    assert answer.json()["error_type"] == "Validation"
    assert want_message in answer.json()["error"]


async def test_a_prompt_cannot_be_put_before_ids() -> None:
    async with serve_in_process(card=build_card(prompts={"query": "query: "})) as server:
        answer = await server.client.post("/embed", json={"inputs": [[5]], "prompt_name": "query"})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "application/json; charset=utf-8"}, {"content-type": "application/vnd.api+json"}],
)
async def test_json_may_be_declared_in_other_ways_or_not_at_all(headers: dict[str, str]) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post("/embed", content=b'{"inputs":"hello"}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("media_type", ["application/jsonl", "application/json-seq", "text/json"])
async def test_what_only_sounds_like_json_is_415(media_type: str) -> None:
    async with serve_in_process() as server:
        headers = {"content-type": media_type}
        answer = await server.client.post("/embed", content=b'{"inputs":"hello"}', headers=headers)
    assert answer.status_code == 415


async def test_a_byte_order_mark_before_a_body_is_passed_over() -> None:
    async with serve_in_process() as server:
        answers = [
            await server.client.post("/embed", content=start + b'{"inputs":"hello"}')
            for start in (b"", b"\xef\xbb\xbf")
        ]
    assert answers[1].status_code == 200, answers[1].text
    assert answers[1].json() == answers[0].json()


@pytest.mark.parametrize(
    ("method", "path", "want_status"),
    [
        ("GET", "/embed", 405),
        ("DELETE", "/v1/embeddings", 405),
        ("POST", "/info", 405),
        ("GET", "/nope", 404),
    ],
)
async def test_wrong_paths_and_methods_are_json_too(method: str, path: str, want_status: int) -> None:
    async with serve_in_process() as server:
        answer = await server.client.request(method, path)
    assert answer.status_code == want_status
    assert check_error_shape(path, answer.json())
    assert ("allow" in answer.headers) == (want_status == 405)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
async def test_a_value_that_is_no_number_fails_its_own_request_only(bad: float) -> None:
    good = build_mean_run()

    def run(batch: PackedBatch) -> FloatArray:
        rows = good(batch)
        rows[
            [13 in batch.token_ids[a:b] for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)]
        ] = bad
        return rows

    async with serve_in_process(run) as server:
        broken = await server.client.post("/embed", json={"inputs": [[13], [5]]})
        fine = await server.client.post("/embed", json={"inputs": [[5]]})
    assert broken.status_code == 500
    assert broken.json()["error_type"] == "Backend"
    assert "not a finite number" in broken.json()["error"]
    assert fine.status_code == 200


async def test_an_unexpected_error_is_a_500_that_tells_nothing_of_its_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve_in_process() as server:
        server.service._encoders = None  # type: ignore[assignment]  # a bug, as far as the route can tell
        answer = await server.client.post("/embed", json={"inputs": "hello"})
    assert answer.status_code == 500
    content = answer.json()
    assert content["request_id"] == answer.headers["x-request-id"]
    assert "NoneType" not in answer.text
    assert any(getattr(record, "request_id", None) == content["request_id"] for record in caplog.records)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
likely_inputs = (
    st.text(max_size=40) | st.lists(st.text(max_size=8) | st.integers(-2, 50), max_size=4) | json_values
)
likely_bodies = st.fixed_dictionaries(
    {},
    optional={
        "inputs": likely_inputs
        | st.fixed_dictionaries(
            {"source_sentence": st.text(max_size=8), "sentences": st.lists(st.text(max_size=8), max_size=3)}
        ),
        "input": likely_inputs,
        "texts": st.lists(st.text(max_size=8), max_size=4) | json_values,
        "ids": st.lists(st.integers(-1, 40) | st.lists(st.integers(0, 30), max_size=3), max_size=4)
        | json_values,
        "instances": st.lists(st.fixed_dictionaries({"inputs": likely_inputs}), max_size=3) | json_values,
        "query": st.text(max_size=8) | json_values,
        "truncate": st.booleans() | st.sampled_from(["NONE", "START", "END"]) | json_values,
        "truncation_direction": st.sampled_from(["Left", "right"]) | json_values,
        "dimensions": st.integers(-1, 10) | json_values,
        "normalize": st.booleans() | json_values,
        "encoding_format": st.sampled_from(["float", "base64", "hex"]) | json_values,
        "encoding": st.sampled_from(["json", "base64"]) | json_values,
        "outputs": st.lists(st.sampled_from(["dense", "tokens", "hidden"]), max_size=3) | json_values,
        "dtype": st.sampled_from(["float16", "int8", "binary"]) | json_values,
        "embedding_types": st.lists(st.sampled_from(["float", "int8", "base64"]), max_size=3) | json_values,
        "input_type": st.sampled_from(["search_query", "image"]) | json_values,
        "prompt": st.text(max_size=8) | json_values,
        "add_special_tokens": st.booleans() | json_values,
    },
)
POSTS = [*EMBEDDING_ROUTES, "/decode", "/tokenize"]


@settings(max_examples=120, deadline=None)
@given(path=st.sampled_from(POSTS), body=likely_bodies | json_values)
async def test_any_json_gets_a_valid_answer_and_never_a_500(path: str, body: Any) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post(path, content=json.dumps(body), headers=JSON)
    assert answer.status_code in {200, 400, 422, 424}, answer.text
    content = answer.json()
    if answer.status_code != 200:
        check_error_shape(path, content)


def counted(server: InProcessServer, route: str, status: int) -> float | None:
    return server.get_metric("embedserve_requests_total", {"route": route, "status": str(status)})


async def test_every_outcome_is_counted_once() -> None:
    async with serve_in_process() as server:
        for body in ({"inputs": "hello"}, {"inputs": "world"}, {"inputs": ""}, {"inputs": 5}):
            await server.client.post("/embed", json=body)
        await server.client.get("/nope")
        assert [counted(server, "/embed", status) for status in (200, 400, 422, 500)] == [2, 1, 1, 0]
        assert counted(server, "other", 404) == 1
        assert server.get_metric("embedserve_inputs_total") == 2
        assert server.get_metric("embedserve_tokens_total") == 6
        assert server.get_metric("embedserve_requests_in_flight") == 0
        single = {"method": "single"}
        assert [server.get_metric(f"te_request_{name}", single) for name in ("count", "success")] == [4, 2]
        assert server.get_metric("te_request_failure", {"err": "validation"}) == 2
        assert [server.get_metric(f"te_embed_{name}") for name in ("count", "success")] == [3, 2]
        for histogram in ("te_request_duration", "te_embed_queue_duration", "te_request_input_length"):
            assert server.get_metric(f"{histogram}_count") == 2
        assert server.get_metric("te_request_input_length_bucket", {"le": "4"}) == 2
        assert server.get_metric("te_batch_next_tokens_sum") == 6
