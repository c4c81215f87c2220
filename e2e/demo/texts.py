"""The texts of the demo: three that show what vectors are for, and others to make up fifty different ones."""

from __future__ import annotations

SHOWN = (
    "A cat sleeps on the warm windowsill.",
    "The kitten is taking a nap in the sun.",
    "Quarterly revenue grew by eight per cent.",
)

OTHERS = (
    "Hello",
    "42",
    "?!",
    "naïve café, façade, jalapeño",
    "Kubernetes schedules pods onto nodes.",
    "Ein Satz auf Deutsch, mit Umlauten: äöüß.",
    "Une phrase en français, déjà vue.",
    "Una frase en español: ¿dónde está la biblioteca?",
    "Предложение на русском языке.",
    "日本語の短い文です。",
    "这是一个中文句子。",
    "هذه جملة باللغة العربية.",
    "זהו משפט בעברית.",
    "यह हिंदी में एक वाक्य है।",
    "한국어 문장입니다.",
    "Μια πρόταση στα ελληνικά.",
    "def add(a, b):\n    return a + b",
    '{"kind": "EmbeddingService", "spec": {"replicas": 2}}',
    "SELECT name FROM users WHERE age > 30 ORDER BY name;",
    "https://example.org/path?query=1#fragment",
    "   leading, trailing and   inner    blanks   ",
    "UPPER CASE AND lower case And Mixed Case",
    "emoji: 🚀🌍🐍",
    "x" * 100,
)

SENTENCES = (
    "Vectors that lie close together stand for texts that mean similar things.",
    "The library opens at nine and closes when the last reader has gone home.",
    "Rain is expected in the north, while the south stays dry and mild.",
    "She repaired the old radio with a spoon, two wires and a lot of patience.",
    "Token budgets keep batches small enough to be quick and large enough to be cheap.",
    "A train leaves the station every ten minutes, except on public holidays.",
    "Bread dough rises faster in a warm kitchen than in a cold one.",
    "The committee postponed its decision until the figures had been checked.",
)

COUNT = 50


def fifty_texts() -> tuple[str, ...]:
    """Return texts of one word to about two hundred; the shown three come first."""
    needed = COUNT - len(SHOWN) - len(OTHERS)
    longer = tuple(_run_of_sentences(number) for number in range(needed))
    return SHOWN + OTHERS + longer


def _run_of_sentences(number: int) -> str:
    """Different for each number: another first sentence, or as many of them in a row again."""
    count = 1 + number * 2 // 3
    return " ".join(SENTENCES[(number + step) % len(SENTENCES)] for step in range(count))
