"""Texts for parity tests: every length from 1 to 2,000 words, ten scripts, the same at every run."""

from __future__ import annotations

import random

# A few words of each script; the tokenizer sees known words, word pieces and unknown ones among them.
WORDS: dict[str, tuple[str, ...]] = {
    "latin": (
        "river",
        "quantum",
        "the",
        "antidisestablishmentarianism",
        "naïve",
        "Straße",
        "co-operate",
        "42",
    ),
    "cyrillic": ("вода", "Москва", "и", "достопримечательность", "ёлка", "программа"),
    "greek": ("θάλασσα", "και", "φιλοσοφία", "Αθήνα", "λόγος"),
    "hebrew": ("שלום", "ספר", "ירושלים", "מים", "אור"),
    "arabic": ("سلام", "كتاب", "القاهرة", "ماء", "نور"),
    "devanagari": ("नमस्ते", "पुस्तक", "दिल्ली", "पानी", "प्रकाश"),
    "thai": ("สวัสดี", "หนังสือ", "กรุงเทพ", "น้ำ", "แสง"),
    "han": ("你好", "书", "北京", "水", "光明正大"),
    "japanese": ("こんにちは", "本", "東京", "ミズ", "ひかり"),
    "hangul": ("안녕하세요", "책", "서울", "물", "빛"),
}
MAX_WORDS = 2_000


def parity_texts(count: int, seed: int = 7) -> list[str]:
    """`count` texts, script after script; lengths grow from one word to the longest."""
    random_source = random.Random(seed)
    scripts = list(WORDS)
    texts = []
    for number in range(count):
        words = WORDS[scripts[number % len(scripts)]]
        # The power makes short texts the common case, as in real use, and keeps the test quick.
        fraction = ((number // len(scripts)) / max(1, (count - 1) // len(scripts))) ** 4
        length = max(1, round(MAX_WORDS**fraction))
        texts.append(" ".join(random_source.choice(words) for _ in range(length)))
    return texts
