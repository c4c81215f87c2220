"""Settings inside sentence_bert_config.json: done as sentence-transformers does them, ignored by name, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertModel

from embedserve_runtime.errors import EmbedserveError, ModelInvalid, UnsupportedArchitecture
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import TEXTS, bert, embed
from tests.support.tolerances import FP32_MAX_ABS_DIFF

FILE = "sentence_bert_config.json"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"), BertModel)


@pytest.fixture
def folder(bare: Path, tmp_path: Path) -> Path:
    """A pipeline with mean pooling, as sentence-transformers saves it."""
    model = SentenceTransformer(modules=[Transformer(str(bare)), Pooling(24)], device="cpu")
    model.save_pretrained(str(tmp_path), create_model_card=False)
    return tmp_path


DONE: dict[str, dict[str, Any]] = {
    "no special tokens": {"processing_kwargs": {"text": {"add_special_tokens": False}}},
    "no special tokens of any input": {"processing_kwargs": {"common": {"add_special_tokens": False}}},
    "what is said of all inputs counts more": {
        "processing_kwargs": {
            "common": {"add_special_tokens": False, "max_length": 7},
            "text": {"add_special_tokens": True, "max_length": 11},
        }
    },
    "a shorter text": {"processing_kwargs": {"text": {"max_length": 8}}},
    "no special tokens in a shorter text": {
        "processing_kwargs": {"text": {"add_special_tokens": False, "max_length": 8}}
    },
    "the call counts more than the tokenizer": {
        "processing_kwargs": {"text": {"max_length": 8}},
        "processor_kwargs": {"model_max_length": 12},
        "max_seq_length": 20,
    },
    "the tokenizer counts more than the module": {
        "processor_kwargs": {"model_max_length": 12},
        "max_seq_length": 20,
    },
    "the tokenizer by its old name": {"tokenizer_args": {"model_max_length": 9}},
    "truncated on the left": {"processor_kwargs": {"model_max_length": 9, "truncation_side": "left"}},
}


@pytest.mark.parametrize("changes", DONE.values(), ids=DONE)
def test_a_setting_is_done_as_sentence_transformers_does_it(folder: Path, changes: dict[str, Any]) -> None:
    before = card_of(folder).vector_space
    edit(folder / FILE, **changes)
    runner = runner_of(folder, "torch")
    assert runner.card.vector_space != before
    want = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert greatest(embed(runner, TEXTS) - want) <= FP32_MAX_ABS_DIFF


IGNORED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "how texts are batched": ({"unpad_inputs": True}, ["unpad_inputs"]),
    "how the model is loaded": (
        {"model_args": {"torch_dtype": "float32", "trust_remote_code": True}},
        ["model_args.torch_dtype", "model_args.trust_remote_code"],
    ),
    "the same by today's names": (
        {"model_kwargs": {"attn_implementation": "eager"}, "config_kwargs": {"use_cache": False}},
        ["model_kwargs.attn_implementation", "config_kwargs.use_cache"],
    ),
    "padding": ({"processing_kwargs": {"text": {"padding": True}}}, ["processing_kwargs.text.padding"]),
    "other inputs": (
        {"processing_kwargs": {"image": {"size": 3}}, "model_kwargs": {}},
        ["processing_kwargs.image"],
    ),
    "nothing": ({"processing_kwargs": None, "config_args": {}}, []),
}


@pytest.mark.parametrize(("changes", "names"), IGNORED.values(), ids=IGNORED)
def test_a_setting_that_changes_no_vector_is_named_as_ignored(
    folder: Path, changes: dict[str, Any], names: list[str]
) -> None:
    before = card_of(folder).vector_space
    edit(folder / FILE, **changes)
    card = card_of(folder)
    assert card.vector_space == before
    assert card.ignored_settings == tuple(f"{FILE}: {name}" for name in names)


REFUSED: dict[str, tuple[dict[str, Any], type[EmbedserveError], str]] = {
    "another activation": (
        {"config_args": {"hidden_act": "relu"}},
        UnsupportedArchitecture,
        r"sentence_bert_config.json: config_args.hidden_act = 'relu' is not supported",
    ),
    "the same by today's name": (
        {"config_kwargs": {"hidden_act": "relu"}},
        UnsupportedArchitecture,
        r"config_kwargs.hidden_act = 'relu'",
    ),
    "a setting of the model": (
        {"model_kwargs": {"default_task": "retrieval"}},
        UnsupportedArchitecture,
        r"model_kwargs.default_task",
    ),
    "a setting of the tokenizer": (
        {"processor_kwargs": {"add_eos_token": True}},
        UnsupportedArchitecture,
        r"processor_kwargs.add_eos_token",
    ),
    "a setting of a call": (
        {"processing_kwargs": {"text": {"return_token_type_ids": False}}},
        UnsupportedArchitecture,
        r"processing_kwargs.text.return_token_type_ids",
    ),
    "texts that are not truncated": (
        {"processing_kwargs": {"text": {"truncation": False}}},
        ModelInvalid,
        r"processing_kwargs.text.truncation",
    ),
    "a key that sentence-transformers does not know": (
        {"seq_length": 8},
        UnsupportedArchitecture,
        r"seq_length",
    ),
    "another tokenizer": (
        {"tokenizer_name_or_path": "other"},
        UnsupportedArchitecture,
        r"tokenizer_name_or_path",
    ),
    "logits in place of hidden states": (
        {"transformer_task": "fill-mask"},
        UnsupportedArchitecture,
        r"transformer_task = 'fill-mask' .* supported: feature-extraction",
    ),
    "another output of the model": (
        {"modality_config": {"text": {"method": "get_text_features", "method_output_name": None}}},
        UnsupportedArchitecture,
        r"modality_config.text",
    ),
    "texts in a chat template": (
        {"modality_config": {"message": {"method": "forward", "method_output_name": "last_hidden_state"}}},
        UnsupportedArchitecture,
        r"modality_config.message",
    ),
    "another name of the output": (
        {"module_output_name": "sentence_embedding"},
        UnsupportedArchitecture,
        r"module_output_name",
    ),
    "lengths of roles": (
        {"query_length": 8},
        UnsupportedArchitecture,
        r"query_length is supported for multi-vector",
    ),
    "no length": ({"max_seq_length": 0}, ModelInvalid, r"max_seq_length"),
    "no object": ({"model_args": 3}, UnsupportedArchitecture, r"model_args must be an object"),
}


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_a_setting_that_is_not_done_stops_the_start(
    folder: Path, changes: dict[str, Any], error: type[EmbedserveError], message: str
) -> None:
    edit(folder / FILE, **changes)
    with pytest.raises(error, match=message):
        card_of(folder)
