"""Divides the cores between the engine and the rest of the server: tokenizing and HTTP."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Each front end takes 65 MB; more of them than this have not been seen to be of use.
MAX_FRONT_ENDS = 16


@dataclass(frozen=True, slots=True)
class CpuSplit:
    """The division of the process's cores between the engine and the rest.

    cpus: the number that the process may use. engine: threads of the engine. around: cores that are left for the rest.
    tokenizing_share: the tokenizer's part of the CPU time that a token takes in tokenizer and engine.
    """

    cpus: int
    engine: int
    around: int
    tokenizing_share: float


def split_cpus(cpus: int, *, tokenizing: float, engine: float, processes: int) -> CpuSplit:
    """Divide cores between tokenizer and engine.

    tokenizing, engine: measured seconds of one core for a token. processes: the number of processes that tokenize, each
    on one core at most.

    The tokenizer gets its share in whole cores, to the nearest. Below half a core the engine has all of them: its
    threads do not spin, so that the little other work finds room. One core stays with the engine.
    """
    share = tokenizing / (tokenizing + engine) if tokenizing + engine > 0 else 0.0
    around = max(0, min(int(share * cpus + 0.5), processes, cpus - 1))
    return CpuSplit(cpus, cpus - around, around, round(share, 4))


def choose_front_end_count(cpus: int, *, around: float, rate: float, threads: int | None) -> int:
    """Choose the number of processes that speak HTTP and tokenize; 1 is the engine's own process.

    around: measured seconds of one core a token in HTTP and tokenizer. rate: the engine's tokens a second. threads: of
    an engine that shares the cores, None for one that has a device of its own.

    An engine on the cores gives up its share of them, to the nearest whole core. A device is to be kept busy: it gets
    as many processes as it needs, and its host thread keeps a core. One or two cores are not worth dividing.
    """
    if cpus <= 2:
        return 1
    needed = around * rate
    if threads is not None:
        needed = math.floor(cpus * needed / (needed + threads) + 0.5)
    return max(1, min(math.ceil(needed), cpus - 1, MAX_FRONT_ENDS))
