"""Queries and documents of multi-vector models from text to vectors, against sentence-transformers on both engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Module, Normalize
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask
from tokenizers import AddedToken, Tokenizer

from embedserve_runtime.config import load_config
from embedserve_runtime.errors import BatchTooLarge, EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, Tokens
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.token_pooling import pool_for_role, pool_tokens
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.heads.description import TokenPooling
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.service import EmbedQuery, Role
from embedserve_runtime.service.roles import is_query, resolve_prompt
from embedserve_runtime.tokenizing import InputEncoders, TextTokenizer, TruncationRules
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest
from tests.runtime.heads.test_multi_vector import as_pylate, projection, save
from tests.runtime.model.test_card import edit
from tests.support.tolerances import FP32_MAX_ABS_DIFF

QUERIES = [
    "what is it?",
    "why",
    "is a long query cut where the model says so, with its end gone, or not? " * 3,
]
DOCUMENTS = ["a text of some words, with signs!", "one", "the same words, the same signs. " * 12]
ROLES: tuple[Role, Role] = ("query", "document")


@dataclass(frozen=True)
class Kind:
    """modules: behind the projection. change: edits the saved folder."""

    modules: Sequence[Callable[[], Module]] = (MultiVectorMask, lambda: Normalize("token_embeddings"))
    settings: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    change: Callable[[Path], None] = lambda _: None
    pooled: bool = False

    def ordered(self, vectors: FloatArray) -> FloatArray:
        """Clusters stand in no order."""
        return vectors[vectors[:, 0].argsort()] if self.pooled else vectors


def pylate_with_tokens(folder: Path) -> None:
    """Save a model as PyLate trains them: the markers, blank included, are added tokens."""
    as_pylate(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Their ids must have rows: [unused0] and [unused1] give theirs up.
    raw = tokenizer.to_str().replace('"[unused0]":1', '"[Q] ":1').replace('"[unused1]":2', '"[D] ":2')
    tokenizer = Tokenizer.from_str(raw)
    tokenizer.add_tokens([AddedToken("[Q] "), AddedToken("[D] ")])
    tokenizer.save(str(folder / "tokenizer.json"))


def pylate_with_unused(folder: Path) -> None:
    """Save a model as folders of ColBERTv2 have it: markers are words of the vocabulary that no text gives."""
    as_pylate(folder)
    edit(
        folder / "config_sentence_transformers.json",
        query_prefix="[unused0]",
        document_prefix="[unused1]",
        attend_to_expansion_tokens=True,
        prompts={"query": "find: ", "document": ""},
    )


KINDS = {
    "no lengths, no expansion": Kind(modules=()),
    "hidden expansion": Kind(
        settings={"query_expansion": {"strategy": "fixed", "length": 16}, "document_length": 40},
        prompts={"query": "query: ", "document": "doc: "},
    ),
    "seen expansion, a least length": Kind(
        settings={
            "query_expansion": {"strategy": "min", "length": 12, "attend": True, "token": "[SEP]"},
            "query_length": 30,
        },
        prompts={"query": "query: "},
    ),
    "hidden expansion, a least length": Kind(
        settings={"query_expansion": {"strategy": "min", "length": 12}, "query_length": 30}
    ),
    "lengths alone": Kind(settings={"query_length": 9, "document_length": 21}),
    "words skipped on both sides": Kind(
        modules=(
            lambda: Normalize("token_embeddings"),
            lambda: MultiVectorMask(skiplist_words=[",", "?", "."], skiplist_tasks=["query", "document"]),
        )
    ),
    "pooled": Kind(
        modules=(
            lambda: MultiVectorMask(skiplist_words=[","]),
            lambda: Normalize("token_embeddings"),
            lambda: HierarchicalTokenPooling(2.0, num_protected_tokens=2),
        ),
        pooled=True,
    ),
    "pooled queries, not normalized": Kind(
        modules=(
            lambda: Normalize("token_embeddings"),
            lambda: HierarchicalTokenPooling(1.5, normalize_embeddings=False, tasks="query"),
        ),
        pooled=True,
    ),
    "PyLate, markers split": Kind(modules=(), change=as_pylate),
    "PyLate, markers added": Kind(modules=(), change=pylate_with_tokens),
    "PyLate, markers unused words": Kind(modules=(), change=pylate_with_unused),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_queries_and_documents_equal_sentence_transformers_on_every_engine(
    tmp_path: Path, kind: Kind
) -> None:
    folder = saved(tmp_path, kind)
    model = MultiVectorEncoder(str(folder), device="cpu")
    want = [
        *model.encode_query(QUERIES, convert_to_numpy=True),
        *model.encode_document(DOCUMENTS, convert_to_numpy=True),
    ]
    for engine in ENGINES:
        got = vectors_of(folder, engine)
        assert [vectors.shape for vectors in got] == [vectors.shape for vectors in want]
        if kind.pooled:
            want = pooled_by_oracle(kind, vectors_of(folder, engine, pools=False))
        for ours, theirs in zip(got, want, strict=True):
            assert greatest(kind.ordered(ours) - kind.ordered(theirs)) <= FP32_MAX_ABS_DIFF


def stanford(folder: Path, **metadata: Any) -> Path:
    """A checkpoint of Stanford's ColBERT: a projection beside the encoder, and artifact.metadata for the rest."""
    save(folder, projection(10, bias=False))
    bare, at = folder / "bert", folder / "bert" / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(at).items()}
    torch.manual_seed(9)
    save_file({**tensors, "linear.weight": torch.randn(10, 36)}, at, {"format": "pt"})
    edit(bare / "config.json", architectures=["HF_ColBERT"])
    if metadata:
        (bare / "artifact.metadata").write_text(json.dumps({"dim": 10, **metadata}))
    return bare


