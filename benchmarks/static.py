"""A static model from texts to vectors, against the `model2vec` package with the same folder: CPU seconds of one core.

    python -m benchmarks.static [--rounds 5] [--texts FILE]

Prints tokens a CPU second of the package, of its tokenizer alone, and of ours: with words that were met before (the
best of the rounds), and in the first round of a new process, where every word is new. The built-in mix has 60 words;
the texts of --texts, one a line, stand for real ones.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from model2vec import StaticModel

from embedserve_runtime.benching.texts import built_in_mix, read_texts
from embedserve_runtime.config import load_config
from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading import load_runner
from embedserve_runtime.results import Output
from embedserve_runtime.runner import Runner
from embedserve_runtime.tokenizing import CutRules, TextTokenizer
from tests.support.models import model2vec_folder

TEXTS = 1_000
BATCH = 256
CUT = CutRules(truncate=True)


def vectors(runner: Runner, tokenizer: TextTokenizer, texts: Sequence[str]) -> FloatArray:
    """(texts, dimensions), as the server makes them."""
    made = []
    for start in range(0, len(texts), BATCH):
        ids = tokenizer.encode(texts[start : start + BATCH], "", CUT)
        dense = runner.run(PackedBatch.pack(ids), Output.DENSE).dense
        assert dense is not None, "asked for"
        made.append(normalize(dense) if runner.card.pipeline.normalize else dense)
    return np.concatenate(made)


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=Path)
    chosen = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "0"
    texts = read_texts(chosen.texts) if chosen.texts else built_in_mix(TEXTS)
    folder = model2vec_folder()
    package = StaticModel.from_pretrained(folder)
    runner = load_runner(load_config(flags={"model": {"source": str(folder)}}))
    tokenizer = TextTokenizer.from_card(runner.card)
    first = seconds(lambda: vectors(runner, tokenizer, texts))
    ways: dict[str, Callable[[], object]] = {
        "model2vec": lambda: package.encode(texts),
        "its tokenizer alone": lambda: package.tokenizer.encode_batch_fast(texts, add_special_tokens=False),
        "embedserve": lambda: vectors(runner, tokenizer, texts),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(chosen.rounds):
        for name, work in ways.items():
            best[name] = min(best[name], seconds(work))
    tokens = sum(map(len, tokenizer.encode(texts, "", CUT)))
    print(f"{len(texts)} texts, {tokens} tokens")
    for name, took in {**best, "embedserve, every word new": first}.items():
        print(
            f"{name:28}{tokens / took:12,.0f} tokens a CPU second, {best['model2vec'] / took:5.2f} x model2vec"
        )
    same = np.array_equal(package.encode(texts).astype(np.float32), vectors(runner, tokenizer, texts))
    print(f"vectors {'equal bit for bit' if same else 'DIFFER'}")


if __name__ == "__main__":
    main()
