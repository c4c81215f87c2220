"""Refuses the fields of a request that its route does not have while another one has, so that none is ignored silently.

The fields that are known are those of all bodies, and those of other servers in `CONCEPTS`. A field that no API knows
is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas.base import RequestBody
from embedserve_runtime.api.schemas.cohere import CohereEmbedRequest
from embedserve_runtime.api.schemas.compatibility import FieldNote, FieldSupport
from embedserve_runtime.api.schemas.native import EncodeRequest
from embedserve_runtime.api.schemas.openai import EmbeddingRequest
from embedserve_runtime.api.schemas.ranking import RerankRequest
from embedserve_runtime.api.schemas.score import ScoreRequest
from embedserve_runtime.api.schemas.tei import (
    DecodeRequest,
    EmbedRequest,
    EmbedTokensRequest,
    PredictRequest,
    SimilarityRequest,
    TokenizeRequest,
    VertexRequest,
)

Values = tuple[object, ...]

REQUESTS: tuple[type[RequestBody], ...] = (
    EmbedRequest,
    EmbedTokensRequest,
    SimilarityRequest,
    EmbeddingRequest,
    CohereEmbedRequest,
    EncodeRequest,
    ScoreRequest,
    RerankRequest,
    PredictRequest,
    TokenizeRequest,
    DecodeRequest,
    VertexRequest,
)
"""The bodies of all routes whose fields are checked."""

_SCALING: Mapping[str, Values] = {
    "normalize": (True,),
    "normalized": (True,),
    "normalize_embeddings": (True,),
}
_TRUNCATION: Mapping[str, Values] = {
    "truncate": (True, "END"),
    "truncation": (True,),
    "auto_truncate": (True,),
}
CONCEPTS: tuple[Mapping[str, Values], ...] = (
    {"input": (), "inputs": (), "texts": (), "documents": ()},
    {"dimensions": (), "output_dimension": (), "output_dimensionality": (), "truncate_dim": ()},
    _SCALING,
    {
        "embedding_type": ("float", ["float"]),
        "embedding_types": (["float"],),
        "output_dtype": ("float",),
        "dtype": ("float32",),
        "embed_dtype": ("float32",),
    },
    {"encoding_format": ("float",), "encoding": ("json",)},
    _TRUNCATION,
    {"truncation_direction": ("Right", "right"), "truncation_side": ("right",)},
    {"truncate_prompt_tokens": (-1,), "max_tokens": (), "max_tokens_per_doc": ()},
    {"overflow": ("truncate",)},
    {"late_chunking": (False,), "spans": ()},
    {"input_type": (), "task": (), "task_type": ()},
    {"prompt": (), "instruction": (), "custom_instruction": ()},
    {"raw_scores": (False,), "use_activation": (True,), "activation": (True,), "softmax": (True,)},
    {"return_documents": (False,), "return_text": (False,)},
    {"add_special_tokens": (True,)},
    {"skip_special_tokens": (True,)},
    {"return_multivector": (False,)},
    {"modality": ("text",)},
    {"images": ([],)},
    {"max_chunks_per_doc": (1,)},
    {"divide_by_weights": (True,)},
    {"sparse_tokens": (False,)},
    {"sparse_map": (False,)},
    {"parameters": ({},), "extra_body": ({},)},
)
"""Fields that mean the same, each with the values that are harmless: those that ask for what happens without it."""

_TOKENS_ARE_NOT_SCALED: Mapping[str, Values] = dict.fromkeys(_SCALING, (False,))
_NOTHING_IS_TRUNCATED: Mapping[str, Values] = {
    **dict.fromkeys(_TRUNCATION, (False,)),
    "truncate_prompt_tokens": (),
    "overflow": ("error",),
}
_HARMLESS_HERE: Mapping[type[RequestBody], Mapping[str, Values]] = {
    EmbedTokensRequest: _TOKENS_ARE_NOT_SCALED,
    # Whether vectors are scaled is up to the model there.
    EncodeRequest: dict.fromkeys(_SCALING, ()),
    ScoreRequest: {**dict.fromkeys(_SCALING, ()), "raw_scores": (True,)},
    TokenizeRequest: _NOTHING_IS_TRUNCATED,
    DecodeRequest: _NOTHING_IS_TRUNCATED,
}
"""Routes on which other values are harmless than those of `CONCEPTS`."""


class ForeignField(NamedTuple):
    """A field that a body does not have. harmless: the values that are ignored. advice: what to do instead."""

    harmless: Values
    advice: str

    def is_harmless(self, value: object) -> bool:
        """Return whether a value asks for what happens anyway; true and 1 are two values."""
        return value is None or any(type(value) is type(one) and value == one for one in self.harmless)


def refuse_foreign_fields(body: BaseModel, prefix: str = "") -> None:
    """Refuse a body for a field that its route does not have, and drop the fields that no API has.

    prefix: the path of an object in the body. Raises WrongShape, naming the field and what to do instead.
    """
    extra = body.__pydantic_extra__
    if not extra or not isinstance(body, RequestBody):
        return
    foreign = find_foreign_fields(type(body))
    for name, value in extra.items():
        field = foreign.get(name)
        if field is not None and not field.is_harmless(value):
            raise WrongShape(f"`{prefix}{name}` is not a field of this route; {field.advice}")
    extra.clear()


@cache
def find_foreign_fields(model: type[RequestBody]) -> Mapping[str, ForeignField]:
    """Find the fields that a body does not have and another one has, but for those that no route does anything with.

    Names are taken in camel case too, in which some clients of Java and JavaScript write them.
    """
    harmless = {name: values for concept in CONCEPTS for name, values in concept.items()}
    harmless |= _HARMLESS_HERE.get(model, {})
    known = dict.fromkeys((*harmless, *(name for request in REQUESTS for name in request.model_fields)))
    found: dict[str, ForeignField] = {}
    for name in known:
        if any(find_support(request, name) is FieldSupport.IGNORED for request in REQUESTS):
            continue
        field = ForeignField(harmless.get(name, ()), _advise(model, name))
        found |= {
            spelling: field for spelling in (name, to_camel(name)) if spelling not in model.model_fields
        }
    return found


def find_support(model: type[RequestBody], name: str) -> FieldSupport | None:
    """Find how far the routes of a body support a field; None where they do not have it."""
    field = model.model_fields.get(name)
    if field is None:
        return None
    notes = (note.support for note in field.metadata if isinstance(note, FieldNote))
    return next(notes, FieldSupport.SUPPORTED)


def _advise(model: type[RequestBody], name: str) -> str:
    """Say what to do instead of sending a field, or one in camel case, to the routes of a body."""
    if model is VertexRequest:
        return "put it into the instances, or into `parameters`"
    if name in ("parameters", "extra_body"):
        return "write its members beside the inputs"
    concept = next((each for each in CONCEPTS if name in each), {})
    names = (name, *(other for other in concept if other != name))
    for other in names:
        if find_support(model, other) is FieldSupport.SUPPORTED:
            return f"use `{other}`"
    for other in names:
        requests = [each for each in REQUESTS if find_support(each, other) is FieldSupport.SUPPORTED]
        if paths := ", ".join(path for request in requests for path in request.paths):
            return f"it works on {paths}" if other == name else f"use `{other}` on {paths}"
    return "no route does what it asks for"
