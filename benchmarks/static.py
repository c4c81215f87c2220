"""Static models from texts to vectors, against the package `model2vec` and the crate `model2vec-rs` on the same folder.

    python -m benchmarks.static [--rounds 5] [--texts FILE] [--keep]

CPU seconds of one core, best of the rounds. Two models: one with real weights (Unigram, 64 numbers of int8, shared
weighted rows) and the WordPiece vocabulary of MiniLM with 256 random float32 numbers a token. Texts are paragraphs of
the standard library's docstrings, or the lines of --texts, in four states:

    met      1,000 texts that were read before
    unseen   1,000 texts after all others but these were read
    first    1,000 texts, the first of a process
    new      each different word of all texts once, 16 to a text, by a process that has met none

The Rust reader is built with cargo into the user's cache folder on first use. --keep writes the figures to
`benchmarks/results/static.json`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer

from benchmarks.command_line import parser_of
from benchmarks.docstrings import paragraphs
from benchmarks.static_peers import NotBuilt, build_rust_reader, rust_seconds
from embedserve_runtime.benchmarking.texts import read_texts
from embedserve_runtime.config import load_config
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.support.models import minilm_folder, model2vec_folder

TEXTS = 1_000
BATCH = 256
CUT = TruncationRules(truncate=True)
# Of one process of the Rust reader: the first one has memory to ask for.
RUST_ROUNDS = 3
RESULTS = Path(__file__).parent / "results" / "static.json"


class Ours:
    """A model as a new process has it."""

    def __init__(self, folder: Path) -> None:
        self._runner = load_runner(load_config(flags={"model": {"source": str(folder)}}))
        self._tokenizer = TextTokenizer.from_card(self._runner.card)

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """(texts, dimensions), as the server makes them."""
        made = []
        for start in range(0, len(texts), BATCH):
            ids = self._tokenizer.encode(texts[start : start + BATCH], "", CUT)
            dense = self._runner.run(PackedBatch.pack(ids), OutputKind.DENSE).dense
            assert dense is not None, "asked for"
            made.append(normalize(dense) if self._runner.card.pipeline.normalize else dense)
        return np.concatenate(made)

    def tokens(self, texts: Sequence[str]) -> int:
        return sum(map(len, self._tokenizer.encode(texts, "", CUT)))


@dataclass(frozen=True)
class State:
    """Texts that are timed after others were read; `texts` themselves among them where they were met."""

    name: str
    before: Sequence[str]
    texts: Sequence[str]


@dataclass(frozen=True)
class Row:
    """Tokens a CPU second; None where there was no Rust reader."""

    model: str
    state: str
    tokens: int
    package: float
    rust: float | None
    ours: float
    equal: bool


def states(texts: list[str]) -> Iterator[State]:
    timed = texts[:TEXTS]
    words = list(dict.fromkeys(word for text in texts for word in text.split()))
    yield State("met", timed, timed)
    yield State("unseen", texts[TEXTS:], timed)
    yield State("first", [], timed)
    yield State("new", [], [" ".join(words[start : start + 16]) for start in range(0, len(words), 16)])


def seconds(reader: Ours | StaticModel, state: State) -> float:
    if state.before:
        reader.encode(state.before)
    started = time.process_time()
    reader.encode(state.texts)
    return time.process_time() - started


def measured(name: str, folder: Path, state: State, rounds: int, rust: Path | None) -> Row:
    """Each round with new objects, since those of the round before have met the words; with a new one of the Rust
    reader in the states in which nothing was read before. All readers in turn, since a round of the faster ones is a
    few milliseconds on a machine that others use, too."""
    package, ours, crate = [], [], []
    for _ in range(rounds):
        package.append(seconds(StaticModel.from_pretrained(folder), state))
        ours.append(seconds(Ours(folder), state))
        if rust:
            crate += rust_seconds(rust, folder, state.texts, RUST_ROUNDS, fresh=not state.before)
    reader = Ours(folder)
    tokens = reader.tokens(state.texts)
    want = StaticModel.from_pretrained(folder).encode(state.texts).astype(np.float32)
    return Row(
        model=name,
        state=state.name,
        tokens=tokens,
        package=tokens / min(package),
        rust=tokens / min(crate) if crate else None,
        ours=tokens / min(ours),
        equal=np.array_equal(want, reader.encode(state.texts)),
    )


def wordpiece_model(folder: Path) -> Path:
    """The vocabulary of MiniLM with random rows, as Model2Vec saves it."""
    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    table = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 256), dtype=np.float32)
    StaticModel(table, tokenizer, normalize=True).save_pretrained(folder)
    return folder


def shown(row: Row) -> str:
    rust = "" if row.rust is None else f"{row.rust:12,.0f} Rust ({row.ours / row.rust:.2f} x)"
    return (
        f"{row.model:10}{row.state:8}{row.tokens:8} tokens{row.package:12,.0f} model2vec{row.ours:12,.0f} ours "
        f"({row.ours / row.package:.2f} x){rust}  {'equal bit for bit' if row.equal else 'DIFFER'}"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--keep", action="store_true")
    chosen = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "0"
    texts = read_texts(chosen.texts) if chosen.texts else paragraphs()
    try:
        rust, reason = build_rust_reader(), None
    except NotBuilt as error:
        rust, reason = None, str(error)
        print(f"no Rust reader: {reason}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (
            ("Unigram", model2vec_folder()),
            ("WordPiece", wordpiece_model(Path(folder))),
        ):
            for state in states(texts):
                rows.append(measured(name, model, state, chosen.rounds, rust))
                print(shown(rows[-1]), flush=True)
    if chosen.keep:
        kept = {"date": datetime.now(UTC).date().isoformat(), "rounds": chosen.rounds, "no_rust": reason}
        RESULTS.write_text(json.dumps({**kept, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
