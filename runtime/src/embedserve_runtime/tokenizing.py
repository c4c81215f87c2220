"""Texts and id arrays to the token ids that the model will see.

One shared `tokenizers.Tokenizer`, set to neither pad nor truncate once and never changed again (its padding
and truncation are shared state, and changing them per call breaks under threads). Ids are cut here instead,
so that the special tokens, and with left truncation the prompt, survive. The ids equal what
sentence-transformers makes of the same text, cut to the same length.

Calls block for as long as tokenising takes: `service` keeps long ones off the event loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer, normalizers

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.errors import ConfigError, EmptyInput, InputTooLong, InvalidInput, ModelInvalid
from embedserve_runtime.model.card import ModelCard

Side = Literal["left", "right"]
Input = str | list[int]
InputT = TypeVar("InputT", bound=Input)

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
# Texts beyond are refused where every token is listed: TEI's bound.
TOKENIZE_CHARACTERS_PER_TOKEN = 250

# Before a blank that follows a letter or digit, every pre-tokenizer of `_splits_at_blanks` starts a new word,
# and no normalizer looks across. Narrower than it could be (no punctuation, no exotic blanks), and so always
# right.
_BLANK = r"(?<=[^\W_])(?=[ \t\n])"
# BertNormalizer puts blanks around each ideograph of this block.
_IDEOGRAPHS = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"


@dataclass(frozen=True, slots=True)
class CutRules:
    """How inputs longer than the model takes are treated: refused, or cut on one side."""

    truncate: bool
    side: Side = "right"


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its place in prompt + input, in code points; special and id-array tokens have none.

    text: what stands at that place, or the vocabulary's own string.
    """

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens start to stop of an encoding, whose text begins `shift` code points into the whole."""

    encoding: Encoding
    start: int
    stop: int
    shift: int = 0

    def __len__(self) -> int:
        return self.stop - self.start

    def tokens(self, text: str) -> list[Token]:
        encoding, where = self.encoding, slice(self.start, self.stop)
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


class TextTokenizer:
    """Turns the inputs of a request into int32 id arrays of at most `max_length`."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, vocabulary_size: int) -> None:
        """Takes the tokenizer over: nobody else may change it afterwards.

        vocabulary_size: rows of the model's word embeddings, which id arrays are checked against.
        """
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.max_length = max_length
        self.vocabulary_size = vocabulary_size
        self._head, self._tail = _special_tokens(tokenizer)
        self._room = max_length - len(self._head) - len(self._tail)
        if self._room < 1:
            raise ConfigError(f"max_length {max_length} leaves no room beside the model's special tokens")
        self._window = max(self._room * WINDOW_CHARACTERS_PER_TOKEN, FEW_CHARACTERS)
        layout = json.loads(tokenizer.to_str())
        self._boundary = _boundary(layout)
        self._words_are_alike_everywhere = _is_bert(layout)

    @classmethod
    def from_card(cls, card: ModelCard) -> TextTokenizer:
        try:
            tokenizer = Tokenizer.from_file(str(card.tokenizer_file))
        except Exception as error:  # the library raises plain Exception
            raise ModelInvalid(f"{card.tokenizer_file.name} cannot be read: {error}") from error
        if card.lowercase:
            _lowercase_first(tokenizer)
        return cls(tokenizer, card.max_length, card.encoder.embeddings.vocabulary)

    def encode(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> list[Int32Array]:
        """Token ids of each input, in order. Texts get the prompt put before them; id arrays are used as they
        are.

        Raises EmptyInput, InputTooLong, InvalidInput, each naming the input.
        """
        for index, item in enumerate(inputs):
            if not item:
                raise EmptyInput(f"input {index} is empty")
        return [ids for ids, _ in self._fit(inputs, prompt, rules)]

    def locate(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> list[list[Token]]:
        """What `encode` gives, with the texts of the tokens and their places in prompt + input."""
        located = []
        for item, (ids, segments) in zip(inputs, self._fit(inputs, prompt, rules, offsets=True), strict=True):
            if isinstance(item, str):
                text = prompt + item
                located.append([token for segment in segments for token in segment.tokens(text)])
            else:
                located.append([Token(int(i), self._tokenizer.id_to_token(int(i)) or "", False) for i in ids])
        return located

    def tokenize(self, texts: Sequence[str], prompt: str, *, add_special_tokens: bool) -> list[list[Token]]:
        """All tokens of each text, uncut. Raises EmptyInput and InputTooLong for very long texts."""
        limit = self.max_length * TOKENIZE_CHARACTERS_PER_TOKEN
        for index, text in enumerate(texts):
            if not text:
                raise EmptyInput(f"input {index} is empty")
            if len(text) > limit:
                raise InputTooLong(f"input {index} has {len(text)} characters; at most {limit} are tokenized")
        tokenized = []
        for piece in _pieces(texts):
            whole = [prompt + text for text in piece]
            encodings = self._tokenizer.encode_batch(whole, add_special_tokens=add_special_tokens)
            tokenized += [
                Segment(encoding, 0, len(encoding.ids)).tokens(text)
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

    def _fit(
        self, inputs: Sequence[Input], prompt: str, rules: CutRules, *, offsets: bool = False
    ) -> Iterator[tuple[Int32Array, list[Segment]]]:
        """Ids of each input, and where they come from; one at a time, since the second is large."""
        index = 0
        for piece in _pieces(inputs):
            texts = [prompt + item for item in piece if isinstance(item, str)]
            encodings = iter(self._encode_texts(texts, offsets))
            for item in piece:
                if isinstance(item, str):
                    segments = self._fit_text(
                        index, prompt + item, len(prompt), next(encodings), rules, offsets=offsets
                    )
                    yield _ids_of(segments), segments
                else:
                    yield self._fit_ids(index, item, rules), []
                index += 1

    def _encode_texts(self, texts: list[str], offsets: bool) -> list[Encoding | None]:
        """None stands for a text beyond the window, which `_fit_text` takes step by step."""
        near = [text for text in texts if len(text) <= self._window]
        try:
            if sum(map(len, near)) <= FEW_CHARACTERS:
                encodings = [self._tokenizer.encode(text) for text in near]
            elif offsets:
                encodings = self._tokenizer.encode_batch(near)
            else:
                encodings = self._tokenizer.encode_batch_fast(near)
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"a text holds a character that is not valid Unicode: {error.reason}"
            ) from error
        ready = iter(encodings)
        return [next(ready) if len(text) <= self._window else None for text in texts]

    def _fit_text(
        self,
        index: int,
        text: str,
        prompt_length: int,
        encoding: Encoding | None,
        rules: CutRules,
        *,
        offsets: bool,
    ) -> list[Segment]:
        whole, shift = True, 0
        if encoding is None:
            encoding, whole, shift = self._encode_far(text, rules, offsets)
        count = len(encoding)
        if not count:
            raise EmptyInput(f"input {index} has no tokens after normalising")
        if count <= self.max_length:
            return [Segment(encoding, 0, count)]
        if not rules.truncate:
            raise self._too_long(index, count, exact=whole)
        head, tail = len(self._head), count - len(self._tail)
        if rules.side == "right":
            return [Segment(encoding, 0, head + self._room), Segment(encoding, tail, count)]
        # Special tokens and prompt stay, then comes the end of the text.
        prompt = self._prompt_segment(text, prompt_length)
        kept = tail - max(0, self._room - sum(len(segment) for segment in prompt))
        return [Segment(encoding, 0, head), *prompt, Segment(encoding, kept, count, shift)]

    def _encode_far(self, text: str, rules: CutRules, offsets: bool) -> tuple[Encoding, bool, int]:
        """Encode as much of a very long text as decides the result; say whether that was all, and where it begins.

        A part that ends at a word boundary has the ids of the whole text there. So once it has more ids than
        fit, the rest cannot matter: neither for the cut nor for knowing that the text is too long.
        """
        from_left = not rules.truncate or rules.side == "right"
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        window = self._window
        while self._boundary and (from_left or self._words_are_alike_everywhere) and window < len(text):
            found = self._boundary.search(text, window if from_left else len(text) - window)
            if found is None and from_left:
                break
            if found is not None:
                part = text[: found.start()] if from_left else text[found.start() :]
                encoding = encode([part])[0]
                if len(encoding) > self.max_length:
                    return encoding, False, 0 if from_left else found.start()
            window *= WINDOW_GROWTH
        return encode([text])[0], True, 0

    def _prompt_segment(self, text: str, prompt_length: int) -> list[Segment]:
        """The tokens that lie wholly inside the prompt, as they come out in front of this text."""
        if not prompt_length:
            return []
        end = len(text)
        if self._boundary and (found := self._boundary.search(text, prompt_length)):
            end = found.start()
        encoding = self._tokenizer.encode(text[:end], add_special_tokens=False)
        inside = sum(stop <= prompt_length for _, stop in encoding.offsets)
        return [Segment(encoding, 0, min(inside, self._room))]

    def _fit_ids(self, index: int, ids: list[int], rules: CutRules) -> Int32Array:
        _check_ids(index, ids, self.vocabulary_size)
        array = np.array(ids, dtype=np.int32)
        if len(ids) <= self.max_length:
            return array
        if not rules.truncate:
            raise self._too_long(index, len(ids), exact=True)
        if not self._is_framed(array):
            return array[: self.max_length] if rules.side == "right" else array[-self.max_length :]
        head, tail = len(self._head), len(ids) - len(self._tail)
        content = slice(head, head + self._room) if rules.side == "right" else slice(tail - self._room, tail)
        return np.concatenate((self._head, array[content], self._tail))

    def _is_framed(self, ids: Int32Array) -> bool:
        """Whether the client sent the special tokens along."""
        head, tail = self._head, self._tail
        return bool(
            np.array_equal(ids[: len(head)], head) and np.array_equal(ids[len(ids) - len(tail) :], tail)
        )

    def _too_long(self, index: int, tokens: int, *, exact: bool) -> InputTooLong:
        return InputTooLong(
            f"input {index} has {'' if exact else 'at least '}{tokens} tokens and the model takes at most "
            f"{self.max_length}; shorten it or set `truncate` to true"
        )


def _check_ids(index: int, ids: list[int], vocabulary: int) -> None:
    if min(ids) < 0 or max(ids) >= vocabulary:
        wrong = next(value for value in ids if not 0 <= value < vocabulary)
        raise InvalidInput(f"input {index}: token id {wrong} is not in the vocabulary of {vocabulary}")


def _ids_of(segments: list[Segment]) -> Int32Array:
    if len(segments) == 1:
        return np.array(segments[0].encoding.ids, dtype=np.int32)
    return np.concatenate(
        [np.array(part.encoding.ids[part.start : part.stop], np.int32) for part in segments]
    )


def _pieces(inputs: Sequence[InputT]) -> Iterator[Sequence[InputT]]:
    """Cut a request into parts of bounded size; most requests are one."""
    start = characters = 0
    for index, item in enumerate(inputs):
        characters += len(item)
        if characters > PIECE_CHARACTERS or index - start >= PIECE_TEXTS:
            if index > start:
                yield inputs[start:index]
            start, characters = index, len(item)
    yield inputs[start:]


def _special_tokens(tokenizer: Tokenizer) -> tuple[Int32Array, Int32Array]:
    """The ids that the tokenizer puts before and after a text."""
    probe = tokenizer.encode("a")
    inner = tokenizer.encode("a", add_special_tokens=False).ids
    head = next((i for i, special in enumerate(probe.special_tokens_mask) if not special), len(probe.ids))
    ids = np.array(probe.ids, dtype=np.int32)
    tail = head + len(inner)
    if probe.ids[head:tail] != inner or not all(probe.special_tokens_mask[tail:]):
        raise ModelInvalid("tokenizer.json puts special tokens inside the text, which is not supported")
    return ids[:head], ids[tail:]


def _lowercase_first(tokenizer: Tokenizer) -> None:
    """Lower-case before the tokenizer's own normalizer, as sentence-transformers does for `do_lower_case`."""
    own = json.loads(tokenizer.to_str())["normalizer"]
    if any(part["type"] == "Lowercase" or part.get("lowercase") for part in _flat(own, "normalizers")):
        return
    steps = [normalizers.Lowercase()]
    if tokenizer.normalizer is not None:
        steps.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(steps)


def _boundary(layout: dict[str, Any]) -> re.Pattern[str] | None:
    """Where a text may be cut so that the ids before the cut stay what they were; None where that is not certain."""
    if not any(_splits_at_blanks(part) for part in _flat(layout["pre_tokenizer"], "pretokenizers")):
        return None
    if any(re.search(r"\S\s", token["content"]) for token in layout["added_tokens"]):
        return None
    normalizer = layout["normalizer"] or {}
    if (
        _is_bert(layout)
        and normalizer.get("type") == "BertNormalizer"
        and normalizer.get("handle_chinese_chars")
    ):
        return re.compile(f"{_BLANK}|{_IDEOGRAPHS}")
    return re.compile(_BLANK)


def _splits_at_blanks(pre_tokenizer: dict[str, Any]) -> bool:
    match pre_tokenizer:
        case {"type": "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit"}:
            return True
        case {"type": "ByteLevel", **options}:
            return bool(options.get("use_regex", True))
        case {"type": "Metaspace", **options}:
            return bool(options.get("split", True))
        case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
            return r"\s+(?!\S)" in pattern  # the GPT-2 expression and its descendants
        case _:
            return False


def _is_bert(layout: dict[str, Any]) -> bool:
    return (layout["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"


def _flat(part: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [leaf for child in part[children] for leaf in _flat(child, children)]
    return [part]
