"""What `benchmarks.cpu` asks the servers: texts, how many at once, and how many tokens they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from embedserve_runtime.benchmarking.texts import VOCABULARY, build_mix

MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Case:
    """requests: the texts of each, sent in turn."""

    title: str
    connections: int
    requests: Sequence[Sequence[str]]


def words(count: int) -> str:
    """So many words of one token each."""
    known = VOCABULARY.split()
    return " ".join(known[number % len(known)] for number in range(count))


def cases() -> Mapping[str, Case]:
    mix = build_mix(256)
    equal = words(62)  # 64 tokens with the special ones
    return {
        "mixed": Case("mixed lengths, single, 64 at a time", 64, [[text] for text in mix]),
        "equal": Case("equal lengths, single, 64 at a time", 64, [[equal]]),
        "batches": Case(
            "mixed lengths, batches of 32, 4 at a time", 4, [mix[at : at + 32] for at in range(0, 256, 32)]
        ),
        "long": Case("32 x 256 tokens, 4 at a time", 4, [[words(MAX_TOKENS - 2)] * 32]),
        "short": Case("short, single, 64 at a time", 64, [[words(10)]]),
        "alone": Case("short, one at a time", 1, [[words(10)]]),
    }


class Counter:
    """Tokens of texts, as every server cuts them."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def lengths(self, case: Case) -> list[int]:
        texts = [text for request in case.requests for text in request]
        return [min(len(encoding.ids), MAX_TOKENS) for encoding in self._tokenizer.encode_batch(texts)]