METADATA: dict[str, dict[str, Any]] = {
    "as ColBERTv2": {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_maxlen": 20,
        "doc_maxlen": 60,
        "mask_punctuation": True,
        "attend_to_mask_tokens": False,
    },
    "all of it otherwise": {
        "query_token_id": "[unused1]",
        "doc_token_id": "[unused0]",
        "query_maxlen": 11,
        "mask_punctuation": False,
        "attend_to_mask_tokens": True,
    },
    "nothing but its size": {"dim": 10},
}


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA.keys())
def test_a_checkpoint_of_stanford_is_read_by_its_metadata(tmp_path: Path, metadata: dict[str, Any]) -> None:
    folder = stanford(tmp_path, **metadata)
    model = MultiVectorEncoder(str(folder), device="cpu")
    want = [
        *model.encode_query(QUERIES, convert_to_numpy=True),
        *model.encode_document(DOCUMENTS, convert_to_numpy=True),
    ]
    for engine in ENGINES:
        for ours, theirs in zip(vectors_of(folder, engine), want, strict=True):
            assert ours.shape == theirs.shape
            assert greatest(ours - theirs) <= FP32_MAX_ABS_DIFF


def test_a_projection_of_another_size_than_the_metadata_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"linear.weight .*shape \[10, 36\].* \[128, 36\]"):
        card_of(stanford(tmp_path))


def pooled_by_oracle(kind: Kind, whole: list[FloatArray]) -> list[FloatArray]:
    """Our own vectors of all tokens, pooled by the oracle: those of a random model lie so close together that the last
    digit decides which are merged."""
    pooling = next(
        module for module in (make() for make in kind.modules) if isinstance(module, HierarchicalTokenPooling)
    )
    roles = [role for role, texts in zip(ROLES, (QUERIES, DOCUMENTS), strict=True) for _ in texts]
    return [
        pooling.pool_one(torch.tensor(vectors)).numpy() if pooling.applies_to(role) else vectors
        for role, vectors in zip(roles, whole, strict=True)
    ]


def saved(folder: Path, kind: Kind) -> Path:
    model = save(folder, projection(10, bias=False), *(make() for make in kind.modules), **kind.settings)
    model.prompts = kind.prompts
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    kind.change(folder / "saved")
    return folder / "saved"


