"""Serving MiniLM on the CPU against sentence-transformers behind plain FastAPI and infinity-emb, on one machine.

    python -m benchmarks.serving [--seconds 8] [--rounds 2] [--minutes 5] [--output benchmarks/results/serving.json]

Two cases: short texts one by one at 64 connections, and batches of 32 texts of mixed length at four. All servers run
and are asked in turn, round by round, so that a busy machine slows all of them alike; a figure is the median of the
rounds. The load generator runs on the same cores. Prints tokens/s, latencies, CPU seconds of the server for 1,000
tokens, and the ratio to the first peer; each case is written to the file when it is done. No round begins after
`--minutes`, but each case gets one.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.command_line import parser_of
from benchmarks.cpu import MIN_ANSWERS, cpu_name, free_port, running
from benchmarks.cpu_cases import Case, Counter, cases
from benchmarks.cpu_peers import OURS, Peer, Running, infinity, ours, sentence_transformers
from benchmarks.cpu_results import Taken
from tests.support.models import minilm_folder

CASES = ("short", "batches")
WARM_UP_SECONDS = 2.0
MAX_SECONDS = 60.0
RESULTS = Path(__file__).parent / "results" / "serving.json"


class Round(msgspec.Struct, frozen=True):
    """cpu_seconds: of the server's processes. latencies: seconds of each answer."""

    seconds: float
    cpu_seconds: float
    latencies: list[float]


class Measured(msgspec.Struct, frozen=True):
    """Medians over the rounds; rates are per second, latencies in ms. ratio: of tokens/s, to the first peer."""

    server: str
    tokens_rate: float
    requests_rate: float
    p50: float
    p99: float
    cpu_seconds_per_1000_tokens: float
    ratio: float


class CasePart(msgspec.Struct, frozen=True):
    taken: Taken
    title: str
    measured: list[Measured]


class Results(msgspec.Struct):
    cpu: str
    cases: dict[str, CasePart] = msgspec.field(default_factory=dict)


def servers(model: Path) -> list[Peer]:
    own = ours(model, free_port())
    workers = replace(own, name=f"{OURS}, 2 HTTP workers", command=[*own.command, "--http-workers", "2"])
    return [
        sentence_transformers(model, free_port()),
        infinity(model, free_port()),
        ours(model, free_port()),
        workers,
    ]


def rounds_of(
    found: Sequence[Running], case: Case, seconds: float, max_rounds: int, until: float
) -> Mapping[str, list[Round]]:
    """At least one round, and none that begins after `until`. Raises RuntimeError where answers are too few."""
    rounds: dict[str, list[Round]] = {server.peer.name: [] for server in found}
    for server in found:
        server.run(case, min(seconds, WARM_UP_SECONDS))
    for number in range(max_rounds):
        if number and time.perf_counter() > until:
            break
        for server in found:
            rounds[server.peer.name].append(round_of(server, case, seconds))
    return rounds


def round_of(server: Running, case: Case, seconds: float) -> Round:
    """Longer where too few answers come. Raises RuntimeError where they do not within `MAX_SECONDS`."""
    while True:
        before = server.cpu_seconds()
        latencies = server.run(case, seconds)
        if len(latencies) >= MIN_ANSWERS:
            return Round(seconds, server.cpu_seconds() - before, latencies)
        if seconds >= MAX_SECONDS:
            few = f"{len(latencies)} answers in {seconds:.0f} s"
            raise RuntimeError(f"{server.peer.name}, {case.title}: {few}")
        seconds = min(2 * seconds, MAX_SECONDS)


def measured(rounds: Mapping[str, Sequence[Round]], tokens: float) -> list[Measured]:
    """tokens: of a request, on average. The first server is what the others are compared with."""
    rows: list[Measured] = []
    for server, runs in rounds.items():
        rate = statistics.median(len(run.latencies) / run.seconds for run in runs)
        marks = [statistics.quantiles(run.latencies, n=100, method="inclusive") for run in runs]
        answered = sum(len(run.latencies) for run in runs)
        rows.append(
            Measured(
                server,
                rate * tokens,
                rate,
                statistics.median(mark[49] for mark in marks) * 1e3,
                statistics.median(mark[98] for mark in marks) * 1e3,
                sum(run.cpu_seconds for run in runs) / (answered * tokens) * 1e3,
                rate * tokens / (rows[0].tokens_rate if rows else rate * tokens),
            )
        )
    return rows


def line(row: Measured) -> str:
    return (
        f"  {row.server}: {row.tokens_rate:,.0f} tokens/s, {row.requests_rate:,.1f} requests/s, p50 {row.p50:.1f} ms, "
        f"p99 {row.p99:.1f} ms, {row.cpu_seconds_per_1000_tokens:.2f} CPU s per 1,000 tokens, "
        f"{row.ratio:.2f} times the first peer"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of load, for each case, server and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=5.0, help="after which no further round begins")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    until = time.perf_counter() + options.minutes * 60
    model, results = minilm_folder(), Results(cpu_name())
    with running(servers(model)) as found:
        for name in CASES:
            case, load = cases()[name], os.getloadavg()[0]
            tokens = sum(Counter(model).lengths(case)) / len(case.requests)
            rows = measured(rounds_of(found, case, options.seconds, options.rounds, until), tokens)
            results.cases[name] = CasePart(Taken.now(load), case.title, rows)
            print(case.title, *map(line, rows), sep="\n", flush=True)
            content = msgspec.json.format(msgspec.json.encode(results), indent=2)
            options.output.write_bytes(content + b"\n")


if __name__ == "__main__":
    main()
