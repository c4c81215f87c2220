"""Reads what a tokenizer class changes in tokenizer.json by the settings of tokenizer_config.json.

Source: transformers 4.57.6, the `__init__` of its fast tokenizers. Classes with a BERT's normalizer set its switches
from `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`, from the class's defaults where the file does not
say them. Every class sets whether a byte-level pre-tokenizer adds a blank, if that is not a step among others. All
other settings of the kind (`clean_text`, `keep_accents`, `legacy`, `do_lower_case` of ALBERT, XLNet and DeBERTa v2)
count only where a tokenizer is converted from other files than tokenizer.json.

transformers 5 does the same for BERT's classes; others it builds anew from their vocabulary, so that tokenizer.json
counts less there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.added_tokens import find_added_tokens
from embedserve_runtime.model.end_tokens import EndTemplate, find_template
from embedserve_runtime.model.files import ModelFile, ModelFiles
from embedserve_runtime.model.hf_files.tokenizers import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    BertTokenizerConfig,
    TokenizerConfig,
)
from embedserve_runtime.model.tokenizer_classes import OWN_CODE, find_tokenizer_class
from embedserve_runtime.model.vocabulary import flatten_steps

# Setting of tokenizer_config.json: switch of BertNormalizer, and the classes' default.
_CASE_SETTINGS: Mapping[str, tuple[str, bool | None]] = MappingProxyType(
    {"do_lower_case": ("lowercase", True), "strip_accents": ("strip_accents", None)}
)
_BERT_SETTINGS: Mapping[str, tuple[str, bool | None]] = MappingProxyType(
    {**_CASE_SETTINGS, "tokenize_chinese_chars": ("handle_chinese_chars", True)}
)
_BERT_CLASSES = (
    "BertTokenizer",
    "ConvBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "FunnelTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "RetriBertTokenizer",
    "SqueezeBertTokenizer",
)
SETTINGS_OF: Mapping[str, Mapping[str, tuple[str, bool | None]]] = MappingProxyType(
    {
        **dict.fromkeys(_BERT_CLASSES, _BERT_SETTINGS),
        "MPNetTokenizer": _CASE_SETTINGS,
        "SplinterTokenizer": _CASE_SETTINGS,
    }
)
# They are converted anew from their sentencepiece model where `add_prefix_space` is set.
_CONVERTED_CLASSES = ("LlamaTokenizer", "T5Tokenizer", "MT5Tokenizer")
# transformers 5 writes it, and leaves tokenizer.json as it is.
_WITHOUT_SETTINGS = "TokenizersBackend"


@dataclass(frozen=True, slots=True)
class ResolvedTokenizer:
    """tokenizer.json as it is to be read.

    splits_special_tokens: whether a special token that a text writes out is read as other text is.
    overrides: what is not as tokenizer.json says, one sentence each.
    """

    file: ModelFile
    splits_special_tokens: bool = False
    overrides: tuple[str, ...] = ()


def resolve_tokenizer(files: ModelFiles) -> ResolvedTokenizer:
    """Return tokenizer.json as the folder's tokenizer class has it. Raises ModelFileMissing or ModelInvalid."""
    file, name = files.require(TOKENIZER_FILE), find_tokenizer_class(files)
    content = file.parse(dict[str, Any])
    changed, overrides = dict(content), []
    for part, value, why in _list_changes(files, name, content, file):
        changed[part] = value
        overrides += why
    splits = files.parse_if_there(
        TOKENIZER_CONFIG_FILE, TokenizerConfig, TokenizerConfig()
    ).split_special_tokens
    if splits:
        overrides.append(
            f"split_special_tokens of {TOKENIZER_CONFIG_FILE}: a special token in a text is text"
        )
    if changed != content:
        file = ModelFile(file.path, json.dumps(changed, ensure_ascii=False).encode())
    return ResolvedTokenizer(file, splits, tuple(overrides))


