"""Reads from the tokenizer's files the ids of tokens, and which of them are special ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.files import ModelFile, ModelFiles
from embedserve_runtime.model.hf_files.tokenizers import (
    SPECIAL_TOKENS_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    SpecialTokensMap,
    TokenizerJson,
)

# Special tokens that stand for nothing in a text, and how they are written where the tokenizer's files do not name
# them. A mask token is not among them: it takes the place of a word.
UNUSED_TOKENS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bos_token": ("<s>",),
        "cls_token": ("[CLS]", "<s>"),
        "eos_token": ("</s>",),
        "pad_token": ("[PAD]", "<pad>"),
        "sep_token": ("[SEP]", "</s>"),
        "unk_token": ("[UNK]", "<unk>"),
    }
)


def read_special_tokens(files: ModelFiles, names: Sequence[str]) -> Mapping[str, str]:
    """Read the tokens named in the tokenizer's files, such as `cls_token`. Raises ModelInvalid."""
    tokens: dict[str, str] = {}
    for file in (SPECIAL_TOKENS_FILE, TOKENIZER_CONFIG_FILE):  # the second overrides the first
        content = files.parse_if_there(file, SpecialTokensMap, SpecialTokensMap())
        for name in names:
            token = getattr(content, name)
            if token is not None:
                tokens[name] = token if isinstance(token, str) else token.content
    return MappingProxyType(tokens)


def read_unused_token_ids(files: ModelFiles) -> tuple[int, ...]:
    """Return the ids, ascending, of the special tokens that stand for nothing in a text: those around it, padding and
    the unknown token. files: the encoder's. Raises ModelInvalid where the tokenizer has none."""
    ids = read_token_ids(files)
    added = {
        token.content for token in files.parse(TOKENIZER_FILE, TokenizerJson).added_tokens if token.special
    }
    special_tokens = read_special_tokens(files, [*UNUSED_TOKENS])
    usual = {
        token for name, tokens in UNUSED_TOKENS.items() if name not in special_tokens for token in tokens
    }
    unused = sorted({ids[token] for token in {*special_tokens.values(), *(usual & added)} if token in ids})
    if not unused:
        raise ModelInvalid(
            f"{files.path / TOKENIZER_FILE}: has no special tokens, whose lexical weights are dropped; name them in "
            "tokenizer_config.json"
        )
    return tuple(unused)


def read_token_ids(files: ModelFiles) -> Mapping[str, int]:
    """Read the id of every token as the vocabulary writes it, added ones included. Raises ModelError."""
    content = files.parse(TOKENIZER_FILE, TokenizerJson)
    vocabulary = content.model.vocab or {}
    if isinstance(vocabulary, list):
        vocabulary = {
            _read_token(files.path / TOKENIZER_FILE, pair): number for number, pair in enumerate(vocabulary)
        }
    return MappingProxyType({**vocabulary, **{token.content: token.id for token in content.added_tokens}})


def _read_token(path: Path, pair: object) -> str:
    """Read the token of a Unigram vocabulary's pair of token and score. Raises ModelInvalid."""
    match pair:
        case [str(token), int() | float()]:
            return token
    raise ModelInvalid(f"{path}: model.vocab has {pair!r}, which is not a pair of a token and its score")


def find_max_token_id(file: ModelFile) -> int:
    """Return the largest id that tokenizer.json gives, -1 without any. Raises ModelInvalid."""
    content = file.parse(TokenizerJson)
    vocabulary = content.model.vocab or {}
    own = len(vocabulary) - 1 if isinstance(vocabulary, list) else max(vocabulary.values(), default=-1)
    return max([own, *(token.id for token in content.added_tokens)])


@contextmanager
def raise_on_panic(file: str) -> Iterator[None]:
    """Raise ModelInvalid, which names the file, where the code inside makes the tokenizers library panic.

    The library reads some files, such as a template of special tokens that it does not list, and panics when they are
    first used. pyo3 raises PanicException, which is no Exception and cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelInvalid(f"{file} cannot be used, the tokenizers library panics: {error}") from error


def parse_tokenizer(file: ModelFile) -> Tokenizer:
    """Build the library's tokenizer from its file. Raises ModelInvalid."""
    text = file.as_text()
    with raise_on_panic(str(file.path)):
        try:
            return Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise ModelInvalid(f"{file.path} cannot be read: {error}") from error


def flatten_steps(part: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    """List the steps of a normalizer or pre-tokenizer, with nested sequences flattened.

    children: the key of a sequence's steps.
    """
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [leaf for child in part[children] for leaf in flatten_steps(child, children)]
    return [part]
