"""Describes the engine that runs a model, for packages that know no engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredParity:
    """The measured distance of vectors from those of a more exact precision.

    precision, reference: the precisions of the two. texts: the texts of which the vectors are.
    """

    precision: str
    reference: str
    mean_cosine: float
    min_cosine: float
    texts: str


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """The kind of an engine and how it computes, for logs, `/info` and metrics.

    kind: onnx, torch or static. precision: of weights and products, `as stored` where a file decides.
    attention: its implementation, None where the engine has only one.
    parity: of the precision that was asked for, which may not be the one that runs; None where it was not measured.
    artifact: digest of the converted file that runs, 12 hex digits; None where the model's own weights run.
    threads: compute threads of an engine that shares the cores with HTTP and tokenizing; None for any other.
    concurrency: how many batches are best run at the same time, each on a thread of its own.
    can_overcommit: whether it takes any number of batches beyond that, for one that should not wait until another ends.
    max_sequences: the most sequences that may share a forward pass, where values depend on the others; None for any.
    """

    kind: str
    device: str
    precision: str
    attention: str | None = None
    parity: MeasuredParity | None = None
    threads: int | None = None
    concurrency: int = 1
    can_overcommit: bool = False
    max_sequences: int | None = None
    artifact: str | None = None

    @property
    def compute_precision(self) -> str:
        """The precision that vectors are computed in, with the digest of a converted file: `int8@1f0c54d0a9e2`.

        Servers of one vector space with the same value give the same vectors up to rounding. `stored`: the model's file
        decides, which is part of the vector space.
        """
        precision = "stored" if self.precision == "as stored" else self.precision
        return precision if self.artifact is None else f"{precision}@{self.artifact}"

    @property
    def served_parity(self) -> MeasuredParity | None:
        """The parity of what runs; None where that was not measured."""
        return self.parity if self.parity is not None and self.parity.precision == self.precision else None


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """The memory failures of an engine, and the largest batch that its device has memory for; for metrics.

    failures: how many batches did not fit. max_batch_tokens: the largest batch that is run in one piece at present;
    None while memory sets no limit.
    """

    failures: int = 0
    max_batch_tokens: int | None = None
