"""Folders of which nothing says how their vectors are pooled: the mean of an encoder, as
sentence-transformers takes it, and told as a guess; everything else is refused with what would decide it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import BertForMaskedLM, BertModel, Qwen3ForCausalLM, Qwen3Model

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.tokenizing import TextTokenizer
from tests.runtime.heads.head_runner import card_of, dense_of, greatest, runner_of
from tests.runtime.heads.test_causal import SHAPES, call, save
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import CUT, TEXTS, bert
from tests.support.tolerances import FP32_MAX_ABS_DIFF

ONE_HEAD = SHAPES["untied, one head"]


@pytest.mark.parametrize("model", [BertModel, BertForMaskedLM], ids=["bare", "masked LM"])
def test_an_encoder_gets_the_mean_of_sentence_transformers_and_that_is_told_as_a_guess(
    tmp_path: Path, model: Any
) -> None:
    bert(tmp_path, model)
    runner = runner_of(tmp_path, "torch")
    texts = TextTokenizer.from_card(runner.card).encode(TEXTS, "", CUT)
    want = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
    assert greatest(dense_of(runner, list(texts)) - want) <= FP32_MAX_ABS_DIFF
    assert runner.card.guesses_pooling
    decided = card_of(tmp_path, pooling="mean")
    assert not decided.guesses_pooling
    assert decided.vector_space == runner.card.vector_space


def as_ranking(folder: Path) -> None:
    bert(folder, BertModel)
    call(folder, "acme/base")


def as_chat_model(folder: Path) -> None:
    save(folder, **ONE_HEAD)
    call(folder, "Qwen/Qwen3-0.6B", "text-generation")


def as_decoder(folder: Path) -> None:
    save(folder, Qwen3Model, **ONE_HEAD)
    call(folder, "acme/base", "none")


def as_unknown_class(folder: Path) -> None:
    bert(folder, BertModel)
    edit(folder / "config.json", architectures=["AcmeForRetrieval"])


DECIDES = "modules.json with a Pooling module, or set model.task to embed and model.pooling"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a chat model": (as_chat_model, rf"nothing says what vectors Qwen3ForCausalLM gives.*{DECIDES}"),
    "a causal decoder": (
        as_decoder,
        rf"vectors Qwen3Model gives.* of a causal decoder.*{DECIDES}",
    ),
    "a class that is not known": (as_unknown_class, rf"AcmeForRetrieval gives.* of another task.*{DECIDES}"),
    "a reranker by README": (
        as_ranking,
        rf"README.md: pipeline_tag text-ranking says that it is a reranker.*BertModel.*{DECIDES}",
    ),
}


@pytest.mark.parametrize(("build", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_plain_encoder_is_refused_with_what_would_decide_it(
    tmp_path: Path, build: Callable[[Path], None], want_message: str
) -> None:
    build(tmp_path)
    with pytest.raises(UnsupportedArchitecture, match=want_message):
        card_of(tmp_path)
    decided = card_of(tmp_path, task="embed", pooling="last")
    assert (decided.task, decided.pipeline.pooling, decided.guesses_pooling) == (
        Task.EMBED,
        (Pooling.LAST,),
        False,
    )


def test_the_pooling_that_a_bidirectional_llama_names_is_read(tmp_path: Path) -> None:
    save(tmp_path, Qwen3Model, **ONE_HEAD)
    call(tmp_path, "acme/base", "none")
    edit(tmp_path / "config.json", model_type="llama_bidirec", pooling="avg")
    weights = tmp_path / "model.safetensors"
    without_norms(weights)
    for named, want in {"avg": Pooling.MEAN, "last": Pooling.LAST, "cls": Pooling.CLS}.items():
        edit(tmp_path / "config.json", pooling=named)
        card = card_of(tmp_path)
        assert (card.pipeline.pooling, card.guesses_pooling) == ((want,), False)
    assert card_of(tmp_path, pooling="mean").pipeline.pooling == (Pooling.MEAN,)
    edit(tmp_path / "config.json", pooling="weighted_avg")
    with pytest.raises(UnsupportedArchitecture, match=r"pooling = 'weighted_avg'.*set model.pooling"):
        card_of(tmp_path)


def without_norms(weights: Path) -> None:
    """Leave out what Qwen3 has and Llama has not."""
    tensors: dict[str, torch.Tensor] = load_file(weights)
    save_file(
        {name: tensor for name, tensor in tensors.items() if "_norm" not in name.split(".")[-2]}, weights
    )


def test_the_class_of_a_language_model_is_served_with_the_pooling_that_the_service_sets(
    tmp_path: Path,
) -> None:
    save(tmp_path, Qwen3ForCausalLM, **ONE_HEAD)
    call(tmp_path, "Qwen/Qwen3-0.6B", "text-generation")
    assert card_of(tmp_path, pooling="last").pipeline.pooling == (Pooling.LAST,)
