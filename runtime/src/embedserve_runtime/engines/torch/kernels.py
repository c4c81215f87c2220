"""Softmax attention over packed queries, keys and values: four implementations, one of them chosen at start.

FUSED: our own packed kernel inside the fused encoder (`fused/`), on CUDA in 16 bit, for every form. FLASH: the same
encoder with flash-attn-4 where that has the form. VARLEN: torch's
packed kernel, on CUDA in 16 bit, for forms without a bias. GROUPED: everywhere and for every form; sequences of similar
length are padded to one block, and `scaled_dot_product_attention` runs on each block.
The two of this module take queries (tokens, heads, head_size), keys and values (tokens, kv_heads, head_size).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from importlib.util import find_spec
from inspect import signature
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.packing import PackedTokens, PaddedGroup
from embedserve_runtime.model.architecture import Attention

# Largest additive mask at a time, in elements; beyond it the queries of a block go through in slices.
MASK_ELEMENTS = 4_194_304
# FlashAttention 2, which torch's packed kernel uses, runs from Ampere on and up to this head size.
FIRST_CAPABILITY = (8, 0)
MAX_HEAD_SIZE = 256


class KernelKind(StrEnum):
    FUSED = "fused"
    FLASH = "flash"
    VARLEN = "varlen"
    GROUPED = "grouped"


class Kernel(Protocol):
    def __call__(self, query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens) -> Tensor: ...


class ScoreTerm(Protocol):
    """A term that is added to the scaled scores of a slice of queries, (1 or sequences, 1 or heads, queries, keys)."""

    def __call__(self, query: Tensor, key: Tensor, queries: range, keys: range) -> Tensor: ...


def find_varlen_obstacle(attention: Attention, device: torch.device, dtype: torch.dtype) -> str | None:
    """Find what keeps an attention from torch's packed kernel; None if nothing does."""
    return _find_device_obstacle(device, dtype) or _find_form_obstacle(attention)


def _find_device_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        return "the packed kernel is for CUDA"
    if dtype not in {torch.float16, torch.bfloat16}:
        return f"the packed kernel is for 16 bit, not {dtype}"
    if "window_size" not in list_varlen_options():
        return f"torch {torch.__version__} has no packed kernel with windows"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < FIRST_CAPABILITY:
        return f"the packed kernel needs compute capability 8.0, the device has {major}.{minor}"
    return None


def _find_form_obstacle(attention: Attention) -> str | None:
    if attention.distance_bias is not None or attention.disentangled is not None:
        return "the packed kernel adds no position terms to scores"
    if attention.soft_cap is not None:
        return "the packed kernel caps no scores"
    if attention.head_size > MAX_HEAD_SIZE or attention.head_size % 8:
        return f"the packed kernel takes head sizes in steps of 8 up to {MAX_HEAD_SIZE}, not {attention.head_size}"
    return None


def list_varlen_options() -> Collection[str]:
    """List the arguments of torch's packed kernel, none where there is no such kernel. They differ by version: torch
    2.11 takes windows and no grouped heads, 2.15 both."""
    if find_spec("torch.nn.attention.varlen") is None:
        return ()
    from torch.nn.attention.varlen import varlen_attn

    return signature(varlen_attn).parameters.keys()


class VarlenKernel:
    """torch.nn.attention.varlen."""

    def __init__(self, attention: Attention) -> None:
        # Imported here: older versions have no such module, and a CPU has no need of it.
        from torch.nn.attention.varlen import varlen_attn

        # Typed loosely, since its arguments differ by version.
        self._run: Callable[..., object] = varlen_attn
        self._scale = attention.scale
        self._options: dict[str, bool] = {}
        self._repeats = 1
        if attention.kv_heads != attention.heads:
            if "enable_gqa" in list_varlen_options():
                self._options["enable_gqa"] = True
            else:
                self._repeats = attention.heads // attention.kv_heads
        left = -1 if attention.window is None else attention.window
        self._window = (left, 0 if attention.causal else left)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens) -> Tensor:
        if self._repeats > 1:
            key, value = (part.repeat_interleave(self._repeats, dim=1) for part in (key, value))
        attended = self._run(
            *(query, key, value, tokens.cu_seqlens, tokens.cu_seqlens, tokens.max_seqlen, tokens.max_seqlen),
            scale=self._scale,
            window_size=self._window,
            **self._options,
        )
        assert isinstance(attended, Tensor)  # a tuple only with `return_aux`
        return attended


