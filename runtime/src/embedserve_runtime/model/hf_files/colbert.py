"""The files of multi-vector models that PyLate and ColBERT of Stanford have saved."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from embedserve_runtime.model.files import FileModel

METADATA_FILE = "artifact.metadata"


class QueryExpansionConfig(FileModel):
    """The `query_expansion` of a multi-vector model."""

    strategy: Literal["fixed", "min"]
    length: int
    attend: bool = False
    token: str | None = None


class RoleLengths(FileModel):
    """The keys of sentence_bert_config.json about queries and documents. PyLate wrote the same into
    config_sentence_transformers.json."""

    query_length: int | None = None
    document_length: int | None = None
    query_expansion: QueryExpansionConfig | None = None


class PyLateConfig(RoleLengths):
    """config_sentence_transformers.json as PyLate writes it."""

    model_type: str | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool | None = None
    attend_to_mask_tokens: bool | None = None
    skiplist_words: list[str] | None = None

    @property
    def has_settings(self) -> bool:
        """Return whether PyLate wrote any of them."""
        return bool(self.model_fields_set - {"model_type"})


class ColbertMetadata(FileModel):
    """artifact.metadata, which ColBERT of Stanford writes; the defaults are its own."""

    dim: PositiveInt = 128
    query_token_id: str | None = None
    doc_token_id: str | None = None
    query_maxlen: PositiveInt | None = None
    doc_maxlen: PositiveInt | None = None
    attend_to_mask_tokens: bool | None = None
    mask_punctuation: bool = True
