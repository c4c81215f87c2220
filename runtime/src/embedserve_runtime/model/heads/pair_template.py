"""Chooses the written prompt that a model judges pairs in, if its repository says one: by the decisions of CrossEncoder
of sentence-transformers 6.2, and for rerankers known by name where it would guess."""

from __future__ import annotations

from dataclasses import replace

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.heads.chat_template import (
    TEMPLATE_FILE,
    find_chat_template,
    read_prompt_template,
)
from embedserve_runtime.model.heads.config import HeadSource
from embedserve_runtime.model.heads.description import PromptTemplate
from embedserve_runtime.model.heads.rerankers import Reranker, list_titles
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_CONFIG_FILE
from embedserve_runtime.model.modules import ModelLayout
from embedserve_runtime.model.vocabulary import read_special_tokens


def find_pair_template(
    source: HeadSource, layout: ModelLayout, reranker: Reranker | None
) -> PromptTemplate | None:
    """Return the prompt that pairs are put into, None if there is none.

    With modules.json the Transformer module's file decides (`modality_config`); without it a chat template that tells
    queries from documents, then the name. Raises UnsupportedArchitecture or ModelInvalid.
    """
    module, own = layout.transformer, find_chat_template(source.files)
    if layout.modules.has_modules_file and module.message_format is None:
        return None
    if not layout.modules.has_modules_file and (own is None or not own.names_pair):
        return None if reranker is None else _write_beginning(source, reranker)
    if own is None:
        raise UnsupportedArchitecture(
            f"{module.path}: modality_config.message asks for a chat template; add {TEMPLATE_FILE}"
        )
    return read_prompt_template(source.files, own, module.message_format or "auto", module.template_variables)


def check_bare_pairs(source: HeadSource, layout: ModelLayout) -> None:
    """Raise UnsupportedArchitecture where pairs would be joined bare although the tokenizer has a chat template, which
    CrossEncoder would ask in and cannot."""
    own = find_chat_template(source.files)
    if own is not None and not layout.modules.has_modules_file:
        raise UnsupportedArchitecture(
            f"{own.path}: chat_template has no roles query and document, so nothing says in which prompt the model "
            "judges a pair. Give it one that has, or a README.md whose `base_model` is one of the known rerankers "
            f"({list_titles()}); where query and document are joined without a prompt, take chat_template out"
        )


def _write_beginning(source: HeadSource, reranker: Reranker) -> PromptTemplate:
    """Return the known prompt, after the tokenizer's first token if one is asked for. Raises ModelInvalid."""
    if not reranker.begins:
        return reranker.template
    special_tokens = read_special_tokens(source.files, ("bos_token",))
    if "bos_token" not in special_tokens:
        raise ModelInvalid(
            f"{source.files.path / TOKENIZER_CONFIG_FILE}: bos_token is missing, which prompts of {reranker.title} "
            "begin with"
        )
    return replace(reranker.template, parts=(special_tokens["bos_token"], *reranker.template.parts))
