"""Each optional field of each route with each value of the table: its status, and whether the numbers are others."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from embedserve_runtime.api.schemas import tei
from embedserve_runtime.api.schemas.base import ApiModel
from embedserve_runtime.model.heads.description import ScoreFunction
from tests.runtime.api.bodies import MINIMAL, request_models
from tests.runtime.api.fields import TABLE, Case, Effect, RouteFields, optional_fields
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_models import build_card, build_classifier_card, build_splade_card

SERVERS: dict[str, Any] = {
    "dense": build_card(
        dimensions=16, prompts={"query": "query: ", "document": "passage: ", "clustering": "list of "}
    ),
    "sparse": build_splade_card(),
    "reranker": build_classifier_card("LABEL_0", scores=ScoreFunction.SIGMOID),
    "classifier": build_classifier_card("bad", "fine", "good"),
}
# They have no optional field: an operator's body, and instances that are bodies of other routes.
WITHOUT_FIELDS = [model for model in MINIMAL if not any(optional_fields(model))]
# What tells one answer from another and is no number of the model.
CHANGING = {"usage", "meta", "token_counts"}

CASES = [
    pytest.param(routes, path, name, case, id=f"{path} {name}={case.value!r}"[:80])
    for routes in TABLE.values()
    for path in routes.paths
    for name, cases in routes.cases.items()
    for case in cases
]


def test_every_body_of_the_api_is_in_the_table() -> None:
    bodies = {model for model in request_models() if model in MINIMAL or model is tei.InvocationRequest}
    assert bodies == {*TABLE, *WITHOUT_FIELDS}


@pytest.mark.parametrize("model", TABLE)
def test_every_optional_field_has_values_in_the_table(model: type[ApiModel]) -> None:
    assert {name for name, _ in optional_fields(model)} == set(TABLE[model].cases)


@pytest.mark.parametrize(("routes", "path", "name", "case"), CASES)
async def test_a_value_has_its_effect(routes: RouteFields, path: str, name: str, case: Case) -> None:
    base = {**routes.base, **case.beside}
    async with serve_in_process(card=SERVERS[case.server or routes.server]) as server:
        answer = await server.client.post(path, json=with_value(base, name, case.value))
        if case.effect is None:
            assert answer.status_code == 422, answer.text
            named = name.removeprefix("parameters.")
            assert is_named(named, answer.text), answer.text
            return
        assert answer.status_code == 200, answer.text
        without = await answer_without(server, path, base)
    got, want = answer.json(), without
    if case.effect is Effect.SAME:
        assert stripped(got) == stripped(want)
    elif case.effect is Effect.FORM:
        assert stripped(got) != stripped(want)
        np.testing.assert_allclose(numbers(got), numbers(want), rtol=1e-5)
    else:
        assert numbers(got) != numbers(want)


async def answer_without(server: InProcessServer, path: str, base: Mapping[str, Any]) -> Any:
    """The answer to the body without the field; of platforms, whose only field it is, that to another input."""
    answer = await server.client.post(path, json=base or {"inputs": "world"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def with_value(base: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A body with a value at a path."""
    first, dot, remainder = name.partition(".")
    return {**base, first: with_value(base.get(first, {}), remainder, value) if dot else value}


def is_named(name: str, text: str) -> bool:
    """Return whether an error names the field; what cannot be cut is told by the input and the field that allows it,
    and a prompt in TEI's words."""
    prompt = name.endswith("prompt_name") and "prompt name 'nope' does not exist" in text
    cut = name in ("truncation", "overflow") and "set `truncate` to true" in text
    return f"`{name}" in text or f".{name.rpartition('.')[2]}`" in text or prompt or cut


def stripped(content: Any) -> Any:
    """The content without what is different in each answer."""
    if isinstance(content, dict):
        stable = {name: value for name, value in content.items() if name not in CHANGING}
        return {
            name: stripped(value) for name, value in stable.items() if name != "id" or isinstance(value, int)
        }
    return [stripped(value) for value in content] if isinstance(content, list) else content


def numbers(content: Any) -> list[Any]:
    """All numbers of an answer in their order; base64 of float32 is read, other texts are left out."""
    match content:
        case dict():
            return [
                number
                for name, value in content.items()
                if name not in {*CHANGING, "tokens", "sparse_map", "text", "document", "encoding", "dtype"}
                for number in numbers(value)
            ]
        case [*items]:
            return [number for item in items for number in numbers(item)]
        case str() if len(content) >= 80 and content.endswith("="):
            return [*map(float, np.frombuffer(base64.b64decode(content), "<f4"))]
        case float():
            return [float(np.float32(content))]
        case bool() | str() | None:
            return []
        case _:
            return [content]
