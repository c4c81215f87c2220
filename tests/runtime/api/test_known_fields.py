"""Each field that any API has, on each route without it: refused by its name, unless its value is harmless."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest

from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.schemas import openai, tei
from embedserve_runtime.api.schemas.base import RequestBody
from embedserve_runtime.api.schemas.compatibility import FieldSupport
from embedserve_runtime.api.schemas.known_fields import CONCEPTS, REQUESTS, find_foreign_fields, find_support
from embedserve_runtime.api.schemas.parsing import read_json
from tests.runtime.api.bodies import body_of, refused
from tests.runtime.api.fields import TABLE, Effect, known_fields
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_models import build_card

# A value that no field takes without doing something.
STRANGE = {"of": "another route"}
UNUSED = {
    name
    for name in known_fields()
    if any(find_support(model, name) is FieldSupport.IGNORED for model in REQUESTS)
}


async def test_every_body_of_a_request_is_known_with_its_paths() -> None:
    async with serve_in_process() as server:
        routes = [
            (get_type_hints(route.endpoint).get("body"), route.path)
            for route in server.app.routes
            if isinstance(route, JsonRoute) and route.include_in_schema
        ]
    bodies = {model for model, _ in routes if model is not None}
    assert bodies == {*REQUESTS, tei.InvocationRequest}, "which is read as one of the others"
    for model in REQUESTS:
        assert set(model.paths) == {path for body, path in routes if body is model}


@pytest.mark.parametrize("model", REQUESTS)
def test_a_field_of_another_route_is_refused_by_its_name(model: type[RequestBody]) -> None:
    foreign = known_fields() - set(model.model_fields) - UNUSED
    assert foreign
    for name in foreign:
        assert refused(model, body_of(model, **{name: STRANGE})).startswith(
            f"`{name}` is not a field of this route; "
        )


@pytest.mark.parametrize("model", REQUESTS)
def test_a_field_in_camel_case_is_refused_with_its_name_here(model: type[RequestBody]) -> None:
    message = refused(model, body_of(model, inputType="query"))
    assert message.startswith("`inputType` is not a field of this route; ")


@pytest.mark.parametrize("model", REQUESTS)
def test_null_harmless_values_and_fields_that_no_api_has_are_ignored(model: type[RequestBody]) -> None:
    want = read_json(model, body_of(model))
    for name, field in find_foreign_fields(model).items():
        for value in (None, *field.harmless):
            assert read_json(model, body_of(model, **{name: value})) == want, name
    for name in (*UNUSED - set(model.model_fields), "unheard_of"):
        assert read_json(model, body_of(model, **{name: STRANGE})) == want, name


def test_a_harmless_value_changes_nothing_where_the_field_works() -> None:
    harmless = {name: values for concept in CONCEPTS for name, values in concept.items()}
    for name, values in harmless.items():
        cases = [case for routes in TABLE.values() for case in routes.cases.get(name, ())]
        without_effect = [case.value for case in cases if case.effect is Effect.SAME]
        assert not cases or all(value in without_effect for value in values), name


def test_numbers_are_not_taken_for_the_truth_values_that_equal_them() -> None:
    with pytest.raises(WrongShape, match="`late_chunking` is not a field"):
        read_json(tei.EmbedRequest, body_of(tei.EmbedRequest, late_chunking=0))


ADVICE = [
    (tei.EmbedRequest, "normalized", "use `normalize`"),
    (tei.EmbedRequest, "output_dimensionality", "use `dimensions`"),
    (tei.EmbedRequest, "instruction", "use `prompt`"),
    (tei.EmbedRequest, "late_chunking", "it works on /v1/embeddings"),
    (tei.EmbedRequest, "encoding_format", "it works on /v1/embeddings"),
    (tei.EmbedRequest, "overflow", "it works on /v1/embeddings, /v1/encode"),
    (tei.EmbedRequest, "parameters", "write its members beside the inputs"),
    (openai.EmbeddingRequest, "extra_body", "write its members beside the inputs"),
    (tei.EmbedRequest, "outputDimension", "use `dimensions`"),
    (tei.EmbedRequest, "promptName", "use `prompt_name`"),
    (tei.EmbedTokensRequest, "embed_dtype", "use `embedding_type` on /v1/embeddings"),
    (openai.EmbeddingRequest, "inputs", "use `input`"),
    (openai.EmbeddingRequest, "images", "no route does what it asks for"),
    (tei.VertexRequest, "normalize", "put it into the instances, or into `parameters`"),
]


@pytest.mark.parametrize(("model", "name", "advice"), ADVICE)
def test_the_refusal_says_what_to_do_instead(model: type[RequestBody], name: str, advice: str) -> None:
    assert (
        refused(model, body_of(model, **{name: STRANGE}))
        == f"`{name}` is not a field of this route; {advice}"
    )


async def test_an_instance_of_vertex_has_its_own_fields_and_else_those_of_all() -> None:
    instances = [
        {"inputs": "hello"},
        {"inputs": "hello", "dimensions": 2},
        {"inputs": "hello", "dimensions": None},
    ]
    async with serve_in_process(card=build_card()) as server:
        answer = await server.client.post(
            "/vertex", json={"instances": instances, "parameters": {"dimensions": 4}}
        )
    assert [len(vectors[0]) for vectors in answer.json()["predictions"]] == [4, 2, 4]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/embed", {"inputs": "hello", "late_chunking": True}, "`late_chunking`"),
    ("/embed_all", {"inputs": "hello", "normalize": True}, "`normalize`"),
    ("/v1/embeddings", {"input": "hello", "instruction": "find"}, "`instruction`"),
    ("/v2/embed", {"texts": ["hello"], "dimensions": 8}, "`dimensions`"),
    ("/v1/encode", {"inputs": "hello", "embedding_types": ["int8"]}, "`embedding_types`"),
    ("/v1/score", {"query": "hello", "documents": ["world"], "top_n": 1}, "`top_n`"),
    ("/", {"inputs": "hello", "parameters": {"overflow": "chunk"}}, "`overflow`"),
    ("/invocations", {"inputs": "hello", "overflow": "chunk"}, "`overflow`"),
    ("/vertex", {"instances": [{"inputs": "hello", "overflow": "chunk"}]}, "instance 0: `overflow`"),
    (
        "/vertex",
        {"instances": [{"inputs": "hello", "parameters": {"truncate": True}}]},
        "instance 0: `parameters`",
    ),
    (
        "/similarity",
        {
            "inputs": {"source_sentence": "a", "sentences": ["b"]},
            "parameters": {"dimensions": 8},
        },
        "`parameters.dimensions`",
    ),
]


@pytest.mark.parametrize(("path", "body", "named"), REFUSED)
async def test_a_route_refuses_a_field_of_another_in_its_dialect(
    path: str, body: dict[str, Any], named: str
) -> None:
    async with serve_in_process(card=build_card()) as server:
        answer = await server.client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    assert f"{named} is not a field of this route" in json.dumps(answer.json())
