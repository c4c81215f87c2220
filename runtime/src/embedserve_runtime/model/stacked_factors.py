"""The factors of one of several adapters that lie in a checkpoint as stacks, read like a file of peft.

A weight W (out, in) with adapters is stored as `W.parametrizations.weight.original`, with `lora_A` (adapters, rank, in)
and `lora_B` (adapters, out, rank) below `W.parametrizations.weight.0`; it becomes W + scale * B A. Of a table (rows,
width) they are (adapters, rows, rank) and (adapters, rank, width), and it becomes W + scale * A B.

Source: `LoRAParametrization` of xlm-roberta-flash-implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.checkpoint import Checkpoint
from embedserve_runtime.model.lora import FACTORS, PREFIX

STACK = ".parametrizations.weight.0."
STACKED = ("lora_A", "lora_B")
# How the modules that are tables end; all others are products.
TABLE = "_embeddings"


@dataclass(frozen=True, slots=True)
class StackedFactors:
    """The factors of adapter `index` of `count`, by the names that peft gives them."""

    checkpoint: Checkpoint
    index: int
    count: int

    @property
    def modules(self) -> list[str]:
        """Names of the modules with adapters, sorted."""
        end = f"{STACK}{STACKED[0]}"
        return sorted(name.removesuffix(end) for name in self.checkpoint.names if name.endswith(end))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(
            f"{PREFIX}{module}.{factor}" for module in self.modules for factor in _name_factors(module)
        )

    def read_tensor(self, name: str) -> NDArray[np.generic]:
        """Return a factor as stored, turned round where peft does. Raises ModelInvalid."""
        bare = name.removeprefix(PREFIX)
        module = next(path for path in self.modules if bare.startswith(f"{path}.lora_"))
        stored = STACKED[_name_factors(module).index(bare.removeprefix(f"{module}."))]
        stack = self._read_stack(f"{module}{STACK}{stored}")
        factor: NDArray[np.generic] = stack[self.index]
        return factor.T if module.endswith(TABLE) else factor

    def read_float32(self, name: str) -> FloatArray:
        return self.read_tensor(name).astype(np.float32, copy=False)

    def _read_stack(self, name: str) -> NDArray[np.generic]:
        if name not in self.checkpoint.names:
            raise ModelInvalid(f"the checkpoint lacks the tensor {name}")
        stack = self.checkpoint.read_tensor(name)
        if stack.ndim != 3 or len(stack) != self.count:
            raise ModelInvalid(
                f"the tensor {name} has shape {list(stack.shape)}, and lora_adaptations of config.json names "
                f"{self.count} adapters"
            )
        return stack


def _name_factors(module: str) -> tuple[str, str]:
    products, tables = FACTORS
    return tables if module.endswith(TABLE) else products