class GroupedKernel:
    """Attention over blocks of padded sequences: SDPA, or where scores are capped, which SDPA cannot, one product after
    another."""

    def __init__(self, attention: Attention, terms: tuple[ScoreTerm, ...]) -> None:
        self._attention = attention
        self._terms = terms

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens) -> Tensor:
        groups = tokens.groups
        if groups is None:
            raise ValueError("the batch was packed without groups")
        blocks = []
        for member in groups.members:
            padded = [_stack_group(values, member) for values in (query, key, value)]
            attended = self._attend(padded[0], padded[1], padded[2], member)
            blocks.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(blocks)[groups.unpad]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, group: PaddedGroup) -> Tensor:
        """Return attention's result for a block, (sequences, heads, length, head_size), in slices of queries small
        enough for their masks."""
        length = group.length
        masked = bool(self._terms) or group.padding is not None
        step = length
        if masked or self._attention.soft_cap is not None:
            step = max(1, MASK_ELEMENTS // (group.sequences * self._attention.heads * length))
        slices = []
        for start in range(0, length, step):
            queries = range(start, min(start + step, length))
            keys = self._find_visible_keys(queries, length)
            mask = self._build_mask(query, key, group, queries, keys) if masked else None
            slices.append(
                self._attend_slice(
                    query[:, :, queries.start : queries.stop],
                    key[:, :, keys.start : keys.stop],
                    value[:, :, keys.start : keys.stop],
                    mask,
                )
            )
        return slices[0] if len(slices) == 1 else torch.cat(slices, dim=2)

    def _attend_slice(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return attention's result for some queries and the keys that they may see, (sequences, heads, queries,
        head_size)."""
        attention = self._attention
        if attention.soft_cap is not None:
            return compute_capped_attention(query, key, value, mask, attention)
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            scale=attention.scale,
            enable_gqa=attention.kv_heads != attention.heads,
        )

    def _find_visible_keys(self, queries: range, length: int) -> range:
        """Find the keys that any of these queries may see."""
        window = length if self._attention.window is None else self._attention.window
        ahead = 0 if self._attention.causal else window
        return range(max(0, queries.start - window), min(length, queries.stop + ahead))

    def _build_mask(
        self, query: Tensor, key: Tensor, group: PaddedGroup, queries: range, keys: range
    ) -> Tensor:
        mask = query.new_zeros(())
        for term in self._terms:
            mask = mask + term(query, key, queries, keys)
        if group.padding is not None:
            mask = mask.masked_fill(group.padding[..., keys.start : keys.stop], -torch.inf)
        return mask


def compute_capped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, attention: Attention
) -> Tensor:
    """Compute softmax(soft_cap * tanh(scale * q k^T / soft_cap) + mask) v, of an attention with a cap; the softmax in
    float32, and zeros for a query of which the mask hides every key.

    query: (sequences, heads, queries, head_size); key, value: (sequences, kv_heads, keys, head_size); mask: what
    broadcasts to (sequences, heads, queries, keys).
    """
    assert attention.soft_cap is not None
    sequences, heads, queries, size = query.shape
    grouped = query.view(sequences, key.shape[1], -1, queries, size)
    products = (grouped @ key.unsqueeze(2).transpose(3, 4)).float()
    scores = attention.soft_cap * torch.tanh(products * (attention.scale / attention.soft_cap))
    scores = scores.flatten(1, 2)
    weights = torch.softmax(scores, dim=-1) if mask is None else _compute_masked_weights(scores + mask)
    grouped_weights = weights.to(value.dtype).view(sequences, key.shape[1], -1, queries, key.shape[2])
    return (grouped_weights @ value.unsqueeze(2)).view(sequences, heads, queries, size)


def _compute_masked_weights(scores: Tensor) -> Tensor:
    """Compute the softmax of each row; zeros for a row of -inf alone."""
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return torch.softmax(scores, dim=-1).masked_fill(sees_nothing, 0.0)


def _stack_group(values: Tensor, group: PaddedGroup) -> Tensor:
    """Stack the sequences of a group, (tokens, heads, size) to (sequences, heads, length, size)."""
    return values[group.rows].view(group.sequences, group.length, *values.shape[1:]).transpose(1, 2)


class DistanceTerm:
    """A term that depends on key - query alone: a row a head (or one for all) of
    `model.relative.compute_distance_table`."""

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self._middle = table.shape[1] // 2

    def __call__(self, query: Tensor, key: Tensor, queries: range, keys: range) -> Tensor:
        return self._table[:, compute_distances(queries, keys, self._table.device) + self._middle][None]


def compute_distances(queries: range, keys: range, device: torch.device) -> Tensor:
    """Compute key - query, (queries, keys)."""
    rows = torch.arange(queries.start, queries.stop, device=device)
    columns = torch.arange(keys.start, keys.stop, device=device)
    return columns[None, :] - rows[:, None]
