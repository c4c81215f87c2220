"""Tiny random models as sentence-transformers saves them, and the same folder run by us."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import BertConfig, PreTrainedModel

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import TokenSequence
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.heads.head_runner import dense_of
from tests.support.models import tiny
from tests.support.tokenizers import CUT_VOCABULARY, with_cut_tokenizer

TEXTS = [
    "a text of some words, with signs!",
    "one",
    "the same words, the same signs " * 9,
    "Ünïcode and MORE",
]
CUT = TruncationRules(truncate=True)


def bert(folder: Path, model: type[PreTrainedModel], **settings: object) -> Path:
    """A random BERT with the beginning of MiniLM's vocabulary, without modules."""
    config = BertConfig(
        **(
            {
                "vocab_size": CUT_VOCABULARY,
                "hidden_size": 24,
                "num_hidden_layers": 1,
                "num_attention_heads": 3,
                "intermediate_size": 30,
                "max_position_embeddings": 64,
            }
            | settings
        )
    )
    tiny(folder, model, config)
    return with_cut_tokenizer(folder)


def embed(runner: Runner, texts: Sequence[str], prompt_name: str | None = None) -> FloatArray:
    """Embed texts as the service does: prompt, tokens, pooling, cut, normalize."""
    return finished(runner.card, dense_of(runner, tokens_of(runner.card, texts, prompt_name)))


def tokens_of(
    card: ModelCard, texts: Sequence[str], prompt_name: str | None = None, *, query: bool = False
) -> list[TokenSequence]:
    """query: for the way of queries, of a model that has one."""
    tokenizer, way = TextTokenizer.from_card(card), card
    if query:
        assert card.query is not None
        tokenizer, way = tokenizer.queries, card.query.card
    name = prompt_name or card.default_prompt
    prompt = "" if name is None else card.prompts[name]
    pool_start = 0 if way.pipeline.include_prompt else tokenizer.count_prompt_tokens(prompt)
    ids = tokenizer.encode(texts, prompt, TruncationRules(True, card.tokenizer.truncation_side))
    return [TokenSequence(sequence, pool_start=pool_start, is_query_role=query) for sequence in ids]


def finished(card: ModelCard, vectors: FloatArray) -> FloatArray:
    """card: of the way that the texts took."""
    vectors = vectors[:, : card.pipeline.dimensions]
    return np.ascontiguousarray(normalize(vectors) if card.pipeline.normalize else vectors)


def write_modules(folder: Path, **pooling: object) -> None:
    """Write modules.json with Transformer and Pooling, as sentence-transformers does. pooling: keys of its file."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
