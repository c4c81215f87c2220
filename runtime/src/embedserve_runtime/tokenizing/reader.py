"""The tokenizers library behind calls that are safe from several threads and bounded in memory.

One shared `tokenizers.Tokenizer`, set to neither pad nor truncate once and never changed again (its padding
and truncation are shared state, and changing them per call breaks under threads). Ids are cut by the callers
instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from tokenizers import Encoding, Tokenizer

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.tokenizing.layout import read_boundaries, read_special_tokens
from embedserve_runtime.tokenizing.truncation import Side, truncate_ids
from embedserve_runtime.tokenizing.words import WordTokenizer

ItemT = TypeVar("ItemT")

# Up to here one text a call: no thread pool of the library, where a short text would queue behind another
# request's large batch, and no release of the interpreter, which costs two thread switches under load.
FEW_CHARACTERS = 2_048
# Larger requests go through the library in pieces of this size: its Encoding objects take some 150 bytes a
# token.
PIECE_CHARACTERS = 65_536
PIECE_TEXTS = 256
# A text longer than this many characters a token is first looked at by its beginning only.
WINDOW_CHARACTERS_PER_TOKEN = 8
WINDOW_GROWTH = 4


class Token(Struct, frozen=True):
    """A token with its place in prompt + input, in code points; special and id-array tokens have none.

    text: what stands at that place, or the vocabulary's own string.
    """

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None


class Ids(Struct, frozen=True, eq=False):
    """What is needed of an encoding where nobody asks for the places of its tokens."""

    ids: Int32Array

    def __len__(self) -> int:
        return len(self.ids)


class TokenSegment(Struct, frozen=True):
    """Tokens start to stop of an encoding, whose text begins `shift` code points into the whole."""

    encoding: Encoding | Ids
    start: int
    stop: int
    shift: int = 0

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def ids(self) -> list[int] | Int32Array:
        ids: list[int] | Int32Array = self.encoding.ids
        return ids if len(self) == len(ids) else ids[self.start : self.stop]

    def tokens(self, text: str) -> list[Token]:
        encoding, where = self.encoding, slice(self.start, self.stop)
        assert not isinstance(encoding, Ids), "read without places"
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


class TokenNeeds(Struct, frozen=True):
    """What a caller wants to know of a text.

    enough: a part of the text with more tokens than this decides.
    from_left: whether that part is the beginning, or the end.
    special: with special tokens. offsets: with the places of the tokens, which take time.
    """

    enough: int
    from_left: bool
    special: bool = False
    offsets: bool = False


class TextPart(Struct, frozen=True):
    """The part of a text that is decisive. whole: all of it; shift: where in the text the part begins, in code
    points."""

    encoding: Encoding | Ids
    whole: bool = True
    shift: int = 0

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Places of its tokens; only of a part that was read with them."""
        assert not isinstance(self.encoding, Ids), "read without places"
        offsets: list[tuple[int, int]] = self.encoding.offsets
        return offsets


class Body(Struct, frozen=True, eq=False):
    """A text's own tokens, without special ones.

    ids: int32, those on the side that is kept, at most as many as fit. count: how many the text has; where not
    `whole`, it has that many or more, and more than fit.
    """

    ids: Int32Array
    count: int
    whole: bool


