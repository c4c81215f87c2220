"""The changes that a tokenizer class makes to tokenizer.json by tokenizer_config.json.
tests/oracles/test_tokenizer_classes.py compares the token ids with those of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.class_settings import SETTINGS_OF, ResolvedTokenizer, resolve_tokenizer
from embedserve_runtime.model.folder import read_folder
from tests.runtime.model.test_identity_of_tokenizer_settings import byte_level_bpe, unigram, word_piece

Content = Mapping[str, Any]
CASED = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
UNCASED = normalizers.BertNormalizer(lowercase=True)


def with_normalizer(normalizer: normalizers.Normalizer | None) -> Tokenizer:
    tokenizer = word_piece()
    tokenizer.normalizer = normalizer
    return tokenizer


def with_bytes(*, adds_blank: bool) -> Tokenizer:
    tokenizer = byte_level_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_blank)
    return tokenizer


def resolve(folder: Path, tokenizer: Tokenizer, config: Content | None, **model: Any) -> ResolvedTokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps(model))
    return resolve_tokenizer(read_folder(folder))


def changes(resolved: ResolvedTokenizer, tokenizer: Tokenizer) -> dict[str, object]:
    """Return what differs from the tokenizer's own file, by step and switch."""
    ours, theirs = json.loads(resolved.file.content), json.loads(tokenizer.to_str())
    return {
        key: value
        for part in ("normalizer", "pre_tokenizer", "post_processor", "model", "added_tokens")
        if ours[part] != theirs[part]
        for key, value in ours[part].items()
        if theirs[part].get(key) != value
    }


BERT = {"tokenizer_class": "BertTokenizer"}
MPNET = {"tokenizer_class": "MPNetTokenizer"}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
LLAMA = {"tokenizer_class": "LlamaTokenizer"}
OWN_CODE = {"AutoTokenizer": ["tokenization.BertTokenizer", "acme/code--tokenization.BertTokenizerFast"]}
# The tokenizer, tokenizer_config.json, config.json, and what is changed by it.
CASES: dict[str, tuple[Tokenizer, Content | None, Content, Content]] = {
    "cased by the file, lower-cased by the config": (
        with_normalizer(CASED),
        {**BERT, "do_lower_case": True, "strip_accents": False},
        {},
        {"lowercase": True},
    ),
    "the class's defaults": (with_normalizer(CASED), BERT, {}, {"lowercase": True, "strip_accents": None}),
    "lower-cased by the file, cased by the config": (
        with_normalizer(UNCASED),
        {**BERT, "do_lower_case": False},
        {},
        {"lowercase": False},
    ),
    "accents": (with_normalizer(UNCASED), {**BERT, "strip_accents": False}, {}, {"strip_accents": False}),
    "ideographs": (
        with_normalizer(UNCASED),
        {**BERT, "tokenize_chinese_chars": False},
        {},
        {"handle_chinese_chars": False},
    ),
    "ideographs, which MPNet leaves to the file": (
        with_normalizer(UNCASED),
        {**MPNET, "tokenize_chinese_chars": False},
        {},
        {},
    ),
    "control characters, which are left to the file": (
        with_normalizer(UNCASED),
        {**BERT, "clean_text": False},
        {},
        {},
    ),
    "both agree": (
        with_normalizer(CASED),
        {**BERT, "do_lower_case": False, "strip_accents": False},
        {},
        {},
    ),
    "a class by the model's config": (
        with_normalizer(CASED),
        {"strip_accents": False},
        {"tokenizer_class": "BertTokenizerFast"},
        {"lowercase": True},
    ),
    "a class by the model's type, without tokenizer_config.json": (
        with_normalizer(CASED),
        None,
        {"model_type": "distilbert"},
        {"lowercase": True, "strip_accents": None},
    ),
    "no class": (with_normalizer(CASED), {"do_lower_case": True}, {"model_type": "nomic_bert"}, {}),
    "a model of the repository's own code": (
        with_normalizer(CASED),
        {"do_lower_case": True},
        {"model_type": "bert", "auto_map": {"AutoConfig": "configuration.Own"}},
        {},
    ),
    "a tokenizer of the repository's own code": (
        with_normalizer(CASED),
        {**BERT, "auto_map": OWN_CODE},
        {},
        {},
    ),
    "a class without such settings": (with_normalizer(CASED), {**PLAIN, "do_lower_case": True}, {}, {}),
    "a normalizer of several steps": (
        with_normalizer(normalizers.Sequence([CASED])),
        {**BERT, "do_lower_case": True},
        {},
        {},
    ),
    "no normalizer": (with_normalizer(None), {**BERT, "do_lower_case": True}, {}, {}),
    "a blank before bytes": (
        with_bytes(adds_blank=False),
        {**PLAIN, "add_prefix_space": True},
        {},
        {"add_prefix_space": True},
    ),
    "no blank before bytes": (
        with_bytes(adds_blank=True),
        {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False},
        {},
        {"add_prefix_space": False},
    ),
    "no blank by default": (with_bytes(adds_blank=True), PLAIN, {}, {"add_prefix_space": False}),
    "null leaves the blank": (with_bytes(adds_blank=True), {**PLAIN, "add_prefix_space": None}, {}, {}),
    "a blank in one step among others": (byte_level_bpe(), {**PLAIN, "add_prefix_space": True}, {}, {}),
    "a class of transformers 5 alone": (
        with_bytes(adds_blank=True),
        {"tokenizer_class": "TokenizersBackend"},
        {},
        {},
    ),
    "Llama's blank, which both have": (unigram(), {**LLAMA, "add_prefix_space": True}, {}, {}),
    "pieces, which have no such switch": (
        unigram(),
        {"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": False, "do_lower_case": True},
        {},
        {},
    ),
    "ALBERT's settings, which count where it is converted": (
        unigram(),
        {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False, "keep_accents": True},
        {},
        {},
    ),
}


