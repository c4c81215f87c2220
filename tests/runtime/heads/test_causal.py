"""Causal models that rank by "yes" and "no", on every engine: against transformers and the way of Qwen3-Reranker's
model card, and against sentence-transformers' CrossEncoder with its LogitScore module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import AutoTokenizer, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.errors import ConfigError, EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.causal import QWEN3
from embedserve_runtime.model.heads.description import ClassifierHead, Task
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, logits_of, runner_of
from tests.runtime.model.test_card import edit
from tests.support.models import tiny
from tests.support.tiny_tokenizers import qwen_tokenizer
from tests.support.tolerances import FP32_MAX_ABS_DIFF

PAIRS = [
    ("what is yes", "no idea"),
    ("a", "b"),
    ("where", "a longer document, " * 20),
    ("how", "no " * 9),
]
INSTRUCTION = "Find what answers."
SHAPES: dict[str, dict[str, Any]] = {
    "tied, grouped heads": {
        "tie_word_embeddings": True,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "untied, one head": {
        "tie_word_embeddings": False,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    },
    "untied, biases, one layer": {
        "tie_word_embeddings": False,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "attention_bias": True,
        "num_hidden_layers": 1,
    },
}
PREFIX, _, SUFFIX = QWEN3.template.parts
CHAT_TEMPLATE = (
    PREFIX.replace("\n", "\\n")
    + "<Instruct>: {{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('"
    + QWEN3.template.instruction
    + "') }}\\n<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\\n"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    + SUFFIX.replace("\n", "\\n")
)
CHAT_TEMPLATE = "{{ '" + CHAT_TEMPLATE.replace("{{ ", "' ~ (").replace(" }}", ") ~ '") + "' }}"


def save(folder: Path, **shape: Any) -> PreTrainedModel:
    tokenizer = qwen_tokenizer(folder)
    config = Qwen3Config(
        **(
            {
                "vocab_size": len(tokenizer) + 5,
                "hidden_size": 24,
                "num_hidden_layers": 2,
                "intermediate_size": 40,
                "head_dim": 10,
                "max_position_embeddings": 600,
                "pad_token_id": tokenizer.pad_token_id,
            }
            | shape
        )
    )
    return tiny(folder, Qwen3ForCausalLM, config)


def reference(model: PreTrainedModel, folder: Path, pair: tuple[str, str], instruction: str) -> float:
    """The probability of "yes" after the written prompt, whose document is cut."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    head = tokenizer.encode(PREFIX, add_special_tokens=False)
    tail = tokenizer.encode(SUFFIX, add_special_tokens=False)
    body = tokenizer.encode(
        f"<Instruct>: {instruction}\n<Query>: {pair[0]}\n<Document>: {pair[1]}", add_special_tokens=False
    )
    ids = head + body[: 600 - len(head) - len(tail)] + tail
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    no_and_yes = logits[tokenizer.convert_tokens_to_ids(["no", "yes"])]
    return torch.softmax(no_and_yes, dim=0)[1].item()


def scores_of(folder: Path, engine: str, **settings: object) -> FloatArray:
    runner = runner_of(folder, engine, **settings)
    assert runner.card.task is Task.RERANK
    texts = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, TruncationRules(truncate=True))
    assert isinstance(runner.card.head, ClassifierHead)
    scores = apply_score_function(logits_of(runner, texts), runner.card.head.scores)
    return scores[:, 0].astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_scores_equal_the_way_of_the_model_card_on_every_engine(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    model = save(tmp_path, **shape)
    want = [reference(model, tmp_path, pair, QWEN3.template.instruction) for pair in PAIRS]
    for engine in ENGINES:
        got = scores_of(tmp_path, engine, task="rerank")
        assert greatest(got - np.array(want, dtype=np.float32)) <= FP32_MAX_ABS_DIFF


def test_the_default_prompt_of_the_service_takes_the_place_of_the_instruction(tmp_path: Path) -> None:
    model = save(tmp_path, **SHAPES["tied, grouped heads"])
    want = [reference(model, tmp_path, pair, INSTRUCTION) for pair in PAIRS]
    got = scores_of(
        tmp_path, "torch", task="rerank", prompts={"answers": INSTRUCTION}, default_prompt="answers"
    )
    assert greatest(got - np.array(want, dtype=np.float32)) <= FP32_MAX_ABS_DIFF


def cross_encoder(folder: Path, shape: str, *, only_yes: bool = False) -> CrossEncoder:
    """The same model as sentence-transformers saves it, with the template as its chat template."""
    save(folder / "bare", **SHAPES[shape])
    transformer = Transformer(str(folder / "bare"), transformer_task="text-generation")
    transformer.tokenizer.chat_template = CHAT_TEMPLATE
    reloaded = folder / "with template"
    transformer.model.save_pretrained(reloaded)
    transformer.tokenizer.save_pretrained(reloaded)
    transformer = Transformer(str(reloaded), transformer_task="text-generation")
    yes, no = transformer.tokenizer.convert_tokens_to_ids(["yes", "no"])
    modules = [transformer, LogitScore(yes, None if only_yes else no)]
    model = CrossEncoder(modules=modules, device="cpu")
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    return CrossEncoder(str(folder / "saved"), device="cpu")


@pytest.mark.parametrize("only_yes", [False, True], ids=["yes and no", "yes alone"])
def test_scores_equal_those_of_sentence_transformers_without_a_flag(tmp_path: Path, only_yes: bool) -> None:
    model = cross_encoder(tmp_path, "untied, biases, one layer", only_yes=only_yes)
    want = model.predict(PAIRS, batch_size=1)
    for engine in ENGINES:
        assert greatest(scores_of(tmp_path / "saved", engine) - want) <= FP32_MAX_ABS_DIFF


def no_yes(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"yes":', '"yeah":'))


REFUSED: dict[str, tuple[Callable[[Path], None], type[EmbedserveError], str]] = {
    "a family whose way is not known": (
        lambda folder: edit(folder / "config.json", architectures=["LlamaForCausalLM"]),
        UnsupportedArchitecture,
        "no way is known how LlamaForCausalLM ranks; supported: Qwen3ForCausalLM",
    ),
    "no word for yes": (no_yes, ModelInvalid, "tokenizer.json: lacks the token yes"),
    "no head": (
        lambda folder: edit(folder / "config.json", architectures=["Qwen3Model"]),
        ConfigError,
        "model.task: rerank needs a model for sequence classification, .* has Qwen3Model",
    ),
}


@pytest.mark.parametrize(("damage", "want_error", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_model_whose_way_of_ranking_is_not_known_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], want_error: type[EmbedserveError], want_message: str
) -> None:
    save(tmp_path, **SHAPES["tied, grouped heads"])
    damage(tmp_path)
    with pytest.raises(want_error, match=want_message):
        card_of(tmp_path, task="rerank")


def test_another_chat_template_is_refused(tmp_path: Path) -> None:
    cross_encoder(tmp_path, "untied, one head")
    (tmp_path / "saved" / "chat_template.jinja").write_text("{{ messages[0] }}")
    with pytest.raises(UnsupportedArchitecture, match="LogitScore with a chat template of its own"):
        card_of(tmp_path / "saved")
