"""The CPU engine over HTTP against the best servers that can be run beside it: MiniLM on one machine.

    python -m benchmarks.cpu [--parts NAME ...] [--peers NAME ...] [--rounds 2] [--seconds 5] [--requests 100000]
                             [--quick]

Parts are the cases of load, `starts`, `first` and `memory`; all unless some are named. Each is written into
benchmarks/results/<cpu>.json when it is done, instead of the same part of an earlier run, so that a run may be cut
into several. In a case all servers run and are asked in turn, round by round, so that a busy machine slows all of them
alike; its figure is the median of the rounds. The load generator runs on the same cores. At the end the table of the
whole file is printed, and docs/pictures/cpu.svg drawn from it (not with --quick, which writes nothing).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import numpy as np

from benchmarks import cpu_first
from benchmarks import cpu_results as kept
from benchmarks.command_line import parser_of
from benchmarks.cpu_cases import Case, Counter, cases, words
from benchmarks.cpu_peers import (
    OURS,
    START_SECONDS,
    Peer,
    Running,
    eight_bit,
    infinity,
    ours,
    sentence_transformers,
)
from embedserve_runtime.benchmarking.matrix_products import count_flops, measure_peak_flops
from embedserve_runtime.config import load_config
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.sources import open_model
from tests.support.models import minilm_folder

# Fewer say nothing: the time is doubled for a server that gives fewer.
MIN_ANSWERS = 4
PEERS: Mapping[str, Callable[[Path, int], Peer]] = {
    "8-bit": eight_bit,
    "sentence-transformers": sentence_transformers,
    "infinity": infinity,
}
STARTS, FIRST, MEMORY = "starts", "first", "memory"
RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "cpu.svg"


@contextlib.contextmanager
def running(peers: Sequence[Peer]) -> Iterator[list[Running]]:
    """All of them, once each has given a vector."""
    with contextlib.ExitStack() as stack:
        servers = []
        for peer in peers:
            servers.append(Running(peer))
            stack.callback(servers[-1].close)
        for server in servers:
            server.wait()
        yield servers


def measured(
    servers: Sequence[Running], case: Case, tokens: float, seconds: float, rounds: int
) -> list[kept.Measured]:
    """tokens: of a request, on average. The servers take turns."""
    found: dict[str, list[tuple[float, float, float]]] = {server.peer.name: [] for server in servers}
    for server in servers:
        server.run(case, min(seconds, 2.0))
    for _ in range(rounds):
        for server in servers:
            spent = seconds
            while len(latencies := server.run(case, spent)) < MIN_ANSWERS:
                spent *= 2
                if spent > START_SECONDS:
                    raise RuntimeError(
                        f"{server.peer.name}, {case.title}: too few answers in {spent / 2:.0f} s"
                    )
            marks = statistics.quantiles(latencies, n=100, method="inclusive")
            # Little's law of a closed loop: a count would depend on whether the window's end cuts a wave of answers.
            rate = case.connections / statistics.fmean(latencies)
            found[server.peer.name].append((rate, marks[49] * 1e3, marks[98] * 1e3))
    return kept.by_server(found, tokens)


def case_part(
    name: str, servers: Sequence[Running], model: Path, encoder: Encoder, chosen: argparse.Namespace
) -> kept.CasePart:
    case, load = cases()[name], os.getloadavg()[0]
    lengths = Counter(model).lengths(case)
    before = measure_peak_flops(encoder, count_usable_cpus())
    rows = measured(servers, case, sum(lengths) / len(case.requests), chosen.seconds, chosen.rounds)
    peak = max(before, measure_peak_flops(encoder, count_usable_cpus()))
    work = count_flops(encoder, np.array(lengths)) / sum(lengths)
    share = rows[0].tokens_rate * work / peak
    return kept.CasePart(kept.Taken.now(load), rows, peak / 1e9, share, padding_of(servers[0]))


def start_part(peers: Sequence[Peer], rounds: int) -> kept.StartPart:
    """Each alone, the fastest of its starts: files are in the page cache."""
    load, starts = os.getloadavg()[0], []
    for peer in peers:
        tries = []
        for _ in range(rounds if peer.name.startswith(OURS) else 1):
            server = Running(peer)
            try:
                tries.append(kept.Start(peer.name, server.wait(), server.cpu_seconds(), server.memory()))
            finally:
                server.close()
        starts.append(min(tries, key=lambda start: start.seconds))
    return kept.StartPart(kept.Taken.now(load), starts)


def first_part(peers: Sequence[Peer], starts: int) -> kept.FirstPart:
    """peers: ours. A server is started for each kind of request, so often."""
    load, rows = os.getloadavg()[0], []
    for peer in peers:
        for kind, requests in cpu_first.kinds().items():
            found = [cpu_first.asked(peer, requests) for _ in range(starts)]
            wall, cpu = (
                cpu_first.ratios(found, of) for of in (lambda took: took.wall, lambda took: took.cpu)
            )
            rows.append(kept.First(peer.name, kind, cpu_first.later_seconds(found) * 1e3, wall, cpu))
    return kept.FirstPart(kept.Taken.now(load), starts, rows)


def memory_part(peer: Peer, requests: int) -> kept.MemoryPart:
    """Ten marks, under single texts of mixed length and then words, which are soon answered."""
    load, answered = os.getloadavg()[0], 0
    shortest = Case("one word, 64 at a time", 64, [[word] for word in words(60).split()])
    with running([peer]) as (server,):
        series = [(0, server.memory())]
        for step in range(1, 11):
            answered += len(server.run(cases()["mixed"], 2.0))
            while answered < requests * step // 10:
                answered += len(server.run(shortest, 2.0))
            series.append((answered, server.memory()))
    return kept.MemoryPart(kept.Taken.now(load), series)


def padding_of(server: Running) -> float:
    """Positions that were computed beside real tokens, of all, as the server's metrics count them."""
    page = httpx.get(f"http://127.0.0.1:{server.peer.port}/metrics").text
    padding, tokens = (
        sum(float(value) for value in re.findall(rf"^{name}_total(?:{{.*}})? (\S+)$", page, re.MULTILINE))
        for name in ("embedserve_padding_tokens", "embedserve_tokens")
    )
    return padding / max(padding + tokens, 1.0)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo").read_text()
    found = re.search(r"model name\s*: (.*)", info)
    return f"{found.group(1) if found else 'CPU'}, {count_usable_cpus()} cores"


