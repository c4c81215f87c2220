"""Which id a token has, read from tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.model.files import FileModel, read_json


class _AddedToken(FileModel):
    id: int
    content: str


class _Model(FileModel):
    """A vocabulary by token, or (Unigram) a list of pairs of token and score, in the order of the ids."""

    vocab: dict[str, int] | list[tuple[str, float]] | None = None


class _TokenizerFile(FileModel):
    added_tokens: tuple[_AddedToken, ...] = ()
    model: _Model = _Model()


def token_ids(tokenizer_file: Path) -> Mapping[str, int]:
    """The id of every token as the vocabulary writes it, added ones included. Raises ModelError."""
    content = read_json(tokenizer_file, _TokenizerFile)
    vocabulary = content.model.vocab or {}
    if isinstance(vocabulary, list):
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    return MappingProxyType({**vocabulary, **{token.content: token.id for token in content.added_tokens}})
