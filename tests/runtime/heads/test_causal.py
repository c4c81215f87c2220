"""Causal models that rank by the logits of answers, on every engine: against transformers and what each reranker's
authors do, and against sentence-transformers' CrossEncoder with LogitScore and the folder's chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import AutoTokenizer, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from embedserve_runtime.errors import ConfigError, EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.description import ClassifierHead, Task
from embedserve_runtime.model.heads.rerankers import BGE_GEMMA, MXBAI, QWEN3, ZERANK
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
    ("cut", "some words. \n" * 90),
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


def save(folder: Path, model: type[PreTrainedModel] = Qwen3ForCausalLM, **shape: Any) -> PreTrainedModel:
    """A folder of transformers alone, which its README calls Qwen3-Reranker."""
    tokenizer = qwen_tokenizer(folder)
    call(folder, "Qwen/Qwen3-Reranker-0.6B")
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
    return tiny(folder, model, config)


def call(folder: Path, base: str, pipeline: str = "text-ranking") -> None:
    (folder / "README.md").write_text(f"---\nbase_model: {base}\npipeline_tag: {pipeline}\n---\n\n# Tiny\n")


# The texts before, between and behind query and document, by each kind's authors; and its answers.
WRITTEN = {
    "Qwen/Qwen3-Reranker-8B": (
        QWEN3,
        [PREFIX, "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: ", SUFFIX],
    ),
    "mixedbread-ai/mxbai-rerank-base-v2": (
        MXBAI,
        [
            *MXBAI.template.plain_parts[:1],
            "query: {query}",
            "\n",
            "document: ",
            "\n",
            *MXBAI.template.plain_parts[-2:],
        ],
    ),
    "BAAI/bge-reranker-v2-gemma": (
        BGE_GEMMA,
        ["{begin}", "A: {query}", "\n", "B: ", "\n", BGE_GEMMA.template.parts[-1]],
    ),
    "zeroentropy/zerank-2": (
        ZERANK,
        [
            "<|im_start|>system\n{query}<|im_end|>\n<|im_start|>user\n",
            "",
            "<|im_end|>\n<|im_start|>assistant\n",
        ],
    ),
}


def reference(
    model: PreTrainedModel,
    folder: Path,
    pair: tuple[str, str],
    instruction: str,
    name: str = "Qwen/Qwen3-Reranker-8B",
) -> float:
    """The score by the written prompt of the reranker `name`, whose document is cut."""
    reranker, texts = WRITTEN[name]
    query, document = (text.strip() for text in pair) if reranker is ZERANK else pair
    tokenizer = AutoTokenizer.from_pretrained(folder)
    at = next(
        number
        for number, part in enumerate(reranker.template.plain_parts or reranker.template.parts)
        if "{document}" in part
    )
    at += reranker.begins
    values = {"{query}": query, "{instruction}": instruction, "{begin}": tokenizer.bos_token}
    filled = texts
    for placeholder, value in values.items():
        filled = [text.replace(placeholder, value) for text in filled]
    parts = [
        tokenizer.encode(text + document if number == at else text, add_special_tokens=False)
        for number, text in enumerate(filled)
    ]
    parts[at] = parts[at][: 600 - sum(map(len, parts)) + len(parts[at])]
    with torch.no_grad():
        logits = model(torch.tensor([[*chain.from_iterable(parts)]])).logits[0, -1]
    yes = logits[tokenizer.convert_tokens_to_ids(reranker.yes)]
    no = 0 if reranker.no is None else logits[tokenizer.convert_tokens_to_ids(reranker.no)]
    return torch.sigmoid((yes - no) / reranker.divisor).item()


def test_mxbais_instruction_is_tokenized_with_the_query(tmp_path: Path) -> None:
    """Qwen2's pattern of words takes a line break to the signs before it."""
    save(tmp_path, **SHAPES["untied, one head"])
    call(tmp_path, "mixedbread-ai/mxbai-rerank-base-v2")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    pattern = {"Regex": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"}
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    vocabulary = content["model"]["vocab"]
    content["model"]["merges"].append([".", "\u010a"])
    # Instead of a merge that the prompt has no use for.
    vocabulary[".\u010a"] = vocabulary.pop("Yes")
    content["model"]["merges"].remove(["Ye", "s"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = TextTokenizer.from_card(card_of(tmp_path))
    (ids,) = tokenizer.encode_pairs([("a", "b")], TruncationRules(truncate=True), prompt=INSTRUCTION)
    (plain,) = tokenizer.encode_pairs([("a", "b")], TruncationRules(truncate=True))
    joined = vocabulary[".\u010a"]
    # One is in the words of the prompt.
    assert tuple(np.asarray(sequence).tolist().count(joined) for sequence in (ids, plain)) == (2, 1)


def scores_of(folder: Path, engine: str, **settings: object) -> FloatArray:
    runner = runner_of(folder, engine, **settings)
    assert runner.card.task is Task.RERANK
    texts = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, TruncationRules(truncate=True))
    assert isinstance(runner.card.head, ClassifierHead)
    scores = apply_score_function(logits_of(runner, texts), runner.card.head.scores)
    return scores[:, 0].astype(np.float32)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_reranker_asks_as_its_authors_do_by_its_name(tmp_path: Path, name: str) -> None:
    model = save(tmp_path, **SHAPES["untied, one head"])
    call(tmp_path, name)
    want = [reference(model, tmp_path, pair, QWEN3.template.instruction, name) for pair in PAIRS]
    for engine in ENGINES:
        got = scores_of(tmp_path, engine)
        assert greatest(got - np.array(want, dtype=np.float32)) <= FP32_MAX_ABS_DIFF


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


PAIR = """{%- set query = messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first -%}
{%- set document = messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first -%}
"""
CHAT_TEMPLATES = {
    "Qwen3-Reranker's": CHAT_TEMPLATE,
    "the query as system turn, stripped": "{% for message in messages %}<|im_start|>"
    "{{ {'query': 'system', 'document': 'user', 'system': 'task'}[message.role] }}\n"
    "{{ message.content | trim }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
    "words behind the document": PAIR
    + "<|im_start|>user\n{{ query }} / {{ document }}\nJudge. Relevance:<|im_end|>\n",
    "nothing behind the document": PAIR + "{{ bos_token }}{{ query }}<|im_end|>{{ document }}",
    "lists of parts": "{% for message in messages %}<|im_start|>"
    "{{ 'task' if message.role == 'system' else message.role }} {{ message.content[0].text }}<|im_end|>{% endfor %}",
}


DOCUMENT_FIRST = PAIR + "<|im_start|>{{ document }}<|im_end|>{{ query }}<|im_end|>"


def cross_encoder(
    folder: Path, shape: str, template: str = CHAT_TEMPLATE, *, only_yes: bool = False, **settings: Any
) -> CrossEncoder:
    """The same model as sentence-transformers saves it, with the template as its chat template."""
    save(folder / "bare", **SHAPES[shape])
    (folder / "bare" / "chat_template.jinja").write_text(template)
    transformer = Transformer(str(folder / "bare"), transformer_task="text-generation")
    yes, no = transformer.tokenizer.convert_tokens_to_ids(["yes", "no"])
    modules = [transformer, LogitScore(yes, None if only_yes else no)]
    model = CrossEncoder(modules=modules, device="cpu", **settings)
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    return CrossEncoder(str(folder / "saved"), device="cpu")


@pytest.mark.parametrize("only_yes", [False, True], ids=["yes and no", "yes alone"])
@pytest.mark.parametrize("template", CHAT_TEMPLATES.values(), ids=CHAT_TEMPLATES.keys())
def test_scores_equal_those_of_sentence_transformers_without_a_flag(
    tmp_path: Path, template: str, only_yes: bool
) -> None:
    activation = torch.nn.Identity() if only_yes else None
    model = cross_encoder(
        tmp_path, "untied, biases, one layer", template, only_yes=only_yes, activation_fn=activation
    )
    want, instructed = (model.predict(PAIRS, batch_size=1, prompt=prompt) for prompt in (None, INSTRUCTION))
    for engine in ENGINES:
        assert greatest(scores_of(tmp_path / "saved", engine) - want) <= FP32_MAX_ABS_DIFF
    got = scores_of(tmp_path / "saved", "torch", prompts={"answers": INSTRUCTION}, default_prompt="answers")
    assert greatest(got - instructed) <= FP32_MAX_ABS_DIFF


def test_a_query_behind_the_document_is_not_cut_as_sentence_transformers_cuts_it(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path, "untied, one head", DOCUMENT_FIRST)
    same, different = (
        [model.predict([pair])[0] - got for pair, got in zip(PAIRS, scores, strict=True)][part]
        for scores in [scores_of(tmp_path / "saved", "torch")]
        for part in (slice(-1), slice(-1, None))
    )
    assert greatest(np.array(same)) <= FP32_MAX_ABS_DIFF < greatest(np.array(different))


def test_a_chat_template_with_both_roles_makes_a_reranker_of_a_language_model(tmp_path: Path) -> None:
    save(tmp_path, **SHAPES["untied, one head"])
    call(tmp_path, "acme/base")
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATES["words behind the document"])
    want = CrossEncoder(str(tmp_path), device="cpu").predict(PAIRS, batch_size=1)
    assert greatest(scores_of(tmp_path, "torch") - want) <= FP32_MAX_ABS_DIFF


def test_variables_of_the_chat_template_are_given_to_it(tmp_path: Path) -> None:
    template = PAIR + "{{ query }}<|im_end|>{{ document }}{% if thinks %}<|im_start|>{{ thinks }}{% endif %}"
    cross_encoder(tmp_path, "untied, one head", template)
    edit(
        tmp_path / "saved" / "sentence_bert_config.json",
        processing_kwargs={"chat_template": {"thinks": "no"}},
    )
    want = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS, batch_size=1)
    assert greatest(scores_of(tmp_path / "saved", "torch") - want) <= FP32_MAX_ABS_DIFF