def encoder_of(model: Path) -> Encoder:
    settings = load_config(flags={"model": {"source": str(model)}}).model
    located = open_model(settings)
    return read_card(located.folder, located.revision, settings).encoder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parts = [*cases(), STARTS, FIRST, MEMORY]
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts)
    parser.add_argument("--quick", action="store_true", help="one short round, nothing is written")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load, for each case, server and round")
    parser.add_argument("--requests", type=int, default=100_000, help="of the memory test")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds = 1, min(chosen.seconds, 4.0)
        chosen.requests = min(chosen.requests, 500)
    return chosen


def main() -> None:
    chosen, model, name = arguments(), minilm_folder(), cpu_name()
    encoder = encoder_of(model)
    file = RESULTS / f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.json"
    results = kept.Results(name) if chosen.quick else kept.read(file, name)
    peers = [maker(model, free_port()) for maker in (ours, *(PEERS[peer] for peer in chosen.peers))]

    def keep() -> None:
        if not chosen.quick:
            kept.write(file, results)

    if STARTS in chosen.parts:
        results.starts = start_part(peers, chosen.rounds)
        keep()
    if FIRST in chosen.parts:
        results.first = first_part([one for one in peers if one.name.startswith(OURS)], chosen.rounds)
        keep()
    wanted = [part for part in chosen.parts if part in cases()]
    if wanted:
        with running(peers) as servers:
            for part in wanted:
                results.cases[part] = case_part(part, servers, model, encoder, chosen)
                keep()
    if MEMORY in chosen.parts:
        results.memory = memory_part(peers[0], chosen.requests)
        keep()
    print(kept.table(results))
    if not chosen.quick:
        PICTURE.write_text(kept.picture(results))


if __name__ == "__main__":
    main()
