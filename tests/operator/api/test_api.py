"""The CRD: made from the types, up to date, and no rule only in one of the two languages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from embedserve_operator.api import crd
from embedserve_operator.api.base import describe_problems
from embedserve_operator.api.types import EmbeddingServiceSpec
from tests.operator.bad_specs import BAD, GOOD, Bad
from tests.operator.builders import hub_spec

ROOT = Path(__file__).parents[3]
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
    definition = crd.build_crd()
    return list(_schemas(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


def test_the_definition_in_crds_is_up_to_date() -> None:
    assert (ROOT / "crds" / FILE_NAME).read_text(encoding="utf-8") == crd.format_yaml(), "run `make crds`"


def test_the_definition_in_the_chart_is_up_to_date() -> None:
    path = ROOT / "charts" / "embedserve" / "templates" / "crds" / FILE_NAME
    assert path.read_text(encoding="utf-8") == crd.format_chart_template(), "run `make crds`"


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


OWN_RULES = {name: bad for name, bad in BAD.items() if not bad.by_schema}


@pytest.mark.parametrize("bad", OWN_RULES.values(), ids=list(OWN_RULES))
def test_a_broken_rule_is_told_here_in_the_words_of_the_api_server(bad: Bad) -> None:
    with pytest.raises(ValidationError) as caught:
        EmbeddingServiceSpec.model_validate(bad.spec)
    assert bad.message in describe_problems(caught.value)


SCHEMA_RULES = {name: bad for name, bad in BAD.items() if bad.by_schema}


@pytest.mark.parametrize("bad", SCHEMA_RULES.values(), ids=list(SCHEMA_RULES))
def test_what_the_schema_refuses_is_refused_here_as_well(bad: Bad) -> None:
    with pytest.raises(ValidationError):
        EmbeddingServiceSpec.model_validate(bad.spec)


@pytest.mark.parametrize("spec", GOOD.values(), ids=list(GOOD))
def test_a_right_spec_is_taken(spec: dict[str, Any]) -> None:
    assert EmbeddingServiceSpec.model_validate(spec).as_wire()["model"]


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
