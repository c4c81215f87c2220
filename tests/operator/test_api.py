"""The CRD: made from the types, up to date, and no rule only in one of the two languages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from embedserve_operator.api import crd
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.observe import problems_in_words
from tests.operator.builders import hub_spec

ROOT = Path(__file__).parents[2]
FILE_NAME = "embedserve.dev_embeddingservices.yaml"
REFUSED_BY_THE_API_SERVER = {"$ref", "$defs", "const", "title", "discriminator", "patternProperties"}


def _schemas(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _schemas(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from _schemas(node[key], f"{path}[]")


def _all_schemas() -> list[tuple[str, dict[str, Any]]]:
    definition = crd.custom_resource_definition()
    return list(_schemas(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


def test_the_definition_in_crds_is_up_to_date() -> None:
    assert (ROOT / "crds" / FILE_NAME).read_text(encoding="utf-8") == crd.as_yaml(), "run `make crds`"


def test_the_definition_in_the_chart_is_up_to_date() -> None:
    path = ROOT / "charts" / "embedserve" / "templates" / "crds" / FILE_NAME
    assert path.read_text(encoding="utf-8") == crd.as_chart_template(), "run `make crds`"


def test_the_schema_is_structural() -> None:
    for path, schema in _all_schemas():
        assert not REFUSED_BY_THE_API_SERVER & schema.keys(), path
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert not (schema.get("additionalProperties") and schema.get("properties")), path


def test_every_field_of_spec_and_status_is_explained() -> None:
    unexplained = [
        path
        for path, schema in _all_schemas()
        if path.startswith((".spec", ".status")) and "[]" not in path and not schema.get("description")
    ]
    assert unexplained == []


def test_a_resource_that_nobody_has_looked_at_does_not_count_as_current() -> None:
    status = dict(_all_schemas())[".status"]
    assert status["default"] == {"observedGeneration": -1}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"model": {"source": {}}}, "give exactly one source", id="no source"),
        pytest.param(
            {"model": {"source": {"huggingFace": {"repo": "a/b"}, "volume": {"claimName": "c"}}}},
            "give exactly one source",
            id="two sources",
        ),
        pytest.param(hub_spec("https://huggingface.co/a/b"), "repo must be OWNER/NAME", id="an URL as repo"),
        pytest.param(hub_spec(batching={"maxBatchTokens": 0}), "leave it out to let", id="a budget of zero"),
        pytest.param(hub_spec(batching={"maxQueueTokens": -1}), "must be between 1", id="a negative queue"),
        pytest.param(
            {"model": {"source": {"volume": {"claimName": "c", "path": "../x"}}}},
            "must not contain '..'",
            id="a path that leaves the volume",
        ),
        pytest.param(
            hub_spec(resources={"limits": {"cpu": "-1"}}), "quantity of zero or more", id="negative"
        ),
        pytest.param(hub_spec(resources={"limits": {"cpu": "lots"}}), "quantity of zero", id="no quantity"),
        pytest.param(hub_spec(model={"pooling": "median"}), "'auto', 'cls', 'mean'", id="unknown pooling"),
    ],
)
def test_a_wrong_spec_is_refused_with_words_that_help(spec: dict[str, Any], want: str) -> None:
    with pytest.raises(ValidationError) as caught:
        EmbeddingServiceSpec.model_validate(spec)
    assert want in problems_in_words(caught.value)


def test_a_spec_survives_the_way_through_the_types() -> None:
    spec = hub_spec(
        model={"pooling": "cls", "dimensions": 64},
        hardware={"class": "cpu"},
        resources={"limits": {"cpu": 1, "memory": "1Gi"}},
        prompts={"query": "q: "},
        replicas=2,
        suspend=False,
    )
    parsed = EmbeddingServiceSpec.model_validate(spec)
    dumped = parsed.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    assert dumped == spec
