"""The file that `benchmarks.cpu` keeps, part by part: each part is of one run, so that its ratios are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from benchmarks.cpu_cases import cases
from benchmarks.cpu_peers import EIGHT_BIT, INFINITY_LOCK, OURS
from embedserve_runtime.benchmarking.bar_chart import Bar, BarGroup, render_bar_chart

PACKAGES = ("onnxruntime", "tokenizers", "sentence-transformers", "torch")


class Taken(msgspec.Struct, frozen=True):
    """When, of what, and among how much other work. load: processes that were running or waiting, before the part."""

    date: str
    commit: str
    versions: dict[str, str]
    load: float

    @classmethod
    def now(cls, load: float) -> Taken:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], check=True, capture_output=True, text=True
        )
        found = re.search(r"^infinity-emb==(\S+)", INFINITY_LOCK.read_text(), re.MULTILINE)
        assert found, INFINITY_LOCK
        versions = {name: version(name) for name in PACKAGES} | {"infinity-emb": found.group(1)}
        return cls(datetime.now(UTC).isoformat(timespec="seconds"), commit.stdout.strip(), versions, load)


class Measured(msgspec.Struct, frozen=True):
    """Medians over the rounds; rates are per second, latencies in ms."""

    server: str
    tokens_rate: float
    requests_rate: float
    p50: float
    p99: float


class Start(msgspec.Struct, frozen=True):
    """Seconds to the first vector, CPU seconds of them, and MiB that the server then takes."""

    server: str
    seconds: float
    cpu_seconds: float
    memory: float


class CasePart(msgspec.Struct, frozen=True):
    """product_gflops: best rate of float32 products, before or after. product_share, padding_share: of our server in
    float32."""

    taken: Taken
    measured: list[Measured]
    product_gflops: float
    product_share: float
    padding_share: float


class StartPart(msgspec.Struct, frozen=True):
    taken: Taken
    starts: list[Start]


class First(msgspec.Struct, frozen=True):
    """later_ms: median latency of the requests when they are asked again. Ratios as `cpu_first.ratios` has them, of
    latency and of the server's CPU time."""

    server: str
    kind: str
    later_ms: float
    wall: tuple[float, float, float]
    cpu: tuple[float, float, float]


class FirstPart(msgspec.Struct, frozen=True):
    taken: Taken
    starts: int
    rows: list[First]


class MemoryPart(msgspec.Struct, frozen=True):
    """series: requests answered, MiB then."""

    taken: Taken
    series: list[tuple[int, float]]


class Results(msgspec.Struct):
    cpu: str
    cases: dict[str, CasePart] = msgspec.field(default_factory=dict)
    starts: StartPart | None = None
    memory: MemoryPart | None = None
    first: FirstPart | None = None


def read(file: Path, cpu: str) -> Results:
    return msgspec.json.decode(file.read_bytes(), type=Results) if file.exists() else Results(cpu)


def write(file: Path, results: Results) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def rate(part: CasePart, server: str) -> float | None:
    return next((row.tokens_rate for row in part.measured if row.server == server), None)


def best_peer(part: CasePart) -> Measured | None:
    """By its median latency where requests come one at a time, so it is the same as by its rate."""
    peers = [row for row in part.measured if row.server not in (OURS, EIGHT_BIT)]
    return max(peers, key=lambda row: row.tokens_rate, default=None)


