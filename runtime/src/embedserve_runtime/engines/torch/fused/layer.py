"""Runs one transformer layer, whatever its number types and wherever its norms are.

The layer says what follows what; a `LayerProducts` says how its four products are computed (16 bit, 8 bit, few tokens),
a `ResidualNorms` what becomes of a branch: its residual and norms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.fused.self_attention import FusedSelfAttention

Rows = TypeVar("Rows")
Residual = TypeVar("Residual")
Hidden = TypeVar("Hidden")
Hidden_contra = TypeVar("Hidden_contra", contravariant=True)
Inner = TypeVar("Inner")
Branch = TypeVar("Branch")
Branch_co = TypeVar("Branch_co", covariant=True)
Branch_contra = TypeVar("Branch_contra", contravariant=True)
After = TypeVar("After")
After_co = TypeVar("After_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates(Generic[Rows, Residual]):
    """Hidden states between two branches.

    rows: what products read. residual: what branches are added to. With norms after these are the same numbers.
    """

    rows: Rows
    residual: Residual


class LayerProducts(Protocol[Hidden_contra, Inner, Branch_co]):
    """Computes the four products of a layer. A product that ends a branch may add the residual in the same kernel, into
    the residual's memory."""

    def project_qkv(self, hidden: Hidden_contra) -> Tensor:
        """Return queries, keys and values, side by side."""
        ...

    def project_output(self, attended: Tensor, hidden: Hidden_contra) -> Branch_co: ...

    def project_inner(self, hidden: Hidden_contra) -> Inner:
        """Return activation(up) or activation(gate) * up."""
        ...

    def project_down(self, inner: Inner, hidden: Hidden_contra) -> Branch_co: ...


class ResidualNorms(Protocol[Branch_contra, Hidden, After_co]):
    """Adds the residuals of a layer and computes its norms, after each branch.

    hidden: what the branch was computed from.
    """

    def normalize_after_attention(self, branch: Branch_contra, hidden: Hidden) -> Hidden: ...

    def normalize_after_mlp(self, branch: Branch_contra, hidden: Hidden) -> After_co: ...


@dataclass(frozen=True, slots=True, eq=False)
class FusedLayer(Generic[Hidden, Inner, Branch, After]):
    """x = norm(x + attention(x)), then norm(x + mlp(x)); or with the norms before the branches."""

    products: LayerProducts[Hidden, Inner, Branch]
    attention: FusedSelfAttention
    norms: ResidualNorms[Branch, Hidden, After]

    def __call__(self, hidden: Hidden, batch: DeviceBatch) -> After:
        """Compute the layer's result; the memory of `hidden` may be overwritten."""
        branch = self.products.project_output(self.attend(hidden, batch), hidden)
        hidden = self.norms.normalize_after_attention(branch, hidden)
        branch = self.products.project_down(self.products.project_inner(hidden), hidden)
        return self.norms.normalize_after_mlp(branch, hidden)

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
