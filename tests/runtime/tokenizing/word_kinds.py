"""Small tokenizers of which it is known what they make of a word of ASCII, and others of which it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from tests.runtime.tokenizing.kinds import saved

PIECES = [
    "[UNK]",
    "a",
    "b",
    "ab",
    "##a",
    "##b",
    "##ab",
    "A",
    "aab",
    "_",
    ".",
    "1",
    "##1",
    "a.b",
    "a_b",
    "café",
]
METASPACE = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])


def wordpiece(
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
) -> Tokenizer:
    numbered = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]", max_input_chars_per_word=9))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


def unigram(pre_tokenizer: pre_tokenizers.PreTokenizer, *, unknown: int = 0, scores: int = 4) -> Tokenizer:
    """unknown: id of the unknown token, which may be a letter. scores: how many different ones there are."""
    pieces = ["▁", "a", "b", "▁a", "aa", "aaa", "bb", "ba", *PIECES[3:]]
    scored = [("<unk>", 0.0), *((piece, -float(number % scores)) for number, piece in enumerate(pieces))]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def with_added(content: str, *, normalized: bool) -> Tokenizer:
    tokenizer = wordpiece(normalizers.BertNormalizer())
    tokenizer.add_tokens([AddedToken(content, normalized=normalized)])
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "all-MiniLM-L6-v2": lambda: Tokenizer.from_str(saved("minilm")),
    "XLM-RoBERTa": lambda: Tokenizer.from_str(saved("xlm-roberta")),
    "small letters": lambda: wordpiece(normalizers.BertNormalizer()),
    "letters as they are": lambda: wordpiece(normalizers.BertNormalizer(lowercase=False)),
    "no normalizer": wordpiece,
    "words with underscores": lambda: wordpiece(pre_tokenizer=pre_tokenizers.Whitespace()),
    "whole words": lambda: wordpiece(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "Unigram behind a mark": lambda: unigram(METASPACE),
    "Unigram of whole words": lambda: unigram(pre_tokenizers.WhitespaceSplit()),
    "Unigram of equal sums": lambda: unigram(pre_tokenizers.WhitespaceSplit(), scores=1),
    "Unigram with a letter that is unknown": lambda: unigram(METASPACE, unknown=2),
    "an added token in capitals": lambda: with_added("AB", normalized=False),
    "an added token that is normalized": lambda: with_added("Áb", normalized=True),
}
OTHERS: Mapping[str, Callable[[], Tokenizer]] = {
    "characters are replaced": lambda: wordpiece(normalizers.Replace("ab", "b")),
    "characters are taken away": lambda: wordpiece(normalizers.Replace(Regex("b"), "")),
    "digits are split": lambda: wordpiece(
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits()])
    ),
    "the first word is another": lambda: unigram(
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]
        )
    ),
    "an added token of which the normalizer leaves nothing": lambda: with_added("\u0301", normalized=True),
}

WORD = st.one_of(
    st.text("abAB1._#é[]", min_size=1, max_size=12),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=8),
    st.text(st.characters(exclude_categories=["Cs", "Z"]), min_size=1, max_size=6),
    st.sampled_from(
        ["[UNK]", "a[UNK]b", "AB", "ab", "a\x0bb", "a\x1fb", "a\x7fb", "atomically.", "(self._sign)"]
    ),
)