def table(results: Results) -> str:
    """What was measured, and then a line for each bar."""
    titles = {name: case.title for name, case in cases().items()}
    lines = [
        f"{results.cpu}",
        f"{'case':44}{'server':34}{'tokens/s':>10}{'req/s':>8}{'p50 ms':>9}{'p99 ms':>9}",
    ]
    for name, part in results.cases.items():
        lines += [
            f"{titles[name]:44}{row.server:34}{row.tokens_rate:10,.0f}{row.requests_rate:8,.1f}{row.p50:9.1f}{row.p99:9.1f}"
            for row in part.measured
        ]
    if results.starts:
        lines += [
            f"{'first vector':44}{row.server:34}{row.seconds:8.2f} s, {row.cpu_seconds:.2f} CPU s, {row.memory:.0f} MiB"
            for row in results.starts.starts
        ]
    if results.first:
        heads = "".join(f"{label:>16}" for label in ("first", "after a pause", "2nd on"))
        lines.append(f"{'first requests: x of the same later (of CPU time)':60}{heads}")
        lines += [
            f"{f'{row.kind}, {row.later_ms:.1f} ms':26}{row.server:34}"
            + "".join(f"{f'{wall:.2f} ({cpu:.2f})':>16}" for wall, cpu in zip(row.wall, row.cpu, strict=True))
            for row in results.first.rows
        ]
    if results.memory:
        lines.append(
            "memory after requests: "
            + ", ".join(f"{count:,}: {size:.0f} MiB" for count, size in results.memory.series)
        )
    return "\n".join([*lines, *(f"{text:60}{value:>8}{bar:>10}" for text, value, bar in judged(results))])


def judged(results: Results) -> Iterator[tuple[str, str, str]]:
    """(what, figure, bar) for each bar that was measured."""
    found = results.cases
    for name, plain, eight in (
        ("mixed", 1.8, 3.0),
        ("batches", 1.8, 3.0),
        ("long", 1.0, 1.7),
        ("short", 1.3, 2.0),
    ):
        if name in found:
            yield from _against_peers(name, found[name], plain, eight)
    equal = rate(found["equal"], OURS) if "equal" in found else None
    for name in ("mixed", "batches"):
        if equal and name in found and (own := rate(found[name], OURS)):
            yield f"{name}: float32, of our own equal lengths", f"{own / equal:.2f}", ">= 0.85"
    if "long" in found:
        part = found["long"]
        share = f"{part.product_share:.0%}"
        yield f"long: of the matrix products' {part.product_gflops:.0f} GFLOP/s", share, ">= 80 %"
    if "alone" in found:
        mine, peer = found["alone"].measured[0], best_peer(found["alone"])
        if peer:
            yield f"alone: p50 of {peer.server}'s", f"{mine.p50 / peer.p50:.2f} x", "<= 0.25 x"
    if results.starts:
        yield "first vector", f"{results.starts.starts[0].seconds:.2f} s", "<= 2 s"
    if results.memory:
        sizes = [size for _, size in results.memory.series]
        yield "most memory", f"{max(sizes):.0f} MiB", "<= 300 MiB"


def _against_peers(name: str, part: CasePart, plain: float, eight: float) -> Iterator[tuple[str, str, str]]:
    peer = best_peer(part)
    for server, label, bar in ((OURS, "float32", plain), (EIGHT_BIT, "8 bit", eight)):
        own = rate(part, server)
        if own and peer:
            yield f"{name}: {label}, of {peer.server}", f"{own / peer.tokens_rate:.2f} x", f">= {bar} x"
    infinity = next((row for row in part.measured if row.server == "infinity-emb"), None)
    own = rate(part, OURS)
    if name == "short" and infinity and own:
        yield "short: float32, of infinity-emb", f"{own / infinity.tokens_rate:.2f} x", ">= 3 x"


def picture(results: Results) -> str:
    titles = {name: case.title for name, case in cases().items()}
    groups = [
        BarGroup(
            titles[name],
            [Bar(row.server, row.tokens_rate, colour) for colour, row in enumerate(part.measured)],
        )
        for name, part in results.cases.items()
        if name != "alone"
    ]
    return render_bar_chart(f"all-MiniLM-L6-v2 over HTTP, tokens/s ({results.cpu})", groups)


def by_server(rows: Mapping[str, Sequence[tuple[float, float, float]]], tokens: float) -> list[Measured]:
    """Medians of (requests/s, p50, p99) over the rounds. tokens: of a request, on average."""
    medians = {
        name: [sorted(column)[len(column) // 2] for column in zip(*found, strict=True)]
        for name, found in rows.items()
    }
    return [Measured(name, row[0] * tokens, *row) for name, row in medians.items()]
