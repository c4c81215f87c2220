"""The checks of a self-test: one line for each thing that was looked at, or could not be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.cosines import compute_cosines


class CheckStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one self-test.

    name: what was looked at; detail: what was seen, or why it could not be looked at.
    """

    name: str
    status: CheckStatus
    detail: str


def compare_hidden_states(name: str, values: FloatArray, reference: FloatArray, min_cosine: float) -> Check:
    """Compare hidden states with those of another engine, token by token."""
    cosine = float(compute_cosines(values, reference).min())
    status = CheckStatus.OK if cosine >= min_cosine else CheckStatus.FAILED
    return Check(name, status, f"least cosine {cosine:.6f}, at least {min_cosine} is needed")
