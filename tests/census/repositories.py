"""The repositories of the census: what each holds, as far as its files, the lists of other servers and papers say."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("repositories.csv")
# 16 GB in float32: from there on a CPU is not what a model is served on.
MAX_PARAMETERS_ON_CPU_M = 4_000


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """What decides whether a repository can be served.

    task: what it is for. encoder: a key of `encoders.ENCODERS` or `foreign.FOREIGN`. behind: what stands behind the
    encoder, word by word in the order of the modules (`dense_folders`, `rerank_folders` and the others).
    """

    task: str
    encoder: str
    behind: str

    def __str__(self) -> str:
        return f"{self.task}, {self.encoder}, {self.behind}"


@dataclass(frozen=True, slots=True)
class Repository:
    """One row. parameters_m: millions of parameters, None where unknown.
    is_confirmed: whether somebody has read the model type in the repository or in code that loads it.
    loader: what its authors recommend to run it with."""

    name: str
    kind: Kind
    parameters_m: float | None
    is_confirmed: bool
    loader: str = "sentence-transformers"

    @property
    def needs_gpu(self) -> bool:
        return self.parameters_m is not None and self.parameters_m > MAX_PARAMETERS_ON_CPU_M


@cache
def read_repositories() -> tuple[Repository, ...]:
    """Every row of the table, in its order."""
    with TABLE.open(newline="") as file:
        return tuple(
            Repository(
                name=row["repository"],
                kind=Kind(row["task"], row["encoder"], row["behind"]),
                parameters_m=float(row["parameters_m"]) if row["parameters_m"] else None,
                is_confirmed=row["facts"] == "read",
                loader=row["loader"],
            )
            for row in csv.DictReader(file)
        )


def list_kinds() -> list[Kind]:
    """Every kind of row once, in the order of the table."""
    return list(dict.fromkeys(one.kind for one in read_repositories()))
