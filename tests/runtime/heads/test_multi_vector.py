"""Vectors of tokens, and what a folder says of queries and documents, against sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Module, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from transformers import BertConfig, BertModel

from embedserve_runtime.errors import ConfigError, EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.heads.description import (
    LateInteraction,
    MultiVectorHead,
    QueryExpansion,
    Task,
)
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.model.test_card import edit
from tests.support.models import tiny
from tests.support.tokenizers import CUT_VOCABULARY, with_cut_tokenizer
from tests.support.tolerances import FP32_MAX_ABS_DIFF

# Ids in the tokenizer of MiniLM.
PAD, MASK, BANG, COMMA, STOP = 0, 103, 999, 1010, 1012
TEXTS = ["a text of some words, with signs!", "one", "the same words, the same signs " * 9]


def save(folder: Path, *modules: Module, **settings: Any) -> MultiVectorEncoder:
    config = BertConfig(
        vocab_size=CUT_VOCABULARY,
        hidden_size=36,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=50,
    )
    tiny(folder / "bert", BertModel, config)
    with_cut_tokenizer(folder / "bert")
    encoder = Transformer(str(folder / "bert"), **settings)
    model = MultiVectorEncoder(modules=[encoder, *modules], device="cpu")
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    return model


def projection(out: int, *, activation: torch.nn.Module | None = None, **settings: Any) -> Dense:
    return Dense(36, out, activation_function=activation, module_input_name="token_embeddings", **settings)


CHAINS: dict[str, Callable[[], list[Module]]] = {
    "a projection": lambda: [projection(10, bias=False)],
    "normalized": lambda: [projection(10, bias=True), Normalize("token_embeddings"), MultiVectorMask()],
    "two layers, wider, masked first": lambda: [
        projection(36, bias=True, activation=torch.nn.Tanh()),
        projection(50, bias=False),
        MultiVectorMask(),
        Normalize("token_embeddings"),
    ],
    "residuals": lambda: [
        projection(36, bias=True, activation=torch.nn.Tanh(), use_residual=True),
        projection(10, bias=False, use_residual=True),
    ],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_vectors_of_tokens_equal_sentence_transformers_on_every_engine(
    tmp_path: Path, chain: Callable[[], list[Module]]
) -> None:
    model = save(tmp_path, *chain())
    want = model.encode(TEXTS, convert_to_numpy=True)
    for engine in ENGINES:
        runner = runner_of(tmp_path / "saved", engine)
        assert (runner.card.task, runner.card.outputs) == (Task.MULTI_VECTOR, OutputKind.MULTI_VECTOR)
        ids = TextTokenizer.from_card(runner.card).encode(TEXTS, "", TruncationRules(truncate=True))
        got = runner.run(PackedBatch.pack(ids), OutputKind.MULTI_VECTOR).multi_vectors
        assert got is not None
        for ours, theirs in zip(got, want, strict=True):
            assert ours.shape == theirs.shape
            assert greatest(ours - theirs) <= FP32_MAX_ABS_DIFF


def interaction(folder: Path) -> LateInteraction:
    head = card_of(folder).head
    assert isinstance(head, MultiVectorHead)
    assert head.interaction is not None
    return head.interaction


def test_lengths_expansion_and_skipped_words_are_read_from_the_modules(tmp_path: Path) -> None:
    save(
        tmp_path,
        projection(10, bias=False),
        MultiVectorMask(skiplist_words=[",", "!"], skiplist_tasks=["query", "document"]),
        query_length=20,
        document_length=100,
        query_expansion={"strategy": "min", "length": 8, "attend": True, "token": "[PAD]"},
    )
    assert interaction(tmp_path / "saved") == LateInteraction(
        query_length=20,
        document_length=100,
        expansion=QueryExpansion(8, fixed=False, attend=True, token=PAD),
        skipped=(BANG, COMMA),
        skipped_roles=("query", "document"),
    )


def as_pylate(folder: Path) -> None:
    """The folder as PyLate 1 to 3 saved it: two modules, and all settings in one file."""
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    edit(folder / modules[1]["path"] / "config.json", module_input_name=None, module_output_name=None)
    edit(
        folder / "config_sentence_transformers.json",
        model_type="ColBERT",
        query_prefix="[Q] ",
        document_prefix="[D] ",
        query_length=24,
        document_length=180,
        attend_to_expansion_tokens=False,
        skiplist_words=[".", ","],
    )


def test_a_folder_of_pylate_means_what_sentence_transformers_takes_it_for(tmp_path: Path) -> None:
    save(tmp_path, projection(10, bias=False))
    as_pylate(tmp_path / "saved")
    model = MultiVectorEncoder(str(tmp_path / "saved"), device="cpu")
    settings, head = interaction(tmp_path / "saved"), card_of(tmp_path / "saved").head
    assert settings == LateInteraction(
        query_prompt="[Q] ",
        document_prompt="[D] ",
        markers=("[Q] ", "[D] "),
        query_length=24,
        document_length=180,
        expansion=QueryExpansion(24, fixed=True, attend=False, token=MASK),
        skipped=(COMMA, STOP),
        skipped_roles=("document",),
    )
    assert model[0].query_expansion == {"strategy": "fixed", "length": 24, "attend": False, "token": None}
    assert [type(module) for module in model][-1] is Normalize
    assert isinstance(head, MultiVectorHead)
    assert head.normalize


REFUSED: dict[str, tuple[dict[str, Any], type[EmbedserveError], str]] = {
    "a residual without its tensor": (
        {"use_residual": True},
        ModelInvalid,
        "lacks a tensor of its head: residual.weight",
    ),
    "another name": (
        {"module_output_name": "projected"},
        UnsupportedArchitecture,
        "reads token_embeddings and writes projected is not supported",
    ),
    "on texts": (
        {"module_input_name": "sentence_embedding", "module_output_name": None},
        UnsupportedArchitecture,
        "must read token_embeddings without a Pooling module",
    ),
    "too wide": ({"in_features": 40}, UnsupportedArchitecture, "takes 40 features, the step before gives 36"),
}


@pytest.mark.parametrize(("changes", "want_error", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_projection_that_cannot_be_run_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], want_error: type[EmbedserveError], want_message: str
) -> None:
    save(tmp_path, projection(10, bias=False))
    edit(tmp_path / "saved" / "1_Dense" / "config.json", **changes)
    with pytest.raises(want_error, match=want_message):
        card_of(tmp_path / "saved")


def test_dense_vectors_of_a_multi_vector_model_are_refused(tmp_path: Path) -> None:
    save(tmp_path, projection(10, bias=False))
    with pytest.raises(ConfigError, match="needs a Pooling module"):
        card_of(tmp_path / "saved", task="embed")
