"""No tests: the table of the optional fields of each route, with values of each and what they do to the answer.

The fields come from the schemas. One that has no row here fails `test_fields`, and so does a row without a field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import isclass
from typing import Any, get_args

from embedserve_runtime.api.schemas import cohere, native, openai, ranking, score, tei
from embedserve_runtime.api.schemas.base import ApiModel
from embedserve_runtime.api.schemas.compatibility import FieldNote, FieldSupport
from embedserve_runtime.api.schemas.known_fields import (
    CONCEPTS,
    REQUESTS,
    find_foreign_fields,
    find_support,
)


class Effect(StrEnum):
    """The effect of a value on the answer that the body has without it."""

    SAME = "the same answer"
    FORM = "the same numbers in another form"
    NUMBERS = "other numbers"


SAME, FORM, NUMBERS = Effect


@dataclass(frozen=True)
class Case:
    """A value of a field. effect: None where it is refused with 422, by the field's name.

    beside: other fields of the body, with and without the value. server: another one than the route's.
    """

    value: Any
    effect: Effect | None
    beside: Mapping[str, Any] = field(default_factory=dict)
    server: str = ""


@dataclass(frozen=True)
class RouteFields:
    """The routes of one body. base: the body without optional fields. dialect: whose the fields without a note are."""

    paths: tuple[str, ...]
    dialect: str
    base: Mapping[str, Any]
    cases: Mapping[str, tuple[Case, ...]]
    server: str = "dense"


def refused(*values: Any, **beside: Any) -> tuple[Case, ...]:
    return tuple(Case(value, None, beside) for value in values)


# The model takes 32 tokens.
LONG = "world " + "hello " * 40 + "vector"
DOCUMENTS = ["a vector", LONG, "list of numbers"]

TYPE = (Case("query", NUMBERS), Case("passage", NUMBERS), Case("text-matching", SAME), *refused("qurey", 5))
NAME = (Case("clustering", NUMBERS), *refused("nope", 5))
CUT = (Case(True, SAME), *refused(False, "maybe"))
SIDE = (Case("Left", NUMBERS), Case("Right", SAME), Case("right", SAME), *refused("up"))
MODEL = (Case("any", SAME), Case("tiny:query", NUMBERS), *refused("tiny:qurey", 5))
TEXT_PROMPT = (
    Case("list of ", NUMBERS),
    *refused(5),
    *refused("a", prompt_name="query"),
    *refused("a", input_type="query"),
    *refused("a", task="passage"),
    *refused("a", model="tiny:query"),
)
TYPED = {"model": MODEL, "input_type": TYPE, "task": TYPE, "prompt_name": NAME, "prompt": TEXT_PROMPT}
PLAIN_MODEL = (Case("any", SAME), Case("tiny-large", SAME), *refused("tiny:query", 5))
PARAMETERS = (
    Case({"dimensions": 8}, NUMBERS),
    Case({"unheard_of": 5}, SAME),
    *refused(5),
)
NORMALIZE = (Case(False, NUMBERS), Case(True, SAME), *refused("no"))
DIMENSIONS = (Case(8, NUMBERS), Case(16, SAME), *refused(0, 17))
KIND = (
    Case("int8", NUMBERS),
    Case("ubinary", NUMBERS),
    Case("base64", FORM),
    Case("float", SAME),
    *refused("f"),
)
OVERFLOW = (
    Case("chunk", NUMBERS),
    Case("chunk-mean", NUMBERS),
    Case("truncate", SAME),
    *refused("error", "halve"),
    *refused("chunk", truncate=True),
)
UNUSED = (Case("anything", SAME), *refused(5))
PRIORITY = (Case(5, SAME), *refused("high"))
RAW = (Case(True, NUMBERS), Case(False, SAME), *refused("yes"))
BEST = (Case(2, NUMBERS), Case(3, SAME), *refused(0))
SHOWN = (Case(True, FORM), Case(False, SAME), *refused("yes"))
YES = Case(True, SAME)

TOKENS = RouteFields(
    ("/embed_all",), "TEI", {"inputs": [LONG]}, {**TYPED, "truncate": CUT, "truncation_direction": SIDE}
)
RANKING = {
    "texts": refused(["a"], documents=DOCUMENTS),
    "documents": refused(["a"], "a"),
    "model": PLAIN_MODEL,
    "top_n": BEST,
    "top_k": (*BEST, *refused(1, top_n=2)),
    "return_documents": SHOWN,
    "return_text": SHOWN,
    "raw_scores": RAW,
    "truncate": CUT,
    "truncation": (YES, *refused(False, "maybe"), *refused(False, truncate=True)),
    "truncation_direction": SIDE,
    "truncation_side": (
        Case("left", NUMBERS),
        Case("right", SAME),
        *refused("Left"),
        *refused("left", truncation_direction="Right"),
    ),
    "truncate_prompt_tokens": (Case(-1, SAME), *refused(4)),
    "max_tokens_per_query": (Case(1, NUMBERS), Case(9, SAME), *refused(0)),
    "max_tokens_per_doc": (Case(1, NUMBERS), *refused(0)),
    "max_chunks_per_doc": (Case(1, SAME), *refused(3)),
    "rank_fields": (
        Case(["text"], SAME),
        Case(["title"], NUMBERS, {"texts": None, "documents": [{"text": "a", "title": "vector"}, "world"]}),
        *refused("text"),
    ),
    "instruction": refused("rank these", 5),
    "priority": PRIORITY,
}


def sparse(value: Any, effect: Effect) -> Case:
    return Case(value, effect, {"outputs": ["sparse"]}, "sparse")


TABLE: Mapping[type[ApiModel], RouteFields] = {
    tei.EmbedRequest: RouteFields(
        ("/embed",),
        "TEI",
        {"inputs": [LONG, "hello"]},
        {
            **TYPED,
            "truncate": CUT,
            "truncation_direction": SIDE,
            "normalize": NORMALIZE,
            "dimensions": DIMENSIONS,
        },
    ),
    tei.EmbedTokensRequest: TOKENS,
    tei.PredictRequest: RouteFields(
        ("/predict",),
        "TEI",
        {"inputs": LONG},
        {"model": PLAIN_MODEL, "truncate": CUT, "truncation_direction": SIDE, "raw_scores": RAW},
        "classifier",
    ),
    tei.SimilarityRequest: RouteFields(
        ("/similarity",),
        "TEI",
        {"inputs": {"source_sentence": "a vector", "sentences": DOCUMENTS}},
        {
            **TOKENS.cases,
            "parameters": (
                Case({}, SAME),
                *refused(5),
                *refused({"input_type": "document"}, input_type="query"),
            ),
            **{f"parameters.{name}": cases for name, cases in TOKENS.cases.items()},
        },
    ),
    tei.TokenizeRequest: RouteFields(
        ("/tokenize",),
        "TEI",
        {"inputs": ["hello"]},
        {**TYPED, "add_special_tokens": (Case(False, NUMBERS), YES, *refused("no"))},
    ),
    tei.DecodeRequest: RouteFields(
        ("/decode",),
        "TEI",
        {"ids": [2, 9, 3]},
        {
            "skip_special_tokens": (Case(False, FORM), YES, *refused("no")),
            "model": (Case("any", SAME), Case("tiny:query", SAME), *refused("tiny:qurey", 5)),
            "input_type": (
                Case("query", SAME),
                Case("document", SAME),
                *refused("qurey"),
                *refused("query", model="tiny:document"),
            ),
        },
    ),
    openai.EmbeddingRequest: RouteFields(
        ("/v1/embeddings",),
        "OpenAI",
        {"input": [LONG, "hello"]},
        {
            **TYPED,
            "encoding_format": (Case("base64", FORM), Case("float", SAME), *refused("hex")),
            "dimensions": DIMENSIONS,
            "user": UNUSED,
            "output_dimension": (*DIMENSIONS, *refused(8, dimensions=9)),
            "embedding_type": (
                *KIND,
                Case(["int8"], NUMBERS),
                Case(["float"], SAME),
                *refused([], ["float", "int8"]),
                *refused("int8", output_dtype="uint8"),
                *refused("base64", ["base64"], encoding_format="float"),
            ),
            "embedding_types": (Case(["int8"], NUMBERS), Case(["float"], SAME), *refused("int8", [])),
            "output_dtype": (*KIND, *refused("base64", encoding_format="float")),
            "truncate": (
                *CUT,
                Case("END", SAME),
                Case("START", NUMBERS),
                *refused("NONE", "MIDDLE"),
            ),
            "truncation": (YES, *refused(False, "maybe"), *refused(False, truncate="END")),
            "truncate_prompt_tokens": (
                Case(3, NUMBERS),
                Case(-1, SAME),
                Case(32, SAME),
                *refused(-2),
                *refused(3, truncate="NONE"),
            ),
            "overflow": (*OVERFLOW, *refused("chunk", late_chunking=True)),
            "late_chunking": (
                Case(True, NUMBERS, {"input": ["hello", "a vector"]}),
                Case(False, SAME),
                *refused(True, "yes"),
            ),
            "normalized": NORMALIZE,
            "normalize": (*NORMALIZE, *refused(True, normalized=False)),
            "return_multivector": (Case(False, SAME), *refused(True)),
            "add_special_tokens": (YES, *refused(False)),
            "modality": (
                Case("text", SAME),
                Case(["text", "text"], SAME),
                *refused("image", ["text", "image"]),
            ),
            "messages": refused([{"role": "user", "content": "hello"}]),
        },
    ),
    cohere.CohereEmbedRequest: RouteFields(
        ("/v2/embed",),
        "Cohere",
        {"texts": [LONG, "hello"]},
        {
            **TYPED,
            "texts": refused("a"),
            "inputs": refused([{"content": [{"type": "text", "text": "hello"}]}]),
            "images": (Case([], SAME), *refused("a")),
            "priority": PRIORITY,
            "embedding_types": (
                Case(["int8"], NUMBERS),
                Case(["base64"], FORM),
                Case(["float"], SAME),
                *refused(["hex"]),
            ),
            "output_dimension": DIMENSIONS,
            "max_tokens": (Case(4, NUMBERS), Case(512, SAME), *refused(0)),
            "truncate": (Case("START", NUMBERS), Case("END", SAME), *refused("NONE", "MIDDLE")),
        },
    ),
    ranking.RerankRequest: RouteFields(
        ("/rerank", "/v1/rerank", "/v2/rerank"),
        "Cohere",
        {"query": "hello world", "texts": DOCUMENTS},
        RANKING,
        "reranker",
    ),
    native.EncodeRequest: RouteFields(
        ("/v1/encode",),
        "Embedserve",
        {"inputs": [LONG, "hello"]},
        {
            **TYPED,
            "outputs": (Case(["dense"], SAME), Case(["hidden"], NUMBERS), *refused([], ["nope"])),
            "top_k": (sparse(2, NUMBERS), *refused(0, 2)),
            "threshold": (sparse(0.2, NUMBERS), Case(0, SAME), *refused(-1, 0.2)),
            "sparse_tokens": (sparse(True, FORM), sparse(False, SAME), *refused("yes", True)),
            "sparse_map": (sparse(True, FORM), sparse(False, SAME), *refused("yes", True)),
            "truncate": CUT,
            "truncation_direction": SIDE,
            "overflow": (*OVERFLOW, *refused("chunk", outputs=["hidden"])),
            "dimensions": (*DIMENSIONS, *refused(8, outputs=["hidden"])),
            "normalize": (*NORMALIZE, *refused(False, outputs=["hidden"])),
            "dtype": (Case("float32", SAME), Case("int8", NUMBERS), *refused("float64")),
            "encoding": (Case("base64", FORM), Case("json", SAME), *refused("hex")),
            "ranges": (
                Case({"min": [-1.0] * 16, "max": [1.0] * 16}, NUMBERS, {"dtype": "int8"}),
                *refused({"min": [], "max": []}, 5),
            ),
            "spans": (Case([[[0, 5]], [[0, 5]]], NUMBERS), *refused([[[0, 5]]])),
            "pool_factor": refused(2, 0.5),
        },
    ),
    score.ScoreRequest: RouteFields(
        ("/v1/score",),
        "Embedserve",
        {"query": "hello world", "documents": DOCUMENTS},
        {
            "model": (
                Case("any", SAME),
                Case("tiny:clustering", NUMBERS),
                *refused("tiny:qurey", 5),
                *refused("tiny:clustering", task="classification"),
            ),
            "weights": (Case({"dense": 1.0}, SAME), *refused({"colbert": 1.0}, 5)),
            **{f"weights.{name}": refused(-1) for name in score.ScoreWeights.model_fields},
            "divide_by_weights": (Case(False, NUMBERS, {"weights": {"dense": 2.0}}), YES, *refused("no")),
            # The model of these tests has no adapters, and a prompt for one of the tasks.
            "task": (Case("clustering", NUMBERS), *refused("query", "x", 5)),
            "input_type": (
                Case("clustering", NUMBERS),
                *refused("query", "x", 5),
                *refused("clustering", task="classification"),
            ),
            "query_prompt_name": NAME,
            "document_prompt_name": NAME,
            "truncate": CUT,
            "truncation_direction": SIDE,
        },
    ),
    tei.InvocationRequest: RouteFields(
        ("/", "/invocations"),
        "platforms",
        {"inputs": [LONG]},
        {
            "inputs": (Case("hello", NUMBERS), *refused(5)),
            "parameters": (*PARAMETERS, *refused({"dimensions": 8}, dimensions=9)),
        },
    ),
    tei.VertexRequest: RouteFields(
        ("/vertex",),
        "platforms",
        {"instances": [{"inputs": [LONG]}]},
        {"model": MODEL, "parameters": PARAMETERS},
    ),
}


def optional_fields(model: type[ApiModel], prefix: str = "") -> Iterator[tuple[str, FieldNote | None]]:
    """The optional fields of a body, those of objects in it by their path, each with its note."""
    for name, each in model.model_fields.items():
        if not each.is_required():
            yield prefix + name, next((note for note in each.metadata if isinstance(note, FieldNote)), None)
        for inner in (each.annotation, *get_args(each.annotation)):
            if isclass(inner) and issubclass(inner, ApiModel):
                yield from optional_fields(inner, f"{prefix}{name}.")


def fields_page() -> list[str]:
    """The section of docs/compatibility.md about fields."""
    lines = [
        "## Fields of each route",
        "",
        "The optional fields of each route, the APIs that have them, and what the server does with them: `supported`",
        "(what the API says), `ignored` (the field changes no vector), `refused` (only values that change nothing are",
        "accepted). The last two columns have values that change the result and values that are refused, as tested",
        "with a text that is too long for the model. [Fields of other routes](#fields-of-other-routes) are refused,",
        "fields that no API has are ignored, and null is the same as leaving a field out.",
    ]
    for model, routes in TABLE.items():
        paths = ", ".join(f"`POST {path}`" for path in routes.paths)
        lines += [
            "",
            f"### {paths}",
            "",
            "| field | APIs | | changes the result | is refused |",
            "|---|---|---|---|---|",
        ]
        for name, note in optional_fields(model):
            apis, support = note or FieldNote((routes.dialect,), FieldSupport.SUPPORTED)
            cases = routes.cases[name]
            texts = _shown([case.value for case in cases if case.effect is NUMBERS and not case.beside])
            no = _shown([case.value for case in cases if case.effect is None and not case.beside])
            lines.append(f"| `{name}` | {', '.join(apis)} | {support} | {texts} | {no} |")
    return [*lines, "", *foreign_fields_page()]


def foreign_fields_page() -> list[str]:
    """The section of docs/compatibility.md about each field on the routes of others."""
    heads = [model.paths[0] + " ¹" * (len(model.paths) > 1) for model in REQUESTS]
    lines = [
        "### Fields of other routes",
        "",
        "What each route does with every field that a route here or another server has: `yes` (supported, above),",
        "`ignored`, `refused` (above), or 422, which names the field and what to use instead. The values in the",
        "second column ask for what happens anyway and are ignored, those with ² on some of the routes only. Names in",
        "camel case (`inputType`) are refused alike.",
        "",
        f"| field | ignored values | {' | '.join(f'`{head}`' for head in heads)} |",
        f"|---|---|{'---|' * len(heads)}",
    ]
    for name in sorted(known_fields()):
        foreign = [find_foreign_fields(model).get(name) for model in REQUESTS]
        values = list(dict.fromkeys(_shown([*each.harmless]) for each in foreign if each is not None))
        harmless = values[0] if len(values) == 1 else " or ".join(f"{value} ²" for value in values if value)
        verdicts = [
            "422" if each is not None else find_support(model, name) or FieldSupport.IGNORED
            for model, each in zip(REQUESTS, foreign, strict=True)
        ]
        shown = ["yes" if verdict is FieldSupport.SUPPORTED else f"{verdict}" for verdict in verdicts]
        lines.append(f"| `{name}` | {harmless} | {' | '.join(shown)} |")
    return [
        *lines,
        "",
        *(
            f"¹ and {', '.join(f'`{path}`' for path in model.paths[1:])}"
            for model in REQUESTS
            if len(model.paths) > 1
        ),
    ]


def known_fields() -> set[str]:
    """The fields of all bodies of requests, and those of other servers that mean the same as one of them."""
    return {
        *(name for model in REQUESTS for name in model.model_fields),
        *(name for concept in CONCEPTS for name in concept),
    }


def _shown(values: list[Any]) -> str:
    texts = [json.dumps(value) for value in values]
    return ", ".join(f"`{text}`" for text in texts if len(text) < 24)
