"""Which id a token has by tokenizer.json, and which tokens are special ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tokenizers import Tokenizer

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.files import FileModel, ModelFile, ModelFiles

TOKENIZER_FILE = "tokenizer.json"


class _AddedToken(FileModel):
    id: int
    content: str


class _Model(FileModel):
    """A vocabulary by token, or (Unigram) a list of pairs of token and score, in the order of the ids."""

    vocab: dict[str, int] | list[tuple[str, float]] | None = None


class _TokenizerFile(FileModel):
    added_tokens: tuple[_AddedToken, ...] = ()
    model: _Model = _Model()


class _Content(FileModel):
    content: str


class _SpecialTokens(FileModel):
    """tokenizer_config.json or special_tokens_map.json, which write a token as text or as an object."""

    bos_token: str | _Content | None = None
    cls_token: str | _Content | None = None
    eos_token: str | _Content | None = None
    mask_token: str | _Content | None = None
    pad_token: str | _Content | None = None
    sep_token: str | _Content | None = None
    unk_token: str | _Content | None = None


def read_special_tokens(files: ModelFiles, names: Sequence[str]) -> Mapping[str, str]:
    """The tokens of those names (`cls_token` and the like) that the tokenizer's files say. Raises ModelInvalid."""
    found: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):  # the second has the last word
        content = files.parse_if_there(file, _SpecialTokens, _SpecialTokens())
        for name in names:
            token = getattr(content, name)
            if token is not None:
                found[name] = token if isinstance(token, str) else token.content
    return MappingProxyType(found)


def read_token_ids(files: ModelFiles) -> Mapping[str, int]:
    """The id of every token as the vocabulary writes it, added ones included. Raises ModelError."""
    content = files.parse(TOKENIZER_FILE, _TokenizerFile)
    vocabulary = content.model.vocab or {}
    if isinstance(vocabulary, list):
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    return MappingProxyType({**vocabulary, **{token.content: token.id for token in content.added_tokens}})


def parse_tokenizer(file: ModelFile) -> Tokenizer:
    """Build the library's tokenizer from its file. Raises ModelInvalid."""
    text = file.as_text()
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise ModelInvalid(f"{file.path} cannot be read: {error}") from error