class Reader:
    def __init__(self, tokenizer: Tokenizer, max_length: int, *, compiled: bool) -> None:
        """Takes the tokenizer over: nobody else may change it afterwards. compiled: whether many texts at a time shall
        be fast. Raises ModelInvalid."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer = tokenizer
        self.head, self.tail = read_special_tokens(tokenizer)
        self._frame = self.head.tobytes(), self.tail.tobytes()
        layout = json.loads(tokenizer.to_str())
        self._words = WordTokenizer.build(tokenizer, layout, compiled=compiled)
        self._boundaries = read_boundaries(layout)
        self._window = max(max_length * WINDOW_CHARACTERS_PER_TOKEN, FEW_CHARACTERS)

    def parts(self, texts: Sequence[str], needs: TokenNeeds) -> Iterator[TextPart]:
        """Encode the decisive part of each text, in order; `texts` is one piece of a request. Very long texts are taken
        one at a time, as the caller goes on. Raises InvalidInput.
        """
        known = [self._known(text, needs) if len(text) <= self._window else None for text in texts]
        near = iter(
            self._encode(
                [
                    text
                    for text, ids in zip(texts, known, strict=True)
                    if ids is None and len(text) <= self._window
                ],
                needs,
            )
        )
        for text, ids in zip(texts, known, strict=True):
            if ids is not None:
                yield TextPart(Ids(ids))
            else:
                yield TextPart(next(near)) if len(text) <= self._window else self._far(text, needs)

    def by_words(self, texts: Sequence[str]) -> Sequence[Int32Array | None]:
        """All ids of each text, with special tokens; None where its words are not looked up. FlatTokens where all were
        read together."""
        if self._words is None:
            return [None] * len(texts)
        lengths = [*map(len, texts)]
        if (
            len(texts) <= PIECE_TEXTS
            and sum(lengths) <= PIECE_CHARACTERS
            and max(lengths, default=0) <= self._window
        ):
            return self._words.ids_of_all(texts, *self._frame)
        near = [text for text in texts if len(text) <= self._window]
        known = iter(
            [ids for piece in pieces(near, len) for ids in self._words.ids_of_all(piece, *self._frame)]
        )
        return [next(known) if len(text) <= self._window else None for text in texts]

    def bodies(self, texts: Sequence[str], room: int, side: Side) -> list[Body]:
        """The tokens of each text that may stay where `room` tokens fit. Raises InvalidInput."""
        needs = TokenNeeds(room, from_left=side == "right")
        bodies = []
        for piece in pieces(texts, len):
            for part in self.parts(piece, needs):
                ids = np.array(part.encoding.ids, dtype=np.int32)
                # A copy, lest the ids that were cut off stay in memory.
                bodies.append(Body(truncate_ids(ids, room, side).copy(), len(ids), part.whole))
        return bodies

    def count(self, text: str) -> int:
        """All tokens of the text, without special ones."""
        return len(self._encode_one(text, TokenNeeds(0, from_left=True)))

    def leading(self, text: str, characters: int, max_tokens: int) -> TokenSegment:
        """Return the tokens, at most `max_tokens`, that lie wholly in the first characters, as they come out before the
        rest."""
        end, pattern = len(text), self._boundaries.pattern
        if pattern and (found := pattern.search(text, characters)):
            end = found.start()
        encoding = self.tokenizer.encode(text[:end], add_special_tokens=False)
        inside = sum(stop <= characters for _, stop in encoding.offsets)
        return TokenSegment(encoding, 0, min(inside, max_tokens))

    def _known(self, text: str, needs: TokenNeeds) -> Int32Array | None:
        """Ids of a text by its words; None where the library must read it whole."""
        if self._words is None or needs.offsets:
            return None
        return self._words.ids(text, *self._frame) if needs.special else self._words.ids(text)

    def _encode(self, texts: list[str], needs: TokenNeeds) -> list[Encoding]:
        tokenizer, special = self.tokenizer, needs.special
        try:
            if sum(map(len, texts)) <= FEW_CHARACTERS:
                return [tokenizer.encode(text, add_special_tokens=special) for text in texts]
            batch = tokenizer.encode_batch if needs.offsets else tokenizer.encode_batch_fast
            encodings: list[Encoding] = batch(texts, add_special_tokens=special)
        except TypeError as error:  # what the library says of a string that has no UTF-8
            raise InvalidInput(
                "a text holds half of a surrogate pair, which is not valid Unicode; send the whole character"
            ) from error
        return encodings

    def _encode_one(self, text: str, needs: TokenNeeds) -> Encoding:
        return self._encode([text], needs)[0]

    def _far(self, text: str, needs: TokenNeeds) -> TextPart:
        """Encode as much of a very long text as decides.

        A part that ends at a word boundary has the ids of the whole text there. So once it has more ids than
        fit, the rest cannot matter: neither for the cut nor for knowing that the text is too long.
        """
        pattern, both_ways = self._boundaries.pattern, self._boundaries.both_ways
        window = self._window
        while pattern and (needs.from_left or both_ways) and window < len(text):
            found = pattern.search(text, window if needs.from_left else len(text) - window)
            if found is None and needs.from_left:
                break
            if found is not None:
                cut = found.start()
                encoding = self._encode_one(text[:cut] if needs.from_left else text[cut:], needs)
                if len(encoding) > needs.enough:
                    return TextPart(encoding, False, 0 if needs.from_left else cut)
            window *= WINDOW_GROWTH
        return TextPart(self._encode_one(text, needs))


def pieces(items: Sequence[ItemT], size: Callable[[ItemT], int]) -> Iterator[Sequence[ItemT]]:
    """Cut a request into parts of bounded size; most requests are one. size: characters or ids of an item."""
    start = total = 0
    for index, item in enumerate(items):
        total += size(item)
        if total > PIECE_CHARACTERS or index - start >= PIECE_TEXTS:
            if index > start:
                yield items[start:index]
            start, total = index, size(item)
    yield items[start:]
