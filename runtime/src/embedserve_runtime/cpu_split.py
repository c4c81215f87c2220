"""How the cores are shared between the engine and what goes on around it: tokenising, HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuSplit:
    """cpus: that the process may use. engine: threads of the engine. around: cores that are left beside them.

    tokenizing_share: of the CPU time that a token takes in the tokenizer and in the engine.
    """

    cpus: int
    engine: int
    around: int
    tokenizing_share: float


def split_cpus(cpus: int, *, tokenizing: float, engine: float, processes: int) -> CpuSplit:
    """tokenizing, engine: measured seconds of one core a token. processes: that tokenise, each on a core at most.

    The tokenizer gets its share in whole cores, to the nearest. Below half a core the engine has all of them: its
    threads do not spin, so that what little goes on beside them finds room. One core stays with the engine.
    """
    share = tokenizing / (tokenizing + engine) if tokenizing + engine > 0 else 0.0
    around = max(0, min(int(share * cpus + 0.5), processes, cpus - 1))
    return CpuSplit(cpus, cpus - around, around, round(share, 4))
