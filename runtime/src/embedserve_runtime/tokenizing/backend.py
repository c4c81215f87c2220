"""Wraps the tokenizers library in calls that are thread-safe and bounded in memory.

One shared `tokenizers.Tokenizer`, set to neither pad nor truncate once and never changed again (its padding
and truncation are shared state, and changing them per call breaks under threads). Callers truncate the ids
instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from tokenizers import Encoding, Tokenizer

from embedserve_runtime.errors import InputTooLong, InvalidInput
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.tokenizing.tokenizer_json import read_boundaries, read_special_tokens
from embedserve_runtime.tokenizing.truncation import Side, truncate_ids
from embedserve_runtime.tokenizing.word_tokenizer import WordTokenizer

ItemT = TypeVar("ItemT")

# Up to this size each text is a call of its own, without the library's thread pool, where a short text would queue
# after another request's large batch, and without releasing the interpreter, which costs two thread switches under
# load.
MAX_SEQUENTIAL_CHARACTERS = 2_048
# Larger requests go through the library in slices: its Encoding objects take some 150 bytes a token.
MAX_SLICE_CHARACTERS = 65_536
MAX_SLICE_TEXTS = 256
# A text with more characters than this per token of the model is first read in part.
WINDOW_CHARACTERS_PER_TOKEN = 8
WINDOW_GROWTH = 4
# Without word boundaries no more is read of a text: some 0.1 s of the library, and 60 MB where each character is a
# token.
MAX_CHARACTERS_PER_KEPT_TOKEN = 32
MIN_READ_CHARACTERS = 131_072


class UnreadableText(InputTooLong):
    """A text is too long to find the tokens that are kept; the message begins with "a text"."""


class Token(Struct, frozen=True):
    """A token with its offsets in prompt + input, in code points; special and id-array tokens have none.

    text: what stands between those offsets, or the vocabulary's own string.
    """

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None


class TokenIds(Struct, frozen=True, eq=False):
    """An encoding without offsets, which replaces the library's where those are not needed."""

    ids: Int32Array

    def __len__(self) -> int:
        return len(self.ids)


class TokenSegment(Struct, frozen=True):
    """The tokens from `start` to `stop` of an encoding, whose text begins at code point `shift` of the whole text."""

    encoding: Encoding | TokenIds
    start: int
    stop: int
    shift: int = 0

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def ids(self) -> list[int] | Int32Array:
        ids: list[int] | Int32Array = self.encoding.ids
        return ids if len(self) == len(ids) else ids[self.start : self.stop]

    def list_tokens(self, text: str) -> list[Token]:
        """Return the tokens with their offsets in the whole text."""
        encoding, where = self.encoding, slice(self.start, self.stop)
        assert not isinstance(encoding, TokenIds), "read without offsets"
        return [
            Token(token, name, True)
            if special
            else Token(token, text[a + self.shift : b + self.shift], False, a + self.shift, b + self.shift)
            for token, name, special, (a, b) in zip(
                encoding.ids[where],
                encoding.tokens[where],
                encoding.special_tokens_mask[where],
                encoding.offsets[where],
                strict=True,
            )
        ]


class EncodeOptions(Struct, frozen=True):
    """The options of encoding texts.

    token_limit: a part of the text with more tokens than this is enough.
    from_left: whether that part is the beginning of the text, else its end.
    special_tokens: whether special tokens are added. with_offsets: whether offsets are needed, which take time.
    """

    token_limit: int
    from_left: bool
    special_tokens: bool = False
    with_offsets: bool = False


class EncodedPart(Struct, frozen=True):
    """The encoding of as much of a text as is needed.

    is_whole: whether that is all of it. shift: the code point of the text at which the part begins.
    """

    encoding: Encoding | TokenIds
    is_whole: bool = True
    shift: int = 0

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """The offsets of the tokens, if they were asked for."""
        assert not isinstance(self.encoding, TokenIds), "read without offsets"
        offsets: list[tuple[int, int]] = self.encoding.offsets
        return offsets


class TokenizedText(Struct, frozen=True, eq=False):
    """The tokens of a text, without special tokens.

    ids: int32, those on the side that is kept, at most as many as fit. count: the number of tokens in the text; a lower
    bound of it, above what fits, where the text was not read to its end.
    """

    ids: Int32Array
    count: int
    is_whole: bool


