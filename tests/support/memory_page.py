"""The table of docs/memory.md. `python -m tests.support.memory_page` writes it into the page; a test finds it stale."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.memory.plan import MemoryPlan, ServingLoad, choose_planned_tokens, plan_memory
from embedserve_runtime.memory.sizes import MIB, describe_sizes
from tests.support.model_shapes import describe_shape
from tests.support.tiny_models import build_card

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
CPUS = (2, 8, 32)
_TABLE = re.compile(r"(?<=<!-- examples -->\n).*?(?=<!-- /examples -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A model as it is served. tokenizer: type of its model in tokenizer.json. max_length: tokens of the longest
    text."""

    name: str
    tokenizer: str
    max_length: int


EXAMPLES = (
    Example("all-MiniLM-L6-v2", "WordPiece", 256),
    Example("bge-base-en-v1.5", "WordPiece", 512),
    Example("bge-m3", "Unigram", 8_192),
    Example("Qwen3-Embedding-0.6B", "BPE", 2_048),
    Example("Qwen3-Embedding-0.6B", "BPE", 32_768),
    Example("Qwen3-Embedding-4B", "BPE", 8_192),
    Example("Qwen3-Embedding-8B", "BPE", 8_192),
)
MEASURED: Mapping[tuple[str, int], int] = MappingProxyType({})
"""Greatest resident memory by model and CPUs, MiB, of `python -m benchmarks.memory`."""


def plan_example(example: Example, cpus: int) -> MemoryPlan:
    """Return the plan of a pod that serves the model with the settings left as they are."""
    with tempfile.TemporaryDirectory() as folder:
        encoder = describe_shape(example.name, Path(folder))
    card = build_card(dimensions=encoder.hidden_size)
    content = f'{{"model": {{"type": "{example.tokenizer}"}}}}'.encode()
    card = replace(card, encoder=encoder, tokenizer=replace(card.tokenizer, content=content))
    load = ServingLoad(batch_tokens=choose_planned_tokens(cpus), max_length=example.max_length)
    return plan_memory(describe_sizes(card), load)


def render_table() -> str:
    """Return the rows of the table, with its head."""
    lines = [
        "| model, float32 | longest text | weights | 2 CPUs | 8 CPUs | 32 CPUs | measured with 2 CPUs |",
        "|---|---|---|---|---|---|---|",
    ]
    for example in EXAMPLES:
        plans = [plan_example(example, cpus) for cpus in CPUS]
        weights = next(part.size for part in plans[0].parts if part.name == "weights")
        measured = MEASURED.get((example.name, example.max_length))
        lines.append(
            f"| {example.name} | {example.max_length:,} | {weights // MIB:,} MiB | "
            + " | ".join(f"{plan.limit // MIB:,}Mi" for plan in plans)
            + f" | {'–' if measured is None else f'{measured:,} MiB'} |"
        )
    return "\n".join(lines) + "\n"


def render_page() -> str:
    """Return the page with its table as it is now."""
    return _TABLE.sub(lambda _: render_table(), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
