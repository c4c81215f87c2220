"""What a self-test finds: a line for each thing that was looked at, or could not be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from embedserve_runtime.comparing import cosines
from embedserve_runtime.engines.base import FloatArray


class State(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Check:
    """name: what was looked at; words: what was seen, or why it could not be looked at."""

    name: str
    state: State
    words: str


def near(name: str, values: FloatArray, want: FloatArray, least_cosine: float) -> Check:
    """Hidden states against those of another engine, token by token."""
    cosine = float(cosines(values, want).min())
    state = State.OK if cosine >= least_cosine else State.FAILED
    return Check(name, state, f"least cosine {cosine:.6f}, at least {least_cosine} is needed")