class TokenizerBackend:
    """A tokenizer of the tokenizers library, shared by all threads."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        """Take ownership of the tokenizer, which must not be changed afterwards. Raises ModelInvalid."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer = tokenizer
        self.head, self.tail = read_special_tokens(tokenizer)
        self._special_token_bytes = self.head.tobytes(), self.tail.tobytes()
        tokenizer_json = json.loads(tokenizer.to_str())
        self._words = WordTokenizer.build(tokenizer, tokenizer_json)
        self._boundaries = read_boundaries(tokenizer_json)
        self._window = max(max_length * WINDOW_CHARACTERS_PER_TOKEN, MAX_SEQUENTIAL_CHARACTERS)
        self._max_characters = max(max_length * MAX_CHARACTERS_PER_KEPT_TOKEN, MIN_READ_CHARACTERS)

    def encode_parts(self, texts: Sequence[str], options: EncodeOptions) -> Iterator[EncodedPart]:
        """Encode as much of each text as the options need, in order; `texts` is one slice of a request. Very long texts
        are encoded one at a time, as the caller consumes them. Raises InvalidInput, UnreadableText.
        """
        looked_up = [self._look_up(text, options) if len(text) <= self._window else None for text in texts]
        short = iter(
            self._encode(
                [
                    text
                    for text, ids in zip(texts, looked_up, strict=True)
                    if ids is None and len(text) <= self._window
                ],
                options,
            )
        )
        for text, ids in zip(texts, looked_up, strict=True):
            if ids is not None:
                yield EncodedPart(TokenIds(ids))
            else:
                yield (
                    EncodedPart(next(short))
                    if len(text) <= self._window
                    else self._encode_long_text(text, options)
                )

    def look_up_texts(self, texts: Sequence[str]) -> Sequence[Int32Array | None]:
        """Return all ids of each text, with special tokens; None where the text cannot be read word by word. Gives
        FlatTokens where all texts were read together."""
        if self._words is None:
            return [None] * len(texts)
        lengths = [*map(len, texts)]
        if (
            len(texts) <= MAX_SLICE_TEXTS
            and sum(lengths) <= MAX_SLICE_CHARACTERS
            and max(lengths, default=0) <= self._window
        ):
            return self._words.encode_all(texts, *self._special_token_bytes)
        short = [text for text in texts if len(text) <= self._window]
        looked_up = iter(
            [
                ids
                for piece in split_into_slices(short, len)
                for ids in self._words.encode_all(piece, *self._special_token_bytes)
            ]
        )
        return [next(looked_up) if len(text) <= self._window else None for text in texts]

    def tokenize_texts(self, texts: Sequence[str], room: int, side: Side) -> list[TokenizedText]:
        """Tokenize each text, truncated on `side` to `room` tokens. Raises InvalidInput."""
        options = EncodeOptions(room, from_left=side == "right")
        bodies = []
        for piece in split_into_slices(texts, len):
            for part in self.encode_parts(piece, options):
                ids = np.array(part.encoding.ids, dtype=np.int32)
                # A copy, so that the ids that were cut off do not stay in memory.
                bodies.append(TokenizedText(truncate_ids(ids, room, side).copy(), len(ids), part.is_whole))
        return bodies

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text, or of its first `max_characters` characters, without special tokens."""
        return len(self._encode_one(text[: self._max_characters], EncodeOptions(0, from_left=True)))

    def encode_prefix(self, text: str, characters: int, max_length: int) -> TokenSegment:
        """Return the tokens, at most `max_length`, that are entirely within the first `characters` characters."""
        end, pattern = len(text), self._boundaries.pattern
        if pattern and (boundary := pattern.search(text, characters)):
            end = boundary.start()
        encoding = self.tokenizer.encode(text[:end], add_special_tokens=False)
        inside = sum(stop <= characters for _, stop in encoding.offsets)
        return TokenSegment(encoding, 0, min(inside, max_length))

    def _look_up(self, text: str, options: EncodeOptions) -> Int32Array | None:
        """Look up the ids of a text word by word; None where the library must read it whole."""
        if self._words is None or options.with_offsets:
            return None
        return (
            self._words.encode(text, *self._special_token_bytes)
            if options.special_tokens
            else self._words.encode(text)
        )

    def _encode(self, texts: list[str], options: EncodeOptions) -> list[Encoding]:
        tokenizer, special = self.tokenizer, options.special_tokens
        try:
            if sum(map(len, texts)) <= MAX_SEQUENTIAL_CHARACTERS:
                return [tokenizer.encode(text, add_special_tokens=special) for text in texts]
            batch = tokenizer.encode_batch if options.with_offsets else tokenizer.encode_batch_fast
            encodings: list[Encoding] = batch(texts, add_special_tokens=special)
        except TypeError as error:  # the library's error for a string that has no UTF-8 form
            raise InvalidInput(
                "a text holds half of a surrogate pair, which is not valid Unicode; send the whole character"
            ) from error
        return encodings

    def _encode_one(self, text: str, options: EncodeOptions) -> Encoding:
        return self._encode([text], options)[0]

    def _encode_long_text(self, text: str, options: EncodeOptions) -> EncodedPart:
        """Encode as much of a very long text as the options need. Raises UnreadableText.

        A part that ends at a word boundary has the same ids as the whole text there. So once it has more ids than
        `token_limit`, the rest does not matter: neither for truncation nor for the text being too long.
        """
        limit = min(len(text), self._max_characters)
        if (sequence := self._encode_to_boundary(text, options, limit)) is not None:
            return sequence
        return (
            EncodedPart(self._encode_one(text, options))
            if limit == len(text)
            else self._encode_end(text, options)
        )

    def _encode_to_boundary(self, text: str, options: EncodeOptions, limit: int) -> EncodedPart | None:
        """Encode a part that ends at a word boundary within `limit` characters; None where none has enough tokens."""
        pattern, keeps_right_part = self._boundaries.pattern, self._boundaries.keeps_right_part
        window = self._window
        while pattern and (options.from_left or keeps_right_part) and window < limit:
            boundary = (
                pattern.search(text, window, limit)
                if options.from_left
                else pattern.search(text, len(text) - window)
            )
            if boundary is None and options.from_left:
                break
            if boundary is not None:
                cut = boundary.start()
                encoding = self._encode_one(text[:cut] if options.from_left else text[cut:], options)
                if len(encoding) > options.token_limit:
                    return EncodedPart(encoding, False, 0 if options.from_left else cut)
            window *= WINDOW_GROWTH
        return None

    def _encode_end(self, text: str, options: EncodeOptions) -> EncodedPart:
        """Encode the end of a text that is kept, where no boundary makes it independent of the rest.

        Reading 16 MB to keep some hundred tokens takes the library half a minute and gigabytes. So two parts are read,
        one twice as long as the other: where all ids that are kept are the same in both, no character after them has
        changed them. Raises UnreadableText where they are not, or too few.
        """
        length, limit = self._max_characters, options.token_limit
        parts = [self._encode_one(_cut(text, size, options), options) for size in (length // 2, length)]
        shorter, longer = (
            part.ids[:limit] if options.from_left else part.ids[max(0, len(part) - limit) :] for part in parts
        )
        if len(parts[0]) <= limit or shorter != longer:
            where = "first" if options.from_left else "last"
            raise UnreadableText(
                f"a text has {len(text)} characters, and its {where} {length}, which is all that is read, have too "
                f"few words to cut them to {limit} tokens; send at most {length} characters, with blanks between words"
            )
        return EncodedPart(parts[1], False, 0 if options.from_left else len(text) - length)


def _cut(text: str, length: int, options: EncodeOptions) -> str:
    return text[:length] if options.from_left else text[len(text) - length :]


def split_into_slices(items: Sequence[ItemT], size: Callable[[ItemT], int]) -> Iterator[Sequence[ItemT]]:
    """Split the items of a request into slices of bounded size; most requests are one. size: characters or ids of an
    item."""
    start = total = 0
    for index, item in enumerate(items):
        total += size(item)
        if total > MAX_SLICE_CHARACTERS or index - start >= MAX_SLICE_TEXTS:
            if index > start:
                yield items[start:index]
            start, total = index, size(item)
    yield items[start:]
