"""Reads which tokens a tokenizer class puts around a text by `add_bos_token` and `add_eos_token` of
tokenizer_config.json, where tokenizer.json alone does not say it.

Source: transformers 4.57.6, the fast tokenizers with `update_post_processor`: they replace the post-processor of
tokenizer.json by a template made from these flags. All other classes of transformers 4 ignore the flags, Qwen2's among
them, whose repositories often write `add_bos_token: false` next to a tokenizer.json that adds an end token. Models of
gte-Qwen2 bring code of their own, a `Qwen2TokenizerFast` that does the same for the end token.

A folder without either flag is left to tokenizer.json, which transformers wrote with the template in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.hf_files.tokenizers import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    PostProcessor,
    TokenizerConfig,
    TokenizerJson,
)
from embedserve_runtime.model.tokenizer_classes import OWN_CODE
from embedserve_runtime.model.vocabulary import read_special_tokens, read_token_ids

GTE_QWEN2 = f"{OWN_CODE}Qwen2Tokenizer"


@dataclass(frozen=True, slots=True)
class _EndTokens:
    """The tokens that a class of tokenizers adds where tokenizer_config.json does not say it.

    bos, eos: the tokens; None for a token that the class never adds. adds_bos: whether texts begin with `bos`. Of no
    class they end with `eos` unless that is asked for.
    """

    bos: str | None
    eos: str
    adds_bos: bool


_LLAMA = _EndTokens("<s>", "</s>", adds_bos=True)
CLASSES: Mapping[str, _EndTokens] = MappingProxyType(
    {
        "LlamaTokenizer": _LLAMA,
        "CodeLlamaTokenizer": _LLAMA,
        "GemmaTokenizer": _EndTokens("<bos>", "<eos>", adds_bos=True),
        "CohereTokenizer": _EndTokens("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", adds_bos=True),
        "GPTNeoXTokenizer": _EndTokens("<|endoftext|>", "<|endoftext|>", adds_bos=False),
        GTE_QWEN2: _EndTokens(None, "<|endoftext|>", adds_bos=False),
    }
)


@dataclass(frozen=True, slots=True)
class EndTemplate:
    """The tokens that a text begins and ends with, None for no token.

    post_processor: what puts them there, as tokenizer.json writes it.
    """

    bos: str | None
    eos: str | None
    post_processor: Mapping[str, object]


def find_template(files: ModelFiles, tokenizer_class: str | None) -> EndTemplate | None:
    """Return the template that a folder's tokenizer class has instead of tokenizer.json's post-processor; None
    where that puts the same tokens around a text. Raises ModelInvalid."""
    ends = _find_end_tokens(files, tokenizer_class)
    if ends is None:
        return None
    bos, eos = ends
    template = [token for token in (bos, "A", eos) if token is not None]
    if _find_single_template(files.parse(TOKENIZER_FILE, TokenizerJson).post_processor) == template:
        return None
    ids = read_token_ids(files)
    for flag, token in (("add_bos_token", bos), ("add_eos_token", eos)):
        if token is not None and token not in ids:
            raise ModelInvalid(
                f"{files.path / TOKENIZER_CONFIG_FILE}: {flag} asks for {token}, which {TOKENIZER_FILE} does not have"
            )
    return EndTemplate(bos, eos, _build_template(bos, eos, ids))


def _find_end_tokens(files: ModelFiles, tokenizer_class: str | None) -> tuple[str | None, str | None] | None:
    """Return the tokens that a text begins and ends with, each None for no token; None where tokenizer.json decides."""
    config = files.parse_if_there(TOKENIZER_CONFIG_FILE, TokenizerConfig, TokenizerConfig())
    ends = CLASSES.get(tokenizer_class or "")
    if ends is None or (config.add_bos_token is None and config.add_eos_token is None):
        return None
    special_tokens = read_special_tokens(files, ("bos_token", "eos_token"))
    adds_bos = ends.adds_bos if config.add_bos_token is None else config.add_bos_token
    return (
        special_tokens.get("bos_token", ends.bos) if adds_bos and ends.bos is not None else None,
        special_tokens.get("eos_token", ends.eos) if config.add_eos_token else None,
    )


def _find_single_template(processor: PostProcessor | None) -> list[str] | None:
    """List special tokens and text ("A") of the template for a single text; None for a post-processor without one."""
    templates = [step for step in _flatten(processor) if step.type == "TemplateProcessing"]
    unsupported = [
        step for step in _flatten(processor) if step.type not in ("TemplateProcessing", "ByteLevel")
    ]
    if unsupported or len(templates) > 1:
        return None
    if not templates:
        return ["A"]
    return [part.id for piece in templates[0].single for part in piece.values()]


def _flatten(processor: PostProcessor | None) -> Iterator[PostProcessor]:
    if processor is None:
        return
    if processor.type == "Sequence":
        for step in processor.processors:
            yield from _flatten(step)
    else:
        yield processor


def _build_template(bos: str | None, eos: str | None, ids: Mapping[str, int]) -> dict[str, object]:
    """Build the template of `update_post_processor` as tokenizer.json writes it."""
    first, second = (_build_pieces(bos, eos, text, number) for number, text in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": first + second,
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in (bos, eos)
            if token is not None
        },
    }


def _build_pieces(bos: str | None, eos: str | None, text: str, number: int) -> list[dict[str, object]]:
    def write_special_token(token: str | None) -> list[dict[str, object]]:
        return [] if token is None else [{"SpecialToken": {"id": token, "type_id": number}}]

    return [
        *write_special_token(bos),
        {"Sequence": {"id": text, "type_id": number}},
        *write_special_token(eos),
    ]
