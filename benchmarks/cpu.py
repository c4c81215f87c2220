"""The CPU engine over HTTP against the best servers that can be run beside it: MiniLM in float32, one machine.

    python -m benchmarks.cpu [--quick] [--rounds 3] [--seconds 10] [--requests 100000] [--peers NAME ...]

All servers run from the start and are asked in turn, case by case and round by round, so that a busy machine slows all
of them alike; a case's figure is the median of its rounds. The load generator runs on the same cores. Prints the table,
writes benchmarks/results/<cpu>.json and docs/pictures/cpu.svg (not with --quick).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
import uvloop
from tokenizers import Tokenizer

from benchmarks.cpu_peers import OURS, Peer, infinity, ours, sentence_transformers
from benchmarks.load import load
from embedserve_runtime.benching.picture import Bar, bars
from embedserve_runtime.benching.products import flops, measured_rate
from embedserve_runtime.benching.texts import VOCABULARY, built_in_mix
from embedserve_runtime.config import load_config
from embedserve_runtime.cpu_quota import usable_cpus
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.card import read_card
from embedserve_runtime.model.sources import open_model
from tests.support.models import minilm_folder

MOST_TOKENS = 256
START_SECONDS = 300
# Fewer say nothing: the time is doubled for a server that gives fewer.
LEAST_ANSWERS = 4
JSON = {"content-type": "application/json"}
PEERS: Mapping[str, Callable[[Path, int], Peer]] = {
    "sentence-transformers": sentence_transformers,
    "infinity": infinity,
}
RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "cpu.svg"
EQUAL, LONG, SHORT_ALONE = (
    "equal lengths, single, 64 at a time",
    "32 x 256 tokens, 4 at a time",
    "short, one at a time",
)


@dataclass(frozen=True, slots=True)
class Case:
    """requests: the texts of each, sent in turn."""

    name: str
    connections: int
    requests: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the rounds; rates are per second, latencies in ms."""

    server: str
    case: str
    tokens_rate: float
    requests_rate: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds to the first vector, and MiB that the server then takes."""

    server: str
    seconds: float
    memory: float


def words(count: int) -> str:
    """So many words of one token each."""
    known = VOCABULARY.split()
    return " ".join(known[number % len(known)] for number in range(count))


def cases() -> list[Case]:
    mix = built_in_mix(256)
    equal = words(62)  # 64 tokens with the special ones
    return [
        Case("mixed lengths, single, 64 at a time", 64, [[text] for text in mix]),
        Case("mixed lengths, batches of 32, 4 at a time", 4, [mix[at : at + 32] for at in range(0, 256, 32)]),
        Case(EQUAL, 64, [[equal]]),
        Case(LONG, 4, [[words(MOST_TOKENS - 2)] * 32]),
        Case("short, single, 64 at a time", 64, [[words(10)]]),
        Case(SHORT_ALONE, 1, [[words(10)]]),
    ]


class Counter:
    """Tokens of texts, as every server cuts them."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def lengths(self, case: Case) -> list[int]:
        texts = [text for request in case.requests for text in request]
        return [min(len(encoding.ids), MOST_TOKENS) for encoding in self._tokenizer.encode_batch(texts)]


