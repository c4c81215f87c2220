"""The files of a tokenizer: tokenizer.json, tokenizer_config.json and special_tokens_map.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from embedserve_runtime.model.files import FileModel

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"


class AddedToken(FileModel):
    """An entry of `added_tokens` in tokenizer.json."""

    id: int
    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Truncation(FileModel):
    """The `truncation` of tokenizer.json. max_length: tokens, special ones included."""

    max_length: PositiveInt | None = None
    direction: Literal["Left", "Right"] = "Right"


class TemplatePiece(FileModel):
    """A special token or a text of a template; `id` is "A" for the first text."""

    id: str


class PostProcessor(FileModel):
    """The `post_processor` of tokenizer.json. processors: of a sequence. single: of a template, for one text."""

    type: str
    processors: tuple[PostProcessor, ...] = ()
    single: tuple[dict[str, TemplatePiece], ...] = ()


class Vocabulary(FileModel):
    """The `model` of tokenizer.json.

    vocab: the ids by token, or (Unigram) a list of pairs of token and score in the order of the ids. The pairs are not
        checked here, which takes longer than decoding the file.
    unk_id: of the unknown token, where the model names it by id.
    """

    vocab: dict[str, int] | list[Any] | None = None
    unk_id: int | None = None


class TokenizerJson(FileModel):
    """tokenizer.json, which the tokenizers library writes and reads."""

    added_tokens: tuple[AddedToken, ...] = ()
    model: Vocabulary = Vocabulary()
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: PostProcessor | None = None
    truncation: Truncation | None = None


class SpecialToken(FileModel):
    """A special token that is written as an object."""

    content: str


class DecoderToken(FileModel):
    """An entry of `added_tokens_decoder` in tokenizer_config.json. normalized: by default what `special` is not."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False


SpecialTokens = list[str | SpecialToken] | dict[str, str | SpecialToken]


class TokenizerConfig(FileModel):
    """The keys of tokenizer_config.json that decide how any model's texts are read.

    added_tokens_decoder: by token id. additional_special_tokens, extra_special_tokens: the old and the new name.
    """

    tokenizer_class: str | None = None
    auto_map: object = None
    model_max_length: float | None = None
    model_input_names: list[str] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    add_prefix_space: bool | None = None
    split_special_tokens: bool = False
    added_tokens_decoder: dict[int, DecoderToken] | None = None
    additional_special_tokens: SpecialTokens | None = None
    extra_special_tokens: SpecialTokens | None = None


class PaddingConfig(FileModel):
    """The key of tokenizer_config.json that models with padded batches need."""

    padding_side: Literal["left", "right"] = "right"


class BertTokenizerConfig(FileModel):
    """The keys of tokenizer_config.json that the classes with a BertNormalizer need."""

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True


class NamedChatTemplate(FileModel):
    """One of several chat templates."""

    name: str
    template: str


class ChatTemplateConfig(FileModel):
    """The key of tokenizer_config.json that models with a chat template need."""

    chat_template: str | list[NamedChatTemplate] | None = None


class SpecialTokensMap(FileModel):
    """special_tokens_map.json, and the same keys of tokenizer_config.json: a token is text or an object."""

    bos_token: str | SpecialToken | None = None
    cls_token: str | SpecialToken | None = None
    eos_token: str | SpecialToken | None = None
    mask_token: str | SpecialToken | None = None
    pad_token: str | SpecialToken | None = None
    sep_token: str | SpecialToken | None = None
    unk_token: str | SpecialToken | None = None
