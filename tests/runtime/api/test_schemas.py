"""The bodies of the API as types: what they take, what they refuse and with which words, and what OpenAPI shows."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas import cohere, messages, native, openai, probes, ranking, score, tei
from embedserve_runtime.api.schemas.base import ApiModel, to_json
from embedserve_runtime.api.schemas.parsing import read_json, read_python
from embedserve_runtime.heads.quantization import OutputDtype
from tests.runtime.api.bodies import MINIMAL, SPACE, body_of, refused, request_models

MODULES: tuple[ModuleType, ...] = (cohere, messages, native, openai, probes, ranking, score, tei)
MODELS = [
    member
    for module in MODULES
    for member in vars(module).values()
    if inspect.isclass(member) and issubclass(member, ApiModel) and member.__module__ == module.__name__
]
OPTIONAL_FIELDS = [
    (model, name)
    for model in request_models()
    for name, field in model.model_fields.items()
    if not field.is_required()
]


@pytest.mark.parametrize("model", MINIMAL)
def test_the_least_body_is_taken_and_unknown_fields_are_ignored(model: type[ApiModel]) -> None:
    assert read_json(model, body_of(model)) == read_json(model, body_of(model, unheard_of={"a": [1.5, None]}))


@pytest.mark.parametrize(
    ("model", "field"), [(model, field) for model in MINIMAL for field in MINIMAL[model]]
)
def test_what_a_body_needs_is_named_where_it_is_missing(model: type[ApiModel], field: str) -> None:
    body = {name: value for name, value in MINIMAL[model].items() if name != field}
    assert refused(model, json.dumps(body).encode()) == f"`{field}` is missing"


def test_the_bodies_of_all_routes_are_walked() -> None:
    assert set(MINIMAL) < set(request_models())


@pytest.mark.parametrize(("model", "field"), OPTIONAL_FIELDS)
def test_null_is_the_same_as_leaving_an_optional_field_out(model: type[ApiModel], field: str) -> None:
    schema = model.model_json_schema()
    least = {name: schema["properties"][name]["examples"][0] for name in schema.get("required", ())}
    assert read_json(model, json.dumps({**least, field: None}).encode()) == read_json(
        model, json.dumps(least).encode()
    )


@pytest.mark.parametrize(
    ("model", "field"), [(model, field) for model in MINIMAL for field in MINIMAL[model] if MINIMAL[model]]
)
def test_null_is_refused_where_a_field_is_needed(model: type[ApiModel], field: str) -> None:
    refusal = refused(model, body_of(model, **{field: None}))
    assert refusal.startswith(f"`{field}` must be ")
    assert refusal.endswith("(got null)")


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (tei.EmbedRequest, "inputs", ["a", [1, 2], 3]),
        (tei.EmbedRequest, "inputs", []),
        (tei.EmbedRequest, "inputs", "\0 é 😀"),
        (tei.EmbedRequest, "dimensions", 10**30),
        (tei.PredictRequest, "inputs", ["a", ["b", "c"], []]),
        (tei.TokenizeRequest, "inputs", ["a", "b"]),
        (tei.DecodeRequest, "ids", [1, [2, 3]]),
        (tei.VertexRequest, "instances", [1, None, "a", {"inputs": ["b"]}]),
        (cohere.CohereEmbedRequest, "embedding_types", ["float", "base64"]),
        (native.EncodeRequest, "ranges", "stored"),
        (native.EncodeRequest, "spans", [[[0, 1], [1, 2]], []]),
        (native.EncodeRequest, "threshold", 0),
        (native.EncodeRequest, "pool_factor", 1.5),
        (native.EncodeRequest, "dtype", OutputDtype.UBINARY),
    ],
)
def test_values_are_taken_as_they_are(model: type[ApiModel], field: str, value: object) -> None:
    content = body_of(model, **{field: value})
    assert getattr(read_json(model, content), field) == value
    assert read_python(model, json.loads(content)) == read_json(model, content)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["inputs", "texts"]), inner),
    max_leaves=20,
)


@given(model=st.sampled_from(list(MINIMAL)), data=st.data())
def test_any_json_is_taken_or_refused_with_a_bounded_message(
    model: type[ApiModel], data: st.DataObject
) -> None:
    body = data.draw(
        JSON_VALUES | st.fixed_dictionaries({}, optional=dict.fromkeys(model.model_fields, JSON_VALUES))
    )
    content = json.dumps(body).encode()
    in_json = _outcome(lambda: read_json(model, content))
    assert len(in_json) < 600 or in_json.startswith("{")
    assert _outcome(lambda: read_python(model, body)) == in_json.replace("the body must", "the value must")


def _outcome(parse: Callable[[], ApiModel]) -> str:
    """Return what is taken, as JSON; else why it is not."""
    try:
        return to_json(parse()).decode()
    except WrongShape as error:
        return error.message


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_openapi_shows_every_model_and_field_with_words_and_an_example(
    model: type[ApiModel], mode: Any
) -> None:
    schema = model.model_json_schema(mode=mode)
    assert schema["description"][0].isupper()
    assert schema["description"].endswith(".")
    for name, shown in schema["properties"].items():
        # Words that are those of the referenced model are there only.
        referenced = schema["$defs"][shown["$ref"].rpartition("/")[2]] if "$ref" in shown else {}
        field = {**referenced, **shown}
        assert field["description"].endswith("."), name
        assert field["examples"], name


@pytest.mark.parametrize("model", MODELS)
def test_examples_are_taken_by_their_models(model: type[ApiModel]) -> None:
    schema = model.model_json_schema()
    for name, field in schema["properties"].items():
        whole = {field_name: each["examples"][0] for field_name, each in schema["properties"].items()}
        for shown in field["examples"]:
            read_json(model, json.dumps({**whole, name: shown}).encode())


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (cohere.CohereEmbeddings(floats=[[0.5, 1.0]], int8=[[1]]), '{"float":[[0.5,1.0]],"int8":[[1]]}'),
        (ranking.RerankItem(index=1, score=0.5), '{"index":1,"score":0.5}'),
        (
            ranking.RerankItem(index=1, score=0.5, text="é/\u2028"),
            '{"index":1,"score":0.5,"text":"é/\u2028"}',
        ),
        (
            tei.TokenItem(id=101, text="[CLS]", special=True, start=None, stop=None),
            '{"id":101,"text":"[CLS]","special":true,"start":null,"stop":null}',
        ),
        (
            tei.ModelType(embedding=tei.EmbeddingModelType(pooling="mean")),
            '{"embedding":{"pooling":"mean"}}',
        ),
        (
            openai.OpenAIModelList(data=[openai.OpenAIModel(id="m", created=1)]),
            '{"data":[{"id":"m","created":1,"object":"model","owned_by":"embedserve"}],"object":"list"}',
        ),
        (
            native.EncodeResponse(
                model="m",
                vector_space=SPACE,
                dtype=OutputDtype.INT8,
                encoding="json",
                token_counts=[2],
                sparse=[native.EncodedSparse(indices=[1], values=[0.5])],
            ),
            f'{{"model":"m","vector_space":"{SPACE}","dtype":"int8","encoding":"json","token_counts":[2],'
            '"sparse":[{"indices":[1],"values":[0.5]}]}',
        ),
        (
            score.ScoreResponse(
                model="m",
                vector_space=SPACE,
                scores=[0.5],
                measures=score.ScoreMeasures(dense=[0.5]),
                weights=score.ScoreWeights(dense=1.0),
            ),
            f'{{"model":"m","vector_space":"{SPACE}","scores":[0.5],"measures":{{"dense":[0.5]}},'
            '"weights":{"dense":1.0}}',
        ),
    ],
)
def test_answers_are_written_in_order_without_blanks_and_without_what_is_left_out(
    answer: ApiModel, content: str
) -> None:
    assert to_json(answer).decode() == content
    assert read_json(type(answer), content.encode()) == answer
