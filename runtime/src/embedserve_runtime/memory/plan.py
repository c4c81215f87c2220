"""Plans the memory of a server, part by part: a pure function of what its model takes and what it is to serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedserve_runtime.memory.sizes import MIB, ModelSizes

HEADROOM = 1.1
"""The factor between the plan and a container's limit."""
FRONT_END_BYTES = 75 * MIB
"""One HTTP process besides the engine's, without its tokenizer."""
BODY_SHARE = 3
"""Bytes that a request's body takes at its highest for each byte: as it came, as text, and once more in between."""
RESULT_NUMBER_BYTES = 48
"""Bytes that one number of a result takes until the answer is sent: the row, and the answer as text."""
MAX_PLANNED_TOKENS = 16_384
MIN_PLANNED_TOKENS = 2_048
PLANNED_TOKENS_OF_CPU = 512
"""A budget that is measured is planned as this number of tokens a CPU: more of them add nothing to the rate."""
PLANNED_PENDING_BYTES = 32 * MIB
"""Bytes planned for bodies in hand, where the bound is not set."""
PLANNED_QUEUE_INPUTS = 4_096
"""Inputs planned for the queue, where the bound is not set."""


@dataclass(frozen=True, slots=True)
class ServingLoad:
    """The most that a server takes on at the same time.

    batch_tokens: budget of a batch. max_length: tokens of the longest text. concurrency: batches at once. http_workers:
    processes that speak HTTP. pending_bytes: of bodies in hand. queue_inputs: inputs that may wait. cache_bytes: of
    vectors, in each process.
    """

    batch_tokens: int
    max_length: int
    concurrency: int = 2
    http_workers: int = 1
    pending_bytes: int = PLANNED_PENDING_BYTES
    queue_inputs: int = PLANNED_QUEUE_INPUTS
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Bytes that one part takes, and where the figure comes from."""

    name: str
    size: int
    source: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory that a server takes at its highest. is_complete: whether nothing that counts is unknown."""

    parts: Sequence[MemoryPart]
    is_complete: bool

    @property
    def total(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def limit(self) -> int:
        """The least limit that a container should have, in whole MiB."""
        return -(-round(HEADROOM * self.total) // MIB) * MIB


def choose_planned_tokens(cpus: int) -> int:
    """Return the budget that is planned for where it is yet to be measured."""
    return max(MIN_PLANNED_TOKENS, min(MAX_PLANNED_TOKENS, PLANNED_TOKENS_OF_CPU * cpus))


def plan_memory(model: ModelSizes, load: ServingLoad) -> MemoryPlan:
    """Return what a server takes that has this model and serves this load."""
    activations = model.activations
    usual = longest = 0
    if activations is not None:
        usual = activations.compute_batch_bytes(load.batch_tokens, 0)
        longest = activations.compute_batch_bytes(load.batch_tokens, load.max_length)
    running = load.concurrency * longest
    # One alone is the engine's own process.
    processes = load.http_workers if load.http_workers > 1 else 0
    parts = (
        MemoryPart("process", model.process, "measured: interpreter, libraries and HTTP server"),
        MemoryPart("weights", model.weights, "the model's parameters in the precision in which they run"),
        MemoryPart("tables", model.tables, "positions up to the model's longest text"),
        MemoryPart("tokenizer", model.tokenizer, "measured for each token of a vocabulary, by kind"),
        MemoryPart(
            "batches",
            load.concurrency * usual,
            f"{load.concurrency} at once of {load.batch_tokens} tokens, by the widest layer",
        ),
        MemoryPart(
            "longest text",
            running - load.concurrency * usual,
            f"what a text of {load.max_length} tokens in each adds",
        ),
        MemoryPart("loading", max(0, model.loading - running), "what loading takes beyond the batches"),
        MemoryPart(
            "requests",
            BODY_SHARE * load.pending_bytes + RESULT_NUMBER_BYTES * model.columns * load.queue_inputs,
            f"bodies of {load.pending_bytes // MIB} MiB, results of {load.queue_inputs} inputs, measured for each",
        ),
        MemoryPart(
            "front ends",
            processes * (FRONT_END_BYTES + model.tokenizer),
            f"measured: {processes} processes, each with a tokenizer",
        ),
        MemoryPart("vector cache", load.http_workers * load.cache_bytes, "batching.cache_bytes"),
    )
    return MemoryPlan(parts, is_complete=activations is not None)
