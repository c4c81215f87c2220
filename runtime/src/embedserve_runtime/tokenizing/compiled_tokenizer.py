"""Tokenizes many texts at a time by a compiled loop, in one pass over their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from embedserve_runtime.engines.base import FlatTokens, Int32Array
from embedserve_runtime.loops.subwords import INSIDE, MARK
from embedserve_runtime.loops.tokenization import read
from embedserve_runtime.loops.tries import ROOT, Bytes, Nodes, build_trie, child
from embedserve_runtime.tokenizing.character_tables import CharacterTables, build_character_tables
from embedserve_runtime.tokenizing.pre_tokenizer import PreTokenizerSettings

# Tokenizers with more added tokens are not compiled: each name is searched in every text.
_MAX_NAMES = 64
# The library subtracts this from the lowest score for a character without a piece.
_UNKNOWN_PENALTY = 10.0


class CompiledEncoding(NamedTuple):
    """The ids of several texts.

    unread: uint8, shape (texts,), 1 for texts that could not be read, which have no ids; None where all could.
    """

    sequences: FlatTokens
    unread: Bytes | None


class VocabularyTables(NamedTuple):
    """The tables of a model's vocabulary, with the shapes and meaning that `loops.tokenization.read` gives them."""

    nodes: Nodes
    numbers: Int32Array
    scores: NDArray[np.float64]
    unknown: int
    max_word_length: int
    inside: int
    marked: bool
    unknown_score: float


class CompiledTokenizer:
    """Tokenizes texts by a compiled loop. Thread-safe; threads do not wait for each other."""

    def __init__(self, characters: CharacterTables, pieces: VocabularyTables) -> None:
        self._tables = (*characters, *pieces)

    @classmethod
    def build(
        cls, tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any], settings: PreTokenizerSettings
    ) -> CompiledTokenizer | None:
        """Compile a tokenizer; None for unsupported models. tokenizer_json: the content of that file."""
        pieces = build_vocabulary_tables(tokenizer_json["model"], settings.mark)
        if pieces is None or len(settings.added_tokens) > _MAX_NAMES:
            return None
        return cls(build_character_tables(tokenizer, tokenizer_json, settings), pieces)

    def read(self, texts: Sequence[str], head: bytes, tail: bytes) -> CompiledEncoding:
        """Tokenize at least one text. head, tail: ids before and after each, int32."""
        data = "\n".join(texts).encode("utf-8", "surrogatepass")
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        # An ASCII word has at most one piece for each letter, and one for its mark.
        ids = np.empty(len(data) + 1 + len(texts) * ((len(head) + len(tail)) // 4), np.int32)
        cu_seqlens, odd = np.empty(len(texts) + 1, np.int32), np.empty(len(texts), np.uint8)
        count, left_out = read(
            data, lengths, *self._tables, _to_array(head), _to_array(tail), ids, cu_seqlens, odd
        )
        return CompiledEncoding(FlatTokens(ids[:count].copy(), cu_seqlens), odd if left_out else None)


@lru_cache(maxsize=8)
def _to_array(ids: bytes) -> Int32Array:
    return np.frombuffer(ids, np.int32)


def build_vocabulary_tables(model: Mapping[str, Any], mark: str) -> VocabularyTables | None:
    """Build the tables of the `model` section of tokenizer.json.

    Returns None for models other than WordPiece and Unigram with an unknown token, and for millions of pieces. mark:
    the character before each word, or nothing.
    """
    match model:
        case {"type": "WordPiece"} if model["unk_token"] in model["vocab"]:
            return _build_wordpiece_tables(model, mark)
        case {"type": "Unigram"} if not model.get("byte_fallback") and model["unk_id"] is not None:
            return _build_unigram_tables(model, mark)
        case _:
            return None


def _build_wordpiece_tables(model: Mapping[str, Any], mark: str) -> VocabularyTables | None:
    vocabulary, prefix = model["vocab"], model["continuing_subword_prefix"]
    strings = dict(zip(_encode_pieces([*vocabulary], mark), vocabulary.values(), strict=True))
    start = prefix.encode()
    strings |= {
        bytes([INSIDE]) + piece[len(start) :]: number
        for piece, number in strings.items()
        if len(piece) > len(start) and piece.startswith(start)
    }
    strings.pop(b"", None)
    trie = build_trie(strings)
    if trie is None:
        return None
    return VocabularyTables(
        *trie,
        np.zeros(0, dtype=np.float64),
        vocabulary[model["unk_token"]],
        model["max_input_chars_per_word"],
        max(ROOT, child(trie.nodes, ROOT, INSIDE)),
        bool(mark),
        0.0,
    )


def _build_unigram_tables(model: Mapping[str, Any], mark: str) -> VocabularyTables | None:
    # The library takes the last of pieces that are listed twice.
    pieces = _encode_pieces([piece for piece, _ in model["vocab"]], mark)
    strings = dict(zip(pieces, range(len(pieces)), strict=True))
    strings.pop(b"", None)
    scores = np.array([score for _, score in model["vocab"]], dtype=np.float64)
    unknown_score = float(scores.min()) - _UNKNOWN_PENALTY
    trie = build_trie(strings)
    if trie is None:
        return None
    return VocabularyTables(*trie, scores, model["unk_id"], 0, ROOT, bool(mark), unknown_score)


def _encode_pieces(pieces: Sequence[str], mark: str) -> list[bytes]:
    """Encode the pieces, with one byte in place of the mark."""
    if not mark:
        return [piece.encode() for piece in pieces]
    before, after = mark.encode(), bytes([MARK])
    return [piece.encode().replace(before, after) for piece in pieces]