def vectors_of(folder: Path, engine: str, *, pools: bool = True) -> list[FloatArray]:
    """Return the vectors of all queries and documents, in one batch."""
    settings = {"model": {"source": str(folder)}, "engine": {"kind": engine, "threads": 1}}
    return vectors_by(load_runner(load_config(flags=settings)), pools=pools)


def vectors_by(runner: Runner, *, pools: bool = True) -> list[FloatArray]:
    """Return the vectors of all queries and documents, in one batch."""
    card = runner.card
    ways = InputEncoders.for_model(card, TextTokenizer.from_card(card))
    sequences: list[Tokens] = []
    roles: list[Role] = []
    for role, texts in zip(ROLES, (QUERIES, DOCUMENTS), strict=True):
        query = EmbedQuery(texts, role=role)
        way = ways.queries if is_query(card, query) else ways.documents
        sequences += way.encode(texts, resolve_prompt(card, query), TruncationRules(truncate=True))
        roles += [role] * len(texts)
    rows = runner.run(PackedBatch.pack(sequences), OutputKind.MULTI_VECTOR).multi_vectors
    assert rows is not None
    return [
        pool_for_role(vectors, card.late_interaction, is_query=role == "query") if pools else vectors
        for vectors, role in zip(rows, roles, strict=True)
    ]


def test_a_marker_is_one_token_where_the_vocabulary_has_it(tmp_path: Path) -> None:
    want = {as_pylate: ["[", "Q", "]"], pylate_with_tokens: ["[Q] "], pylate_with_unused: ["[unused0]"]}
    for number, (change, tokens) in enumerate(want.items()):
        card = card_of(saved(tmp_path / str(number), Kind(modules=(), change=change)))
        way = InputEncoders.for_model(card, TextTokenizer.from_card(card)).queries
        (located,) = way.locate(
            ["why"], resolve_prompt(card, EmbedQuery(["why"], role="query")), TruncationRules(truncate=True)
        )
        names = [token.text for token in located]
        assert names[1 : 1 + len(tokens)] == tokens
        assert names[-1] == "[MASK]"
        assert len(names) == 24


def test_markers_expansion_and_skipped_words_are_part_of_the_vector_space(tmp_path: Path) -> None:
    folder = saved(tmp_path, Kind(modules=(), change=as_pylate))
    config, plain = folder / "config_sentence_transformers.json", card_of(folder).vector_space
    for changes in (
        {"query_prefix": "[X] "},
        {"query_prefix": "[Q] ", "query_length": 25},
        {"query_length": 24, "skiplist_words": ["."]},
    ):
        edit(config, **changes)
        assert card_of(folder).vector_space != plain
    edit(config, skiplist_words=[".", ","])
    assert card_of(folder).vector_space == plain


REFUSED: dict[str, tuple[dict[str, Any], type[EmbedserveError], str]] = {
    "longer than the encoder": ({"query_length": 1000}, UnsupportedArchitecture, "up to 1000 tokens"),
    "no such token": (
        {"query_expansion": {"strategy": "fixed", "length": 8, "token": "<nothing>"}},
        ModelInvalid,
        "has no token <nothing>",
    ),
}


@pytest.mark.parametrize(("changes", "want_error", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_an_expansion_that_cannot_be_made_is_refused(
    tmp_path: Path, changes: dict[str, Any], want_error: type[EmbedserveError], want_message: str
) -> None:
    folder = saved(tmp_path, Kind(modules=(), change=as_pylate))
    edit(folder / "config_sentence_transformers.json", **changes)
    with pytest.raises(want_error, match=want_message):
        card_of(folder)


def test_vectors_of_one_document_are_pooled_up_to_a_bound() -> None:
    with pytest.raises(BatchTooLarge, match="2048 tokens in one text, got 2049"):
        pool_tokens(np.ones((2050, 2), dtype=np.float32), TokenPooling(2.0))