def no_yes(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"yes":', '"yeah":'))


NEVER = "A chat. {% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"


def as_chat_model(folder: Path) -> None:
    call(folder, "Qwen/Qwen3-0.6B")
    (folder / "chat_template.jinja").write_text(NEVER)


def forget_begin(folder: Path) -> None:
    call(folder, "BAAI/bge-reranker-v2-gemma")
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"bos_token"', '"no_token"'))


REFUSED: dict[str, tuple[Callable[[Path], None], type[EmbedserveError], str]] = {
    "nothing says which reranker it is": (
        lambda folder: (folder / "README.md").unlink(),
        UnsupportedArchitecture,
        r"config.json: nothing says in which prompt Qwen3ForCausalLM ranks.* README.md whose `base_model` is one of "
        "the known rerankers: Qwen3-Reranker, mxbai-rerank-v2, bge-reranker-v2-gemma, zerank",
    ),
    "a chat model": (
        as_chat_model,
        UnsupportedArchitecture,
        "nothing says in which prompt Qwen3ForCausalLM ranks",
    ),
    "a listwise reranker by name": (
        lambda folder: call(folder, "jinaai/jina-reranker-v3"),
        UnsupportedArchitecture,
        "config.json: jinaai/jina-reranker-v3 is not supported: it is a listwise reranker",
    ),
    "a listwise reranker by class": (
        lambda folder: edit(folder / "config.json", architectures=["JinaForRanking"]),
        UnsupportedArchitecture,
        "config.json: JinaForRanking is not supported: it is a listwise reranker",
    ),
    "a head for each layer": (
        lambda folder: call(folder, "BAAI/bge-reranker-v2-minicpm-layerwise"),
        UnsupportedArchitecture,
        "it has a head for each layer",
    ),
    "logits that are capped": (
        lambda folder: edit(folder / "config.json", final_logit_softcapping=30.0),
        UnsupportedArchitecture,
        "final_logit_softcapping = 30.0",
    ),
    "no beginning": (forget_begin, ModelInvalid, "tokenizer_config.json: bos_token is missing"),
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


NOT_FILLED = {
    "no roles of a pair": (NEVER, "does not write the messages of the roles query"),
    "one role": (PAIR + "{{ query }}", "does not write the messages of the roles query"),
    "the document twice": (PAIR + "{{ query }} {{ document }} {{ document }}", "document \\(once\\)"),
    "letters changed": (
        PAIR + "{{ query | upper }} {{ document | upper }}",
        "does not write|changes query, document",
    ),
    "escapes": (PAIR + "{{ query }} {{ document | tojson }}", "does not write|changes query, document"),
    "one text stripped": (PAIR + "{{ query }}: {{ document | trim }}", "changes query, document or prompt"),
    "an error": (PAIR + "{{ query.a.b }}", "chat_template.jinja: the chat template cannot be filled"),
    "today's date": (PAIR + "{{ strftime_now('%Y') }}{{ query }} {{ document }}", "cannot be filled"),
    "no program": ("{% for %}", "cannot be filled"),
}


@pytest.mark.parametrize(("template", "want_message"), NOT_FILLED.values(), ids=NOT_FILLED.keys())
def test_a_chat_template_that_is_not_filled_as_it_stands_is_refused(
    tmp_path: Path, template: str, want_message: str
) -> None:
    cross_encoder(tmp_path, "untied, one head")
    (tmp_path / "saved" / "chat_template.jinja").write_text(template)
    with pytest.raises(UnsupportedArchitecture, match=want_message):
        card_of(tmp_path / "saved")


def test_a_logit_score_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    cross_encoder(tmp_path, "untied, one head")
    edit(tmp_path / "saved" / "sentence_bert_config.json", modality_config=None)
    with pytest.raises(UnsupportedArchitecture, match=r"LogitScore with no chat template .* modality_config"):
        card_of(tmp_path / "saved")
