"""Runs one transformer layer, whatever its number types and wherever its norms are.

The steps of a layer and their order are the same for all: `FusedLayer` has them. What differs are two strategies. A
`LayerProducts` computes the matrix products (16 bit, 8 bit, few tokens), a `ResidualNorms` adds the residuals and
computes the norms (before the branches, after them, deferred).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.fused.self_attention import FusedSelfAttention

Rows = TypeVar("Rows")
Residual = TypeVar("Residual")
# The `HiddenStates` of a number type: what the layers of a stack hand to each other.
Hidden = TypeVar("Hidden")
# The result of attention or MLP that is added to the residual; with few tokens the sum, whose norm is deferred.
Branch = TypeVar("Branch")


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates(Generic[Rows, Residual]):
    """Hidden states between two branches.

    rows: what products read. residual: what branches are added to. With norms after these are the same numbers.
    """

    rows: Rows
    residual: Residual


class LayerProducts(ABC, Generic[Hidden, Branch]):
    """Computes the products of a layer. A product that ends a branch may add the residual in the same kernel, into the
    residual's memory."""

    @abstractmethod
    def project_qkv(self, hidden: Hidden) -> Tensor:
        """Return queries, keys and values, side by side."""

    @abstractmethod
    def project_output(self, attended: Tensor, hidden: Hidden) -> Branch:
        """Return the output product of attention's result. hidden: what attention was computed from."""

    @abstractmethod
    def compute_mlp(self, hidden: Hidden) -> Branch:
        """Return down(activation(up)) or down(activation(gate) * up)."""


class ResidualNorms(ABC, Generic[Hidden, Branch]):
    """Adds the residuals of a layer and computes its norms, after each branch.

    hidden: what the branch was computed from.
    """

    @abstractmethod
    def normalize_after_attention(self, branch: Branch, hidden: Hidden) -> Hidden:
        """Return the hidden states that the MLP reads."""

    @abstractmethod
    def normalize_after_mlp(self, branch: Branch, hidden: Hidden) -> Hidden:
        """Return the hidden states that the next layer reads."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedLayer(Generic[Hidden, Branch]):
    """x = norm(x + attention(x)), then norm(x + mlp(x)); or with the norms before the branches."""

    products: LayerProducts[Hidden, Branch]
    attention: FusedSelfAttention
    norms: ResidualNorms[Hidden, Branch]

    def __call__(self, hidden: Hidden, batch: DeviceBatch) -> Hidden:
        """Compute the layer's result; the memory of `hidden` may be overwritten."""
        branch, hidden = self.run_branches(hidden, batch)
        return self.norms.normalize_after_mlp(branch, hidden)

    def run_branches(self, hidden: Hidden, batch: DeviceBatch) -> tuple[Branch, Hidden]:
        """Compute all but the sum and norm at the end: return the MLP's branch, and what it was computed from."""
        branch = self.products.project_output(self.attend(hidden, batch), hidden)
        hidden = self.norms.normalize_after_attention(branch, hidden)
        return self.products.compute_mlp(hidden), hidden

    def attend(self, hidden: Hidden, batch: DeviceBatch) -> Tensor:
        """Return the result of attention, (tokens, heads * head size), before the output product."""
        return self.attention(self.products.project_qkv(hidden), batch)


@dataclass(frozen=True, slots=True, eq=False)
class LayerStack(Generic[Hidden]):
    """A whole encoder: embeddings, layers and what gives the final hidden states (tokens, hidden)."""

    embed: Callable[[DeviceBatch], Hidden]
    layers: Sequence[Callable[[Hidden, DeviceBatch], Hidden]]
    finish: Callable[[Hidden, DeviceBatch], Tensor]

    def __call__(self, batch: DeviceBatch) -> Tensor:
        hidden = self.embed(batch)
        for layer in self.layers:
            hidden = layer(hidden, batch)
        return self.finish(hidden, batch)
