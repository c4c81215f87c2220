"""The tensors of an encoder with its LoRA adapter merged into them, read like those of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Checkpoint, StoredTensors, resolve
from embedserve_runtime.model.lora import FACTORS, PREFIX, LoraAdapter, find_module
from embedserve_runtime.model.parameter_names import TensorSource
from embedserve_runtime.model.stacked_factors import StackedFactors
from embedserve_runtime.model.tensors import ModelTensors

# The weight of a module that has an adapter lies one step deeper.
BASE_LAYER = ".base_layer."
WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """A product of the two factors of an adapter, with the tensor that it is added to.

    module: the adapter's name of the module. source: which rows of the product are taken; target: to which rows of the
    checkpoint's tensor they are added.
    """

    module: str
    source: TensorSource
    target: TensorSource


def open_encoder_tensors(card: ModelCard, tensors: ModelTensors) -> StoredTensors:
    """Open the tensors of a card's encoder and of its heads in the same files, a LoRA adapter merged into them.

    Raises ModelFileMissing, ModelInvalid or UnsupportedArchitecture.
    """
    return open_adapted_tensors(card, tensors) or tensors.open_checkpoint(card.encoder_path)


def open_adapted_tensors(card: ModelCard, tensors: ModelTensors) -> AdaptedTensors | None:
    """Open the encoder's tensors with the card's adapter merged into them; None for a card without one.

    Raises ModelFileMissing, ModelInvalid or UnsupportedArchitecture.
    """
    if card.adapter is None:
        return None
    checkpoint, stack = tensors.open_checkpoint(card.encoder_path), card.adapter.stack
    own = tensors.adapter(card.adapter.folder) if stack is None else StackedFactors(checkpoint, *stack)
    return AdaptedTensors(checkpoint, own, card.adapter, card.encoder)


class AdaptedTensors:
    """Reads a checkpoint with an adapter: some tensors are the adapter's, to others its products are added.

    unmerged: the same before anything is added.

    own: the tensors of the adapter.
    """

    def __init__(
        self, checkpoint: Checkpoint, own: Checkpoint | StackedFactors, adapter: LoraAdapter, encoder: Encoder
    ) -> None:
        self._checkpoint = checkpoint
        self._own = own
        self._adapter = adapter
        self._prefixes = sorted(encoder.parameter_names.prefixes, key=len, reverse=True)
        self._replacement_of = {self._strip(name.replace(BASE_LAYER, ".")): name for name in adapter.replaced}
        added = [name for name in self._replacement_of if name not in set(map(self._strip, checkpoint.names))]
        self._names = checkpoint.names.union(added)
        self._updates = self._assign_updates(encoder)
        self.unmerged = UnmergedTensors(self)

    @property
    def names(self) -> frozenset[str]:
        return self._names

    def iterate_factors(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Yield the factors of what is added, as stored, by their names without the adapter's prefix."""
        modules = {update.module for updates in self._updates.values() for update in updates}
        for name in sorted(self._own.names):
            if find_module(name.removeprefix(PREFIX)) in modules:
                yield name.removeprefix(PREFIX), self._own.read_tensor(name)

    def read_stored(self, name: str) -> NDArray[np.generic]:
        """Return the tensor as the files have it: the adapter's own, else the checkpoint's, with nothing added."""
        replacement = self._replacement_of.get(self._strip(name))
        if replacement is None:
            return self._checkpoint.read_tensor(name)
        self._checkpoint.mark_read(name)
        return self._own.read_tensor(PREFIX + replacement)

    def read_tensor(self, name: str) -> NDArray[np.generic]:
        """Return the tensor with the adapter merged into it: float32 where something is added, else as stored. Raises
        ModelInvalid or UnsupportedArchitecture."""
        tensor, updates = self.read_stored(name), self._updates.get(name, ())
        if not updates:
            return tensor
        merged = tensor.astype(np.float32)  # a copy, also of a tensor that is mapped from its file
        for update in updates:
            rows, product = _take_rows(merged, update.target), self._multiply_factors(update.module)
            added = _take_rows(product, update.source)
            if rows.shape != added.shape:
                raise ModelInvalid(
                    f"the LoRA adapter has {list(added.shape)} for {update.module}, and {name} has {list(rows.shape)}"
                )
            rows += added
        return merged

    def read_stored_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Return rows of the tensor as the files have it, with nothing added."""
        if self._strip(name) in self._replacement_of:
            return self.read_stored(name)[start:stop]
        return self._checkpoint.read_rows(name, start, stop)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Return rows of the tensor, merged."""
        return self.read_tensor(name)[start:stop]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the tensor, which merging does not change."""
        if self._strip(name) in self._replacement_of:
            return self.read_stored(name).shape
        return self._checkpoint.shape(name)

    def _strip(self, name: str) -> str:
        """Return a tensor's or module's name without the prefix that checkpoints of the family may have."""
        return next((name.removeprefix(prefix) for prefix in self._prefixes if name.startswith(prefix)), name)

    def _assign_updates(self, encoder: Encoder) -> Mapping[str, Sequence[LowRankUpdate]]:
        """Find the tensor that each module's product is added to: under any name that the family has for it, since an
        adapter may be written by another version of transformers than the weights."""
        module_of = {self._strip(module) + WEIGHT: module for module in self._adapter.scales}
        updates: dict[str, list[LowRankUpdate]] = {}
        assigned: set[str] = set()
        source_of = resolve(encoder, self)
        for parameter in encoder.parameters():
            for source in encoder.parameter_names.sources[parameter.pattern]:
                name, target = source.tensor.format(layer=parameter.layer), source_of[parameter.name]
                if name in module_of:
                    if source.transpose or target.transpose:
                        raise UnsupportedArchitecture(f"a LoRA adapter of {module_of[name]} is not supported")
                    assigned.add(name)
                    updates.setdefault(target.tensor, []).append(
                        LowRankUpdate(module_of[name], source, target)
                    )
        for name in self._names:  # those of heads
            bare = self._strip(name)
            if bare in module_of and bare not in assigned:
                whole = TensorSource(name)
                updates.setdefault(name, []).append(LowRankUpdate(module_of[bare], whole, whole))
        return MappingProxyType(updates)

    def _multiply_factors(self, module: str) -> FloatArray:
        """Return scale * B A as float32, (out features, in features), of an embedding transposed. Raises
        ModelInvalid."""
        (a, b), (embedding_a, embedding_b) = (
            tuple(f"{PREFIX}{module}.{factor}" for factor in factors) for factors in FACTORS
        )
        scale = np.float32(self._adapter.scales[module])
        if embedding_a in self._own.names:
            return (self._read_factor(embedding_b) @ self._read_factor(embedding_a)).T * scale
        return self._read_factor(b) @ self._read_factor(a) * scale

    def _read_factor(self, name: str) -> FloatArray:
        if name not in self._own.names:
            raise ModelInvalid(f"the LoRA adapter lacks the tensor {name}")
        factor = self._own.read_float32(name)
        if factor.ndim != 2:
            raise ModelInvalid(
                f"the LoRA adapter's tensor {name} has shape {list(factor.shape)}, not two sides"
            )
        return factor


@dataclass(frozen=True, slots=True)
class UnmergedTensors:
    """Reads the tensors that `AdaptedTensors` reads, some of them the adapter's own, and adds nothing."""

    adapted: AdaptedTensors

    @property
    def names(self) -> frozenset[str]:
        return self.adapted.names

    def read_tensor(self, name: str) -> NDArray[np.generic]:
        return self.adapted.read_stored(name)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        return self.adapted.read_stored_rows(name, start, stop)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.adapted.shape(name)


def _take_rows(tensor: FloatArray, source: TensorSource) -> FloatArray:
    """Return a view of the rows that a source takes of its tensor."""
    count = len(tensor) // source.parts
    return tensor[source.part * count : (source.part + 1) * count]
