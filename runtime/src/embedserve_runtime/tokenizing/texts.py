"""Encodes single texts with their prompt and special tokens; id arrays are used as they are.

Truncation keeps the special tokens and, on the left side, the prompt. The ids equal those of sentence-transformers for
the same text, truncated to the same length.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
from tokenizers import Tokenizer, processors

from embedserve_runtime.errors import EmptyInput, InputTooLong, InvalidInput, ModelInvalid
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import FlatTokens, Tokens
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead, PromptTemplate, Task
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_FILE
from embedserve_runtime.model.static import StaticTable
from embedserve_runtime.model.vocabulary import raise_on_panic
from embedserve_runtime.tokenizing.backend import (
    EncodedPart,
    EncodeOptions,
    Token,
    TokenIds,
    TokenizerBackend,
    TokenSegment,
    UnreadableText,
    split_into_slices,
)
from embedserve_runtime.tokenizing.chunks import TextChunk, split_text
from embedserve_runtime.tokenizing.embedding_rows import EmbeddingRows, check_ids
from embedserve_runtime.tokenizing.length_limit import LengthLimit
from embedserve_runtime.tokenizing.pairs import PairEncoder
from embedserve_runtime.tokenizing.table_texts import NO_TABLE, TableTexts
from embedserve_runtime.tokenizing.templates import TemplateEncoder
from embedserve_runtime.tokenizing.tokenizer_json import lowercase_first, register_markers
from embedserve_runtime.tokenizing.truncation import TruncationRules

Input = str | list[int]

# Longer texts are refused where every token is listed: TEI's bound.
MAX_CHARACTERS_PER_TOKEN = 250
# The cache of prompt lengths in tokens: how many prompts, and how long one may be.
MAX_CACHED_PROMPTS = 64
MAX_CACHED_PROMPT_CHARACTERS = 2_000


class TextTokenizer:
    """Turns the inputs of a request into int32 id arrays of at most `max_length`.

    queries: the tokenizer of queries; itself where they do not have one of their own.
    """

    queries: TextTokenizer

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        vocabulary_size: int,
        *,
        pair_types: bool = False,
        table: TableTexts = NO_TABLE,
    ) -> None:
        """Take ownership of the tokenizer, which must not be changed afterwards.

        vocabulary_size: rows of the model's word embeddings, which id arrays are checked against.
        pair_types: whether the encoder takes token types, which say which text of a pair a token belongs to.
        """
        self._empty_text_id = table.empty_text_id
        self._max_characters = table.max_characters
        self._backend = TokenizerBackend(tokenizer, max_length)
        self._tokenizer = tokenizer
        self.queries = self
        self._pair_types = pair_types
        self.vocabulary_size = vocabulary_size
        # A server sees few prompts, each with many requests.
        self._prompt_tokens = lru_cache(MAX_CACHED_PROMPTS)(self._count_prompt_tokens)
        self._template_encoder: TemplateEncoder | None = None
        self._rows = EmbeddingRows(vocabulary_size)
        self._limit = LengthLimit(self._backend, max_length)
        self.max_length = max_length

    @classmethod
    def from_card(cls, card: ModelCard) -> TextTokenizer:
        """Build the tokenizer of a model. Raises ModelInvalid and ConfigError; for a reranker also when its tokenizer
        cannot make pairs."""
        with raise_on_panic(TOKENIZER_FILE):
            built = cls._build_for_card(card)
            if card.query is not None and not card.shares_encoder:
                built.queries = cls._build_for_card(card.query.card)
        return built

    @classmethod
    def _build_for_card(cls, card: ModelCard) -> TextTokenizer:
        try:
            tokenizer = Tokenizer.from_str(card.tokenizer.content.decode())
        except Exception as error:  # the library raises plain Exception
            raise ModelInvalid(f"tokenizer.json cannot be read: {error}") from error
        tokenizer.encode_special_tokens = card.tokenizer.splits_special_tokens
        if card.tokenizer.lowercase:
            lowercase_first(tokenizer)
        vocabulary = card.encoder.embeddings.vocabulary
        if not card.tokenizer.adds_special_tokens:
            tokenizer.post_processor = processors.Sequence([])
        if isinstance(card.backbone, StaticTable):
            per_token = card.backbone.token_characters
            characters = None if per_token is None else card.max_length * per_token
            table = TableTexts(vocabulary, characters)
            return cls(tokenizer, card.max_length, vocabulary, table=table)
        if card.late_interaction is not None:
            register_markers(tokenizer, card.late_interaction.markers)
        built = cls(tokenizer, card.max_length, vocabulary, pair_types=card.pair_types)
        if isinstance(card.head, ClassifierHead) and card.head.template is not None:
            built.use_prompt_template(card.head.template)
        elif card.task is Task.RERANK:
            built.require_pairs()
        # Tables are checked where they are read; of an ONNX file the rows are not known.
        if card.backbone is None:
            late = card.late_interaction
            expansion = None if late is None else late.expansion
            filling = [] if expansion is None else [expansion.token]
            built._check_vocabulary(filling, card.task, card.tokenizer.max_token_id)
        return built

    def with_max_length(self, max_length: int) -> TextTokenizer:
        """Return a tokenizer of single texts with another limit, over the same library object. Raises ConfigError."""
        tokenizer = copy.copy(self)
        tokenizer.queries = tokenizer
        tokenizer._prompt_tokens = lru_cache(MAX_CACHED_PROMPTS)(tokenizer._count_prompt_tokens)
        tokenizer._limit = LengthLimit(self._backend, max_length)
        tokenizer.max_length = max_length
        return tokenizer

    def with_request_limit(self, max_length: int | None) -> TextTokenizer:
        """Return a tokenizer of single texts for a request that takes at most `max_length` of each; itself where the
        model takes no more anyway. Raises InvalidInput."""
        if max_length is None or max_length >= self.max_length:
            return self
        special_tokens = self.max_length - self._limit.room
        if max_length <= special_tokens:
            raise InvalidInput(
                f"a limit of {max_length} leaves no room beside the model's {special_tokens} special tokens; "
                "ask for more tokens"
            )
        return self.with_max_length(max_length)

    def _check_vocabulary(self, filling: Sequence[int], task: Task, max_token_id: int) -> None:
        """Raise ModelInvalid where texts have tokens without a row of the model's word embeddings. filling: the ids
        that queries are filled up with. max_token_id: the largest of the tokenizer's file; markers of multi-vector
        models become special tokens under the ids that they have there."""
        always = {*self._backend.head.tolist(), *self._backend.tail.tolist(), *filling}
        if task is Task.RERANK and self._template_encoder is None:
            always |= self._pair_encoder.special_tokens
        self._rows = EmbeddingRows.for_tokenizer(self._tokenizer, self.vocabulary_size, always, max_token_id)

    def use_prompt_template(self, template: PromptTemplate) -> None:
        """Encode pairs with a prompt template from now on. Raises ConfigError when it leaves no room."""
        self._template_encoder = self.build_template_encoder(template)

    def encode(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> Sequence[Int32Array]:
        """Encode each input, in order. Texts get the prompt before them; id arrays are used as they are.

        Raises EmptyInput, InputTooLong, InvalidInput, each naming the input.
        """
        if not all(inputs):
            raise EmptyInput(f"input {[*map(bool, inputs)].index(False)} is empty")
        texts = [item for item in inputs if isinstance(item, str)]
        by_words = self._look_up_words([prompt + text for text in texts] if prompt else texts)
        if isinstance(by_words, FlatTokens) and len(by_words) == len(inputs):
            self._rows.check_texts(by_words)
            return by_words
        read = iter(by_words)
        looked_up = [next(read) if isinstance(item, str) else None for item in inputs]
        remaining = [(index, inputs[index]) for index, ids in enumerate(looked_up) if ids is None]
        fitted = self._encode_inputs(remaining, prompt, rules)
        sequences = [next(fitted)[0] if ids is None else ids for ids in looked_up]
        self._rows.check_texts(sequences)
        return sequences

    def split(self, texts: Sequence[str], prompt: str) -> list[list[TextChunk]]:
        """Split each text into chunks that fit, in order. Raises EmptyInput, InputTooLong, InvalidInput."""
        split = [split_text(self._backend, self._limit, *numbered, prompt) for numbered in enumerate(texts)]
        self._rows.check_texts([chunk.ids for chunks in split for chunk in chunks])
        return split

    def encode_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        rules: TruncationRules,
        *,
        prompt: str = "",
        max_total: int | None = None,
    ) -> list[Tokens]:
        """Encode each pair as transformers' fast tokenizers do with `truncation=True`, with token types where the
        encoder takes them. The prompt goes before the first text, as in sentence-transformers' CrossEncoder; a model
        with a prompt template takes it as the instruction instead of its own. max_total: the tokens that all pairs may
        have together.

        Raises EmptyInput, InputTooLong, InvalidInput, the first two naming the pair; BatchTooLarge; ConfigError and
        ModelInvalid as `require_pairs` does.
        """
        if self._template_encoder is not None:
            sequences: list[Tokens] = [
                *self._template_encoder.encode(pairs, rules, instruction=prompt, max_total=max_total)
            ]
        else:
            sequences = self._pair_encoder.encode(pairs, prompt, rules, max_total)
        self._rows.check_texts(sequences)
        return sequences

    def require_pairs(self) -> None:
        """Raise ModelInvalid or ConfigError when pairs cannot be encoded, which a single text does not need."""
        self._pair_encoder  # noqa: B018  made at first use

    def build_template_encoder(self, template: PromptTemplate) -> TemplateEncoder:
        """Build the encoder of a model that reads pairs in a prompt template. Raises ConfigError."""
        return TemplateEncoder(self._backend, self.max_length, template)

    def shorten(self, texts: Sequence[str], tokens: int) -> list[str]:
        """Cut each text after its first `tokens` tokens."""
        # More than the model takes is cut off in any case.
        options = EncodeOptions(min(tokens, self.max_length), from_left=True, with_offsets=True)
        shortened = []
        for piece in split_into_slices(texts, len):
            for text, part in zip(piece, self._backend.encode_parts(piece, options), strict=True):
                offsets = part.offsets
                shortened.append(text[: offsets[tokens - 1][1]] if len(offsets) > tokens else text)
        return shortened

    def count_prompt_tokens(self, prompt: str) -> int:
        """Return how many leading tokens of a sequence `include_prompt: false` leaves out of pooling.

        The prompt is encoded alone, with special tokens and cut like a text, and its last token is not counted if
        that is a special one. The number does not depend on the text, even where a word spans prompt and text, or the
        sequence is shorter. Source: `Transformer._get_prompt_length` of
        sentence-transformers 6.2.
        """
        if len(prompt) <= MAX_CACHED_PROMPT_CHARACTERS:
            return self._prompt_tokens(prompt)
        return self._count_prompt_tokens(prompt)

    def _count_prompt_tokens(self, prompt: str) -> int:
        if not prompt:
            return 0
        part = next(
            self._backend.encode_parts(
                [prompt], EncodeOptions(self.max_length, from_left=True, special_tokens=True)
            )
        )
        if not len(part.encoding):
            return 0
        ids = _join_ids(self._limit.truncate_text(0, prompt, 0, part, TruncationRules(truncate=True)))
        return len(ids) - (int(ids[-1]) in self._special_ids)

    def locate(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> list[list[Token]]:
        """Return the tokens that `encode` gives, with their texts and their offsets in prompt + input."""
        located = []
        for item, (ids, segments) in zip(
            inputs, self._encode_inputs([*enumerate(inputs)], prompt, rules, offsets=True), strict=True
        ):
            if isinstance(item, str):
                text = prompt + item
                located.append([token for segment in segments for token in segment.list_tokens(text)])
            else:
                located.append(self.list_tokens_without_offsets(ids))
        return located

    def list_tokens_without_offsets(self, ids: Int32Array) -> list[Token]:
        """Return the tokens of ids that do not come from a text."""
        return [
            Token(token, text, False)
            for token, text in zip(ids.tolist(), self.look_up_token_texts(ids), strict=True)
        ]

    def tokenize(self, texts: Sequence[str], prompt: str, *, add_special_tokens: bool) -> list[list[Token]]:
        """Return all tokens of each text, without truncation. Raises EmptyInput, and InputTooLong for very long
        texts."""
        limit = self.max_length * MAX_CHARACTERS_PER_TOKEN
        for index, text in enumerate(texts):
            if not text:
                raise EmptyInput(f"input {index} is empty")
            if len(text) > limit:
                raise InputTooLong(f"input {index} has {len(text)} characters; at most {limit} are tokenized")
        tokenized = []
        for piece in split_into_slices(texts, len):
            whole = [prompt + text for text in piece]
            encodings = self._tokenizer.encode_batch(whole, add_special_tokens=add_special_tokens)
            tokenized += [
                TokenSegment(encoding, 0, len(encoding.ids)).list_tokens(text)
                for text, encoding in zip(whole, encodings, strict=True)
            ]
        return tokenized

    def decode(self, sequences: Sequence[list[int]], *, skip_special_tokens: bool) -> list[str]:
        """Decode id arrays to texts. Raises EmptyInput, InvalidInput."""
        token_count = max(self.vocabulary_size, self._tokenizer.get_vocab_size(with_added_tokens=True))
        for index, ids in enumerate(sequences):
            if not ids:
                raise EmptyInput(f"input {index} is empty")
            check_ids(index, ids, token_count)
        decoded: list[str] = self._tokenizer.decode_batch(
            list(sequences), skip_special_tokens=skip_special_tokens
        )
        return decoded

    def look_up_token_texts(self, ids: Int32Array) -> list[str]:
        """Return the vocabulary's strings; empty ones for rows of the model without a token in the tokenizer."""
        return [self._tokenizer.id_to_token(number) or "" for number in ids.tolist()]

    def _look_up_words(self, texts: Sequence[str]) -> Sequence[Int32Array | None]:
        """Look up the ids of each text word by word; None for texts that the library must read or that need truncation.

        Gives FlatTokens where all texts were read together.
        """
        limit = self._max_characters
        if limit is None or max(map(len, texts), default=0) <= limit:
            sequences = self._backend.look_up_texts(texts)
            if isinstance(sequences, FlatTokens) and self._need_no_truncation(sequences):
                return sequences
        else:
            short = iter(self._backend.look_up_texts([text for text in texts if len(text) <= limit]))
            sequences = [next(short) if len(text) <= limit else None for text in texts]
        return [ids if ids is not None and 0 < len(ids) <= self.max_length else None for ids in sequences]

    def _need_no_truncation(self, sequences: FlatTokens) -> bool:
        lengths = sequences.lengths
        return bool(lengths.min() > 0 and lengths.max() <= self.max_length)

    def _encode_inputs(
        self,
        inputs: Sequence[tuple[int, Input]],
        prompt: str,
        rules: TruncationRules,
        *,
        offsets: bool = False,
    ) -> Iterator[tuple[Int32Array, list[TokenSegment]]]:
        """Yield the ids of each numbered input with the segments that they come from, which are large."""
        from_left = not rules.truncate or rules.side == "right"
        options = EncodeOptions(self.max_length, from_left, special_tokens=True, with_offsets=offsets)
        for piece in split_into_slices(inputs, lambda numbered: len(numbered[1])):
            texts = [prompt + item for _, item in piece if isinstance(item, str)]
            if self._max_characters is not None and from_left:
                texts = [self._truncate_characters(text, rules) for text in texts]
            parts = self._backend.encode_parts(texts, options)
            for index, item in piece:
                if isinstance(item, str):
                    part = _read_next(parts, index)
                    if self._empty_text_id is not None and not len(part.encoding):
                        yield np.array([self._empty_text_id], dtype=np.int32), []
                    elif (
                        isinstance(part.encoding, TokenIds) and 0 < len(part.encoding.ids) <= self.max_length
                    ):
                        yield part.encoding.ids, []
                    else:
                        segments = self._limit.truncate_text(index, prompt + item, len(prompt), part, rules)
                        yield _join_ids(segments), segments
                else:
                    check_ids(index, item, self.vocabulary_size)
                    yield self._limit.truncate_id_array(index, np.array(item, dtype=np.int32), rules), []

    def _truncate_characters(self, text: str, rules: TruncationRules) -> str:
        """Truncate a very long text before it is tokenized. Raises InputTooLong."""
        if len(text) > (limit := self._max_characters or len(text)) and not rules.truncate:
            raise InputTooLong(
                f"an input has {len(text)} characters and the model reads at most {limit}; shorten it or set "
                "`truncate` to true"
            )
        return text[:limit]

    @cached_property
    def _pair_encoder(self) -> PairEncoder:
        return PairEncoder(self._backend, self.max_length, typed=self._pair_types)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)


def _read_next(parts: Iterator[EncodedPart], index: int) -> EncodedPart:
    """Read the next part. Raises UnreadableText, naming the input."""
    try:
        return next(parts)
    except UnreadableText as error:
        raise UnreadableText(f"input {index}{error.message.removeprefix('a text')}") from error


def _join_ids(segments: list[TokenSegment]) -> Int32Array:
    if len(segments) == 1:
        return np.array(segments[0].ids, dtype=np.int32)
    return np.concatenate([np.array(segment.ids, dtype=np.int32) for segment in segments])