@pytest.mark.parametrize(("tokenizer", "config", "model", "want"), CASES.values(), ids=CASES)
def test_the_class_has_the_last_word_where_transformers_4_gives_it_that(
    tmp_path: Path, tokenizer: Tokenizer, config: Content | None, model: Content, want: Content
) -> None:
    resolved = resolve(tmp_path, tokenizer, config, **model)
    assert changes(resolved, tokenizer) == want
    assert bool(resolved.overrides) == bool(want)
    Tokenizer.from_str(resolved.file.as_text())


@pytest.mark.parametrize("name", SETTINGS_OF)
def test_each_class_with_a_normalizer_of_berts_lower_cases_unless_it_is_told_not_to(
    tmp_path: Path, name: str
) -> None:
    resolved = resolve(tmp_path, with_normalizer(CASED), {"tokenizer_class": f"{name}Fast"})
    assert resolved.overrides == (
        f"do_lower_case = true ({name}'s default), against lowercase = false of tokenizer.json",
        f"strip_accents = null ({name}'s default), against strip_accents = false of tokenizer.json",
    )


def test_special_tokens_in_a_text_are_split_where_the_config_says_so(tmp_path: Path) -> None:
    resolved = resolve(tmp_path, with_normalizer(UNCASED), {**BERT, "split_special_tokens": True})
    assert resolved.splits_special_tokens
    assert resolved.overrides == (
        "split_special_tokens of tokenizer_config.json: a special token in a text is text",
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**BERT, "do_lower_case": None}, "tokenizer_config.json: do_lower_case"),
        ({**BERT, "split_special_tokens": None}, "tokenizer_config.json: split_special_tokens"),
        ({**LLAMA, "add_prefix_space": True}, "add_prefix_space = true is not what tokenizer.json does"),
    ],
)
def test_what_transformers_refuses_is_refused_with_the_key(
    tmp_path: Path, config: Content, message: str
) -> None:
    with pytest.raises(ModelInvalid, match=message):
        resolve(tmp_path, with_normalizer(UNCASED), config)
