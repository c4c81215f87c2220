"""Multi-vector models (ColBERT): what the folder says of queries and documents besides the projection of each token.

Sources: sentence-transformers 6.2's MultiVectorEncoder, and how it reads the folders that PyLate saved before.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Literal

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.files import FileModel, read_json_if_there
from embedserve_runtime.model.heads.description import (
    HeadLayer,
    LateInteraction,
    MultiVectorHead,
    QueryExpansion,
)
from embedserve_runtime.model.modules import Modules

# ColBERT's own length of a query, where PyLate's files do not say it.
QUERY_LENGTH = 32


class _ExpansionFile(FileModel):
    strategy: Literal["fixed", "min"]
    length: int
    attend: bool = False
    token: str | None = None


class _Lengths(FileModel):
    """sentence_bert_config.json, and the part of config_sentence_transformers.json that PyLate wrote the same into."""

    query_length: int | None = None
    document_length: int | None = None
    query_expansion: _ExpansionFile | None = None


class _PyLate(_Lengths):
    """config_sentence_transformers.json as PyLate writes it."""

    model_type: str | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool | None = None
    attend_to_mask_tokens: bool | None = None
    skiplist_words: list[str] | None = None

    @property
    def written(self) -> bool:
        """Whether PyLate wrote any of it."""
        return bool(self.model_fields_set - {"model_type"})


class _MaskFile(FileModel):
    """The MultiVectorMask module."""

    skiplist_words: list[str] | None = None
    skiplist_tasks: str | list[str] | None = None
    keep_only_token_ids: list[int] | None = None


def multi_vector_head(folder: Path, encoder: Encoder, modules: Modules) -> MultiVectorHead:
    """Raises ModelInvalid or UnsupportedArchitecture, naming file and key."""
    pylate = read_json_if_there(folder / "config_sentence_transformers.json", _PyLate, _PyLate())
    old = pylate.model_type == "ColBERT"  # PyLate before 4 normalised and skipped without a module for it
    size = encoder.hidden_size
    layers = []
    for dense in modules.token_dense:
        if dense.in_features != size:
            raise UnsupportedArchitecture(
                f"{folder / dense.folder}: takes {dense.in_features} features, the step before gives {size}"
            )
        size = dense.out_features
        layers.append(HeadLayer.of_dense(dense))
    return MultiVectorHead(
        tuple(layers), modules.token_normalize or old, interaction=_interaction(folder, modules, pylate)
    )


def _interaction(folder: Path, modules: Modules, pylate: _PyLate) -> LateInteraction:
    own = read_json_if_there(folder / modules.transformer / "sentence_bert_config.json", _Lengths, _Lengths())
    mask = _MaskFile()
    if modules.mask is not None:
        path = folder / modules.mask / "config.json"
        mask = read_json_if_there(path, _MaskFile, _MaskFile())
        if mask.keep_only_token_ids:
            raise UnsupportedArchitecture(f"{path}: keep_only_token_ids is for images and is not supported")
    words = mask.skiplist_words
    if words is None and pylate.model_type == "ColBERT":
        words = pylate.skiplist_words if pylate.skiplist_words is not None else list(string.punctuation)
    tasks = [mask.skiplist_tasks] if isinstance(mask.skiplist_tasks, str) else mask.skiplist_tasks
    expansion = _expansion(own, pylate)
    return LateInteraction(
        query_prefix=pylate.query_prefix or "",
        document_prefix=pylate.document_prefix or "",
        query_length=expansion.length
        if expansion is not None and expansion.fixed
        else own.query_length or pylate.query_length,
        document_length=own.document_length or pylate.document_length,
        expansion=expansion,
        skipped_words=tuple(words or ()),
        skipped_tasks=tuple(tasks if tasks is not None else ["document"]),
    )


def _expansion(own: _Lengths, pylate: _PyLate) -> QueryExpansion | None:
    for file in (own, pylate):
        if "query_expansion" in file.model_fields_set:
            given = file.query_expansion
            if given is None:
                return None
            return QueryExpansion(given.length, given.strategy == "fixed", given.attend, given.token)
    if not pylate.written or not pylate.do_query_expansion:
        return None
    attend = pylate.attend_to_expansion_tokens
    if attend is None:
        attend = pylate.attend_to_mask_tokens
    return QueryExpansion(pylate.query_length or QUERY_LENGTH, fixed=True, attend=bool(attend))