class Running:
    """A server's process, from its start on."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        started = time.perf_counter()
        self.process = subprocess.Popen(peer.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not self.answers():
                if self.process.poll() is not None:
                    raise RuntimeError(f"{peer.name} ended with {self.process.returncode}")
                if time.perf_counter() - started > START_SECONDS:
                    raise RuntimeError(f"{peer.name} gives no vector within {START_SECONDS} s")
                time.sleep(0.02)
        except BaseException:
            self.close()
            raise
        self.start = Start(peer.name, time.perf_counter() - started, self.memory())

    def answers(self) -> bool:
        url = f"http://127.0.0.1:{self.peer.port}{self.peer.path.decode()}"
        try:
            answer = httpx.post(url, content=self.peer.body(["a"]), headers=JSON, timeout=START_SECONDS)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found, status
        return int(found.group(1)) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()

    def run(self, case: Case, seconds: float) -> list[float]:
        """Seconds of each answer."""
        bodies = [self.peer.body(texts) for texts in case.requests]
        latencies: list[float] = uvloop.run(
            load(self.peer.port, self.peer.path, bodies, case.connections, seconds)
        )
        self.answers()  # behind what the load has left in the server
        return latencies


def measure(
    servers: Sequence[Running], case: Case, tokens: float, seconds: float, rounds: int
) -> list[Measured]:
    """tokens: of a request, on average. The servers take turns."""
    found: dict[str, list[tuple[float, float, float]]] = {server.peer.name: [] for server in servers}
    for server in servers:
        server.run(case, min(seconds, 2.0))
    for _ in range(rounds):
        for server in servers:
            spent = seconds
            while len(latencies := server.run(case, spent)) < LEAST_ANSWERS:
                spent *= 2
                if spent > START_SECONDS:
                    raise RuntimeError(
                        f"{server.peer.name}, {case.name}: too few answers in {spent / 2:.0f} s"
                    )
            marks = statistics.quantiles(latencies, n=100, method="inclusive")
            found[server.peer.name].append((len(latencies) / spent, marks[49] * 1e3, marks[98] * 1e3))
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in found.items()
    }
    return [Measured(name, case.name, row[0] * tokens, *row) for name, row in medians.items()]


def memory_over(server: Running, requests: int) -> list[tuple[int, float]]:
    """(requests answered, MiB) ten times, under single texts of mixed length."""
    case, answered = cases()[0], 0
    series = [(0, server.memory())]
    for step in range(1, 11):
        while answered < requests * step // 10:
            answered += len(server.run(case, 2.0))
        series.append((answered, server.memory()))
    return series


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
    return f"{found.group(1) if found else 'CPU'}, {usable_cpus()} cores"


def ratios(rows: Sequence[Measured]) -> dict[str, float]:
    """Our tokens/s over the best peer's by case; for one request at a time, our p50 over the best peer's."""
    found = {}
    for case in dict.fromkeys(row.case for row in rows):
        mine = next(row for row in rows if row.case == case and row.server == OURS)
        others = [row for row in rows if row.case == case and row.server != OURS]
        if others:
            alone = case == SHORT_ALONE
            best = min(row.p50 for row in others) if alone else max(row.tokens_rate for row in others)
            found[case] = (mine.p50 if alone else mine.tokens_rate) / best
    return found


def encoder_of(model: Path) -> Encoder:
    settings = load_config(flags={"model": {"source": str(model)}}).model
    located = open_model(settings)
    return read_card(located.folder, located.revision, settings).encoder


def picture(name: str, rows: Sequence[Measured]) -> str:
    servers = list(dict.fromkeys(row.server for row in rows))
    drawn = [
        Bar(
            f"{row.case.split(', 64')[0].split(', 4 ')[0]}: {row.server[:12]}",
            row.tokens_rate,
            servers.index(row.server),
        )
        for row in rows
        if row.case != SHORT_ALONE
    ]
    return bars(f"all-MiniLM-L6-v2, float32, over HTTP, tokens/s ({name})", drawn)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round, nothing is written")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of load, for each case, server and round"
    )
    parser.add_argument("--requests", type=int, default=5_000, help="of the memory test")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.requests = (
            1,
            min(chosen.seconds, 4.0),
            min(chosen.requests, 500),
        )
    return chosen


def main() -> None:
    chosen, model, name = arguments(), minilm_folder(), cpu_name()
    encoder, counter, rows, starts = encoder_of(model), Counter(model), [], []
    with contextlib.ExitStack() as stack:
        servers = []
        for maker in (ours, *(PEERS[peer] for peer in chosen.peers)):
            server = Running(maker(model, free_port()))
            stack.callback(server.close)
            servers.append(server)
            starts.append(server.start)
            print(
                f"{server.start.server}: first vector after {server.start.seconds:.1f} s, {server.start.memory:.0f} MiB"
            )
        print(f"{name}\n{'case':44}{'server':34}{'tokens/s':>10}{'req/s':>8}{'p50 ms':>9}{'p99 ms':>9}")
        peak, share = measured_rate(encoder, usable_cpus()), 0.0
        for case in cases():
            lengths = counter.lengths(case)
            found = measure(servers, case, sum(lengths) / len(case.requests), chosen.seconds, chosen.rounds)
            rows += found
            for row in found:
                print(
                    f"{row.case:44}{row.server:34}{row.tokens_rate:10,.0f}{row.requests_rate:8,.1f}"
                    f"{row.p50:9.1f}{row.p99:9.1f}",
                    flush=True,
                )
            if case.name == LONG:
                peak = max(peak, measured_rate(encoder, usable_cpus()))
                share = found[0].tokens_rate * flops(encoder, np.array(lengths)) / sum(lengths) / peak
        padding, memory = padding_of(servers[0]), memory_over(servers[0], chosen.requests)
    best = ratios(rows)
    mine = {row.case: row.tokens_rate for row in rows if row.server == OURS}
    for name_of_case, ratio in best.items():
        print(
            f"{name_of_case}: {ratio:.2f} x the best peer's {'p50' if name_of_case == SHORT_ALONE else 'tokens/s'}"
        )
    for name_of_case in list(mine)[:2]:
        print(f"{name_of_case}: {mine[name_of_case] / mine[EQUAL]:.2f} x our own tokens/s at equal lengths")
    print(f"{LONG}: {share:.0%} of the matrix-product rate, {peak / 1e9:.0f} GFLOP/s in float32")
    print(
        f"padding: {padding:.1%}; memory: " + ", ".join(f"{count}: {size:.0f} MiB" for count, size in memory)
    )
    if chosen.quick:
        return
    result = {
        "cpu": name,
        "product_gflops": peak / 1e9,
        "product_share": share,
        "padding_share": padding,
        "memory_mib": memory,
        "ratios": best,
        "starts": [asdict(start) for start in starts],
        "measured": [asdict(row) for row in rows],
    }
    file = RESULTS / f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.json"
    file.write_text(json.dumps(result, indent=2) + "\n")
    PICTURE.write_text(picture(name, rows))


if __name__ == "__main__":
    main()
