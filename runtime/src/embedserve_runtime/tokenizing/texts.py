"""One text a sequence, with its prompt and special tokens, and id arrays that are used as they are.

Ids are cut so that the special tokens, and with left truncation the prompt, survive. They equal what
sentence-transformers makes of the same text, cut to the same length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
from tokenizers import Tokenizer, processors

from embedserve_runtime.engines.base import FlatTokens, Int32Array, Tokens
from embedserve_runtime.errors import ConfigError, EmptyInput, InputTooLong, InvalidInput, ModelInvalid
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead, PromptTemplate, Task
from embedserve_runtime.model.static import StaticTable
from embedserve_runtime.tokenizing.layout import lowercase_first, register_markers
from embedserve_runtime.tokenizing.pairs import PairEncoder
from embedserve_runtime.tokenizing.reader import (
    Ids,
    Reader,
    TextPart,
    Token,
    TokenNeeds,
    TokenSegment,
    pieces,
)
from embedserve_runtime.tokenizing.templates import TemplateEncoder
from embedserve_runtime.tokenizing.truncation import TruncationRules, truncate_ids

Input = str | list[int]

# Texts beyond are refused where every token is listed: TEI's bound.
TOKENIZE_CHARACTERS_PER_TOKEN = 250
# Prompts whose length in tokens is kept: so many, none longer than this.
REMEMBERED_PROMPTS = 64
REMEMBERED_CHARACTERS = 2_000


class TextTokenizer:
    """Turns the inputs of a request into int32 id arrays of at most `max_length`.

    queries: the tokenizer of queries, itself where they have none of their own.
    """

    queries: TextTokenizer

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        vocabulary_size: int,
        *,
        pair_types: bool = False,
        blank: int | None = None,
        characters: int | None = None,
        compiled: bool = False,
    ) -> None:
        """Takes the tokenizer over: nobody else may change it afterwards.

        vocabulary_size: rows of the model's word embeddings, which id arrays are checked against.
        pair_types: whether the encoder is told which of a pair's two texts a token belongs to.
        blank: id that stands for a text without tokens; None: such a text is refused.
        characters: of a text with its prompt that is cut on the right, no more than these are looked at.
        compiled: whether many texts at a time shall be fast, which takes time at start and some memory.
        """
        self._blank = blank
        self._characters = characters
        self._reader = Reader(tokenizer, max_length, compiled=compiled)
        self._tokenizer = tokenizer
        self.queries = self
        self._pair_types = pair_types
        self.max_length = max_length
        self.vocabulary_size = vocabulary_size
        # Prompts are few and come again with each request.
        self._prompt_tokens = lru_cache(REMEMBERED_PROMPTS)(self._count_prompt_tokens)
        self._written: tuple[TemplateEncoder, str] | None = None
        self._head, self._tail = self._reader.head, self._reader.tail
        self._room = max_length - len(self._head) - len(self._tail)
        if self._room < 1:
            raise ConfigError(f"max_length {max_length} leaves no room beside the model's special tokens")

    @classmethod
    def from_card(cls, card: ModelCard) -> TextTokenizer:
        """Build the tokenizer of a model. Raises ModelInvalid and ConfigError; for a reranker also when its tokenizer
        cannot make pairs."""
        built = cls._of_way(card)
        if card.query is not None and not card.shares_encoder:
            built.queries = cls._of_way(card.query.card)
        return built

    @classmethod
    def _of_way(cls, card: ModelCard) -> TextTokenizer:
        try:
            tokenizer = Tokenizer.from_str(card.tokenizer.content.decode())
        except Exception as error:  # the library raises plain Exception
            raise ModelInvalid(f"tokenizer.json cannot be read: {error}") from error
        if card.tokenizer.lowercase:
            lowercase_first(tokenizer)
        vocabulary = card.encoder.embeddings.vocabulary
        if not card.tokenizer.adds_special_tokens:
            tokenizer.post_processor = processors.Sequence([])
        if isinstance(card.body, StaticTable):
            per_token = card.body.token_characters
            return cls(
                tokenizer,
                card.max_length,
                vocabulary,
                blank=vocabulary,
                characters=None if per_token is None else card.max_length * per_token,
                compiled=True,
            )
        if card.late_interaction is not None:
            register_markers(tokenizer, card.late_interaction.markers)
        built = cls(tokenizer, card.max_length, vocabulary, pair_types=card.pair_types)
        if isinstance(card.head, ClassifierHead) and card.head.template is not None:
            built.rank_by(card.head.template)
        elif card.task is Task.RERANK:
            built.require_pairs()
        return built

    def within(self, max_length: int) -> TextTokenizer:
        """One for shorter or longer texts, over the same library object. Raises ConfigError."""
        return TextTokenizer(self._tokenizer, max_length, self.vocabulary_size, pair_types=self._pair_types)

    def rank_by(self, template: PromptTemplate) -> None:
        """Make pairs with a written prompt from now on. Raises ConfigError when it leaves no room."""
        self._written = (self.template(template.parts), template.instruction)

    def encode(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> Sequence[Int32Array]:
        """Token ids of each input, in order. Texts get the prompt put before them; id arrays are used as they
        are.

        Raises EmptyInput, InputTooLong, InvalidInput, each naming the input.
        """
        if not all(inputs):
            raise EmptyInput(f"input {[*map(bool, inputs)].index(False)} is empty")
        texts = [item for item in inputs if isinstance(item, str)]
        by_words = self._by_words([prompt + text for text in texts] if prompt else texts)
        if isinstance(by_words, FlatTokens) and len(by_words) == len(inputs):
            return by_words
        read = iter(by_words)
        known = [next(read) if isinstance(item, str) else None for item in inputs]
        others = [(index, inputs[index]) for index, ids in enumerate(known) if ids is None]
        fitted = self._fit(others, prompt, rules)
        return [next(fitted)[0] if ids is None else ids for ids in known]

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], rules: TruncationRules, *, prompt: str = ""
    ) -> list[Tokens]:
        """One sequence a pair, as transformers' fast tokenizers make it with `truncation=True`; with token types where
        the encoder is told them. The prompt goes before the first text, as in sentence-transformers' CrossEncoder; for
        a model with a written prompt it is the instruction in the place of the model's own.

        Raises EmptyInput, InputTooLong, InvalidInput, the first two naming the pair; ConfigError and ModelInvalid as
        `require_pairs` does.
        """
        if self._written is not None:
            encoder, instruction = self._written
            return [*encoder.encode(pairs, rules, instruction=prompt or instruction)]
        return self._pairs.encode(pairs, prompt, rules)

    def require_pairs(self) -> None:
        """Raise ModelInvalid or ConfigError when pairs cannot be encoded, which a single text does not need."""
        self._pairs  # noqa: B018  made at first use

    def template(self, parts: Sequence[str]) -> TemplateEncoder:
        """Build the encoder of models that rank by a written prompt, not by a pair template. Raises ConfigError."""
        return TemplateEncoder(self._reader, self.max_length, parts)

    def shorten(self, texts: Sequence[str], tokens: int) -> list[str]:
        """The beginning of each text that its first `tokens` tokens cover."""
        needs = TokenNeeds(tokens, from_left=True, offsets=True)
        shortened = []
        for piece in pieces(texts, len):
            for text, part in zip(piece, self._reader.parts(piece, needs), strict=True):
                offsets = part.offsets
                shortened.append(text[: offsets[tokens - 1][1]] if len(offsets) > tokens else text)
        return shortened

    def prompt_tokens(self, prompt: str) -> int:
        """How many leading tokens of a sequence `include_prompt: false` leaves out of pooling.

        The prompt is encoded alone, with special tokens and cut like a text, and its last token is not counted if
        that is a special one. Texts are not looked at: where a word goes on from the prompt into the text, or the
        sequence is shorter, the number is the same. Source: `Transformer._get_prompt_length` of
        sentence-transformers 6.2.
        """
        if len(prompt) <= REMEMBERED_CHARACTERS:
            return self._prompt_tokens(prompt)
        return self._count_prompt_tokens(prompt)

    def _count_prompt_tokens(self, prompt: str) -> int:
        if not prompt:
            return 0
        part = next(self._reader.parts([prompt], TokenNeeds(self.max_length, from_left=True, special=True)))
        if not len(part.encoding):
            return 0
        ids = _ids_of(self._fit_text(0, prompt, 0, part, TruncationRules(truncate=True)))
        return len(ids) - (int(ids[-1]) in self._special_ids)

    def locate(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> list[list[Token]]:
        """What `encode` gives, with the texts of the tokens and their places in prompt + input."""
        located = []
        for item, (ids, segments) in zip(
            inputs, self._fit([*enumerate(inputs)], prompt, rules, offsets=True), strict=True
        ):
            if isinstance(item, str):
                text = prompt + item
                located.append([token for segment in segments for token in segment.tokens(text)])
            else:
                located.append(self.named(ids))
        return located

    def named(self, ids: Int32Array) -> list[Token]:
        """Tokens that stand at no place of a text."""
        return [
            Token(token, text, False) for token, text in zip(ids.tolist(), self.token_texts(ids), strict=True)
        ]

    def tokenize(self, texts: Sequence[str], prompt: str, *, add_special_tokens: bool) -> list[list[Token]]:
        """All tokens of each text, uncut. Raises EmptyInput and InputTooLong for very long texts."""
        limit = self.max_length * TOKENIZE_CHARACTERS_PER_TOKEN
        for index, text in enumerate(texts):
            if not text:
                raise EmptyInput(f"input {index} is empty")
            if len(text) > limit:
                raise InputTooLong(f"input {index} has {len(text)} characters; at most {limit} are tokenized")
        tokenized = []
        for piece in pieces(texts, len):
            whole = [prompt + text for text in piece]
            encodings = self._tokenizer.encode_batch(whole, add_special_tokens=add_special_tokens)
            tokenized += [
                TokenSegment(encoding, 0, len(encoding.ids)).tokens(text)
                for text, encoding in zip(whole, encodings, strict=True)
            ]
        return tokenized

    def decode(self, sequences: Sequence[list[int]], *, skip_special_tokens: bool) -> list[str]:
        """Texts of id arrays. Raises EmptyInput, InvalidInput."""
        known = max(self.vocabulary_size, self._tokenizer.get_vocab_size(with_added_tokens=True))
        for index, ids in enumerate(sequences):
            if not ids:
                raise EmptyInput(f"input {index} is empty")
            _check_ids(index, ids, known)
        decoded: list[str] = self._tokenizer.decode_batch(
            list(sequences), skip_special_tokens=skip_special_tokens
        )
        return decoded

    def token_texts(self, ids: Int32Array) -> list[str]:
        """The vocabulary's own strings; empty for rows of the model that the tokenizer has no token for."""
        return [self._tokenizer.id_to_token(number) or "" for number in ids.tolist()]

    def _by_words(self, texts: Sequence[str]) -> Sequence[Int32Array | None]:
        """Ids of each text whose words are looked up and that needs no cut, as most do; else None. FlatTokens where
        all texts are such, read together."""
        limit = self._characters
        if limit is None or max(map(len, texts), default=0) <= limit:
            found = self._reader.by_words(texts)
            if isinstance(found, FlatTokens) and self._fit_as_they_are(found):
                return found
        else:
            known = iter(self._reader.by_words([text for text in texts if len(text) <= limit]))
            found = [next(known) if len(text) <= limit else None for text in texts]
        return [ids if ids is not None and 0 < len(ids) <= self.max_length else None for ids in found]

    def _fit_as_they_are(self, sequences: FlatTokens) -> bool:
        lengths = sequences.lengths
        return bool(lengths.min() > 0 and lengths.max() <= self.max_length)

    def _fit(
        self,
        inputs: Sequence[tuple[int, Input]],
        prompt: str,
        rules: TruncationRules,
        *,
        offsets: bool = False,
    ) -> Iterator[tuple[Int32Array, list[TokenSegment]]]:
        """Ids of each numbered input, and where they come from; one at a time, since the second is large."""
        from_left = not rules.truncate or rules.side == "right"
        needs = TokenNeeds(self.max_length, from_left, special=True, offsets=offsets)
        for piece in pieces(inputs, lambda numbered: len(numbered[1])):
            texts = [prompt + item for _, item in piece if isinstance(item, str)]
            if self._characters is not None and from_left:
                texts = [self._first_characters(text, rules) for text in texts]
            parts = self._reader.parts(texts, needs)
            for index, item in piece:
                if isinstance(item, str):
                    part = next(parts)
                    if self._blank is not None and not len(part.encoding):
                        yield np.array([self._blank], dtype=np.int32), []
                    elif isinstance(part.encoding, Ids) and 0 < len(part.encoding.ids) <= self.max_length:
                        yield part.encoding.ids, []
                    else:
                        segments = self._fit_text(index, prompt + item, len(prompt), part, rules)
                        yield _ids_of(segments), segments
                else:
                    yield self._fit_ids(index, item, rules), []

    def _fit_text(
        self, index: int, text: str, prompt_length: int, part: TextPart, rules: TruncationRules
    ) -> list[TokenSegment]:
        encoding, count = part.encoding, len(part.encoding)
        if not count:
            raise EmptyInput(f"input {index} has no tokens after normalising")
        if count <= self.max_length:
            return [TokenSegment(encoding, 0, count)]
        if not rules.truncate:
            raise self._too_long(index, count, exact=part.whole)
        head, tail = len(self._head), count - len(self._tail)
        if rules.side == "right":
            return [TokenSegment(encoding, 0, head + self._room), TokenSegment(encoding, tail, count)]
        # Special tokens and prompt stay, then comes the end of the text.
        prompt = [self._reader.leading(text, prompt_length, self._room)] if prompt_length else []
        kept = tail - (self._room - sum(map(len, prompt)))
        return [TokenSegment(encoding, 0, head), *prompt, TokenSegment(encoding, kept, count, part.shift)]

    def _first_characters(self, text: str, rules: TruncationRules) -> str:
        """Cut a very long text before it is tokenized. Raises InputTooLong."""
        if len(text) > (limit := self._characters or len(text)) and not rules.truncate:
            raise InputTooLong(
                f"an input has {len(text)} characters and the model reads at most {limit}; shorten it or set "
                "`truncate` to true"
            )
        return text[:limit]

    def _fit_ids(self, index: int, ids: list[int], rules: TruncationRules) -> Int32Array:
        _check_ids(index, ids, self.vocabulary_size)
        array = np.array(ids, dtype=np.int32)
        if len(ids) <= self.max_length:
            return array
        if not rules.truncate:
            raise self._too_long(index, len(ids), exact=True)
        if not self._is_framed(array):
            return truncate_ids(array, self.max_length, rules.side)
        content = array[len(self._head) : len(ids) - len(self._tail)]
        return np.concatenate((self._head, truncate_ids(content, self._room, rules.side), self._tail))

    def _is_framed(self, ids: Int32Array) -> bool:
        """Whether the client sent the special tokens along."""
        head, tail = self._head, self._tail
        return bool(
            np.array_equal(ids[: len(head)], head) and np.array_equal(ids[len(ids) - len(tail) :], tail)
        )

    @cached_property
    def _pairs(self) -> PairEncoder:
        return PairEncoder(self._reader, self.max_length, typed=self._pair_types)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    def _too_long(self, index: int, tokens: int, *, exact: bool) -> InputTooLong:
        return InputTooLong(
            f"input {index} has {'' if exact else 'at least '}{tokens} tokens and the model takes at most "
            f"{self.max_length}; shorten it or set `truncate` to true"
        )


def _check_ids(index: int, ids: list[int], vocabulary: int) -> None:
    if min(ids) < 0 or max(ids) >= vocabulary:
        wrong = next(value for value in ids if not 0 <= value < vocabulary)
        raise InvalidInput(f"input {index}: token id {wrong} is not in the vocabulary of {vocabulary}")


def _ids_of(segments: list[TokenSegment]) -> Int32Array:
    if len(segments) == 1:
        return np.array(segments[0].ids, dtype=np.int32)
    return np.concatenate([np.array(segment.ids, dtype=np.int32) for segment in segments])
