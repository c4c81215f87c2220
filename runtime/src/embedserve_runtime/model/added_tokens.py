"""Reads `added_tokens_decoder` of tokenizer_config.json, which transformers lays over tokenizer.json's added tokens.

Source: `PreTrainedTokenizerFast.__init__` of transformers 4.57.6 and `TokenizersBackend.__init__` of 5.24: every token
of the table is added to the tokenizer again. Where the flags of one differ, those of the table count; a token that is
not an added one yet becomes one, with the id that the vocabulary gives it, else the next one. The ids of the table only
order the tokens. A token that is named elsewhere, such as `eos_token`, is a special one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

from embedserve_runtime.model.files import ModelFile, ModelFiles
from embedserve_runtime.model.hf_files.tokenizers import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    DecoderToken,
    TokenizerConfig,
)
from embedserve_runtime.model.vocabulary import (
    UNUSED_TOKENS,
    parse_tokenizer,
    raise_on_panic,
    read_special_tokens,
)

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def find_added_tokens(
    files: ModelFiles, file: ModelFile, content: Mapping[str, Any]
) -> tuple[list[Mapping[str, object]], list[str]] | None:
    """Return the added tokens with those of the table laid over them, and what differs, one sentence each; None where
    nothing does.

    files: of the tokenizer. file: tokenizer.json; content: its content.

    Raises ModelInvalid.
    """
    config = files.parse_if_there(TOKENIZER_CONFIG_FILE, TokenizerConfig, TokenizerConfig())
    table = config.added_tokens_decoder
    if not table:
        return None
    special_tokens = _list_special_tokens(files, config)
    own = {token.get("content"): token for token in content.get("added_tokens") or []}
    differing = []
    for _, token in sorted(table.items()):
        flags = _resolve_flags(token, is_named=token.content in special_tokens)
        if token.content and flags != _read_flags(own.get(token.content)):
            differing.append((token.content, flags))
    if not differing:
        return None
    tokenizer = parse_tokenizer(file)
    with raise_on_panic(str(files.path / TOKENIZER_CONFIG_FILE)):
        tokenizer.add_tokens([AddedToken(text, **flags) for text, flags in differing])
    added: list[Mapping[str, object]] = json.loads(tokenizer.to_str())["added_tokens"]
    return added, [
        f"added_tokens_decoder of {TOKENIZER_CONFIG_FILE}: {json.dumps(text, ensure_ascii=False)} is "
        f"{_describe(flags)}, against {TOKENIZER_FILE}"
        for text, flags in differing
    ]


def _list_special_tokens(files: ModelFiles, config: TokenizerConfig) -> frozenset[str]:
    """List the tokens that the tokenizer's files name as special ones."""
    lists: Sequence[Any] = (config.additional_special_tokens, config.extra_special_tokens)
    more = [
        token
        for tokens in lists
        for token in (tokens.values() if isinstance(tokens, Mapping) else tokens or [])
    ]
    names = read_special_tokens(files, [*UNUSED_TOKENS, "mask_token"])
    return frozenset(
        [*names.values(), *(token if isinstance(token, str) else token.content for token in more)]
    )


def _resolve_flags(token: DecoderToken, *, is_named: bool) -> Mapping[str, bool]:
    normalized = not token.special if token.normalized is None else token.normalized
    return {
        "single_word": token.single_word,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": normalized,
        "special": token.special or is_named,
    }


def _read_flags(token: Mapping[str, object] | None) -> Mapping[str, object] | None:
    return None if token is None else {name: token.get(name, False) for name in FLAGS}


def _describe(flags: Mapping[str, bool]) -> str:
    return ", ".join(name for name, value in flags.items() if value) or "an added token without flags"
