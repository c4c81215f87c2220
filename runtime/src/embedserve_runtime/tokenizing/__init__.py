"""Tokenizes inputs into the ids that the model reads.

docs/tokenizing.md has the rules of truncation.

    input_encoders    queries and documents to sequences
    texts             single texts with their prompt, and id arrays
    embedding_rows    whether every token has a row in the model's word embeddings
    pairs             pairs of texts, by the tokenizer's template
    templates         pairs in the prompt template of a causal reranker
    truncation        which tokens stay
    chunks            long texts in parts that fit
    length_limit      single texts and id arrays, truncated to a length
    backend           the tokenizers library, thread-safe and bounded in memory
    tokenizer_json    what truncation depends on, read from that file
    pre_tokenizer     what happens to an ASCII word before the model reads it
    word_tokenizer    texts word by word, with a cache
    table_texts       what a table of token vectors changes in the tokens of texts

Calls block for as long as tokenizing takes: `service` keeps long ones off the event loop.
"""

from __future__ import annotations

from embedserve_runtime.tokenizing.backend import MAX_SEQUENTIAL_CHARACTERS, MAX_SLICE_TEXTS, Token
from embedserve_runtime.tokenizing.chunks import TextChunk
from embedserve_runtime.tokenizing.input_encoders import InputEncoders, TextEncoder
from embedserve_runtime.tokenizing.templates import TemplateEncoder
from embedserve_runtime.tokenizing.texts import Input, TextTokenizer
from embedserve_runtime.tokenizing.truncation import Side, TruncationRules

__all__ = [
    "MAX_SEQUENTIAL_CHARACTERS",
    "MAX_SLICE_TEXTS",
    "Input",
    "InputEncoders",
    "Side",
    "TemplateEncoder",
    "TextChunk",
    "TextEncoder",
    "TextTokenizer",
    "Token",
    "TruncationRules",
]
