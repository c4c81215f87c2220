"""No tests: the request bodies of all routes, and what reading one says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas import cohere, native, openai, probes, ranking, score, tei
from embedserve_runtime.api.schemas.base import ApiModel
from embedserve_runtime.api.schemas.parsing import read_json

SPACE = "vs2-0123456789abcdef0123"
# What each request needs at least.
MINIMAL: dict[type[ApiModel], dict[str, Any]] = {
    tei.EmbedBody: {"inputs": "a"},
    tei.TokensBody: {"inputs": "a"},
    tei.RerankBody: {"query": "a", "texts": ["b"]},
    tei.PredictBody: {"inputs": "a"},
    tei.SimilarityBody: {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    tei.TokenizeBody: {"inputs": "a"},
    tei.DecodeBody: {"ids": [1]},
    tei.VertexBody: {"instances": []},
    openai.EmbeddingsBody: {"input": "a"},
    cohere.CohereBody: {},
    ranking.RankBody: {"query": "a", "documents": ["b"]},
    native.EncodeBody: {"inputs": "a"},
    score.ScoreBody: {"query": "a", "documents": ["b"]},
    probes.CurrentBody: {"vector_space": SPACE},
}


def body_of(model: type[ApiModel], /, **more: Any) -> bytes:
    return json.dumps({**MINIMAL[model], **more}).encode()


def refused(model: type[ApiModel], content: bytes) -> str:
    with pytest.raises(WrongShape) as failure:
        read_json(model, content)
    return failure.value.message