def _list_changes(
    files: ModelFiles, name: str | None, content: Mapping[str, Any], file: ModelFile
) -> Iterator[tuple[str, object, list[str]]]:
    """List the parts of tokenizer.json that the class replaces, by key, with reasons."""
    added = find_added_tokens(files, file, content)
    if added is not None:
        yield "added_tokens", *added
    template = find_template(files, name)
    if template is not None:
        yield "post_processor", template.post_processor, [_describe_template(template)]
    normalizer = content.get("normalizer") or {}
    if name is not None and name in SETTINGS_OF and normalizer.get("type") == "BertNormalizer":
        switches, why = _choose_switches(files, name, normalizer)
        if why:
            yield "normalizer", {**normalizer, **switches}, why
    adds_blank = _choose_prefix(files, name, content)
    if adds_blank is not None:
        prefix = "a blank" if adds_blank else "no blank"
        yield (
            "pre_tokenizer",
            {**content["pre_tokenizer"], "add_prefix_space": adds_blank},
            [f"add_prefix_space of {name}: {prefix} is put before a text, against {TOKENIZER_FILE}"],
        )


def _choose_switches(
    files: ModelFiles, name: str, normalizer: Mapping[str, object]
) -> tuple[Mapping[str, object], list[str]]:
    """Return the switches of BertNormalizer that the class changes, with a reason for each."""
    config = files.parse_if_there(TOKENIZER_CONFIG_FILE, BertTokenizerConfig, BertTokenizerConfig())
    switches, why = {}, []
    for setting, (switch, _) in SETTINGS_OF[name].items():
        value, former = getattr(config, setting), normalizer.get(switch)
        if value != former:
            origin = TOKENIZER_CONFIG_FILE if setting in config.model_fields_set else f"{name}'s default"
            switches[switch] = value
            why.append(
                f"{setting} = {json.dumps(value)} ({origin}), against {switch} = {json.dumps(former)} of "
                f"{TOKENIZER_FILE}"
            )
    return switches, why


def _choose_prefix(files: ModelFiles, name: str | None, content: Mapping[str, Any]) -> bool | None:
    """Return whether a blank is put before a text; None where that is as tokenizer.json says it.

    Raises ModelInvalid for a class that would be converted anew.
    """
    if name is None or name == _WITHOUT_SETTINGS or name.startswith(OWN_CODE):
        return None
    config = files.parse_if_there(TOKENIZER_CONFIG_FILE, TokenizerConfig, TokenizerConfig())
    adds_prefix = config.add_prefix_space
    if name in _CONVERTED_CLASSES:
        if adds_prefix is not None and adds_prefix != _adds_prefix(content):
            raise ModelInvalid(
                f"{files.path / TOKENIZER_CONFIG_FILE}: add_prefix_space = {json.dumps(adds_prefix)} is not what "
                f"{TOKENIZER_FILE} does; save the tokenizer again with transformers"
            )
        return None
    if adds_prefix is None and "add_prefix_space" not in config.model_fields_set:
        adds_prefix = False
    pre_tokenizer = content.get("pre_tokenizer") or {}
    if pre_tokenizer.get("type") != "ByteLevel" or pre_tokenizer.get("add_prefix_space") == adds_prefix:
        return None
    return adds_prefix


def _adds_prefix(content: Mapping[str, Any]) -> bool:
    """Return whether tokenizer.json puts a blank, or what stands for one, before a text."""
    steps = [
        *flatten_steps(content.get("normalizer"), "normalizers"),
        *flatten_steps(content.get("pre_tokenizer"), "pretokenizers"),
    ]
    return any(
        step["type"] == "Prepend"
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        or (step["type"] == "ByteLevel" and step.get("add_prefix_space"))
        for step in steps
    )


def _describe_template(template: EndTemplate) -> str:
    ends = " ".join(token for token in (template.bos, "TEXT", template.eos) if token is not None)
    return f"add_bos_token and add_eos_token of {TOKENIZER_CONFIG_FILE}: {ends}, against {TOKENIZER_FILE}"
