"""Launches the packed attention kernel: which tiles it takes, and what it adds to the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.disentangled import DisentangledTerm
from embedserve_runtime.engines.torch.fused.flash import FlashAttention
from embedserve_runtime.engines.torch.fused.kernels.attention import attend
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.model.architecture import Alibi, Attention

# From this many tokens a sequence on, wider tiles are faster (measured on an H100, heads of 64). Below, they are where
# sequences end at their edges, and slower where not.
LONG = 1024
# Batches this large give every multiprocessor enough wide tiles.
LARGE = 4096


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Queries and keys of a program's step, and how the compiler spreads it. registers: of a thread, None for as many
    as it takes."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


def choose_tile(attention: Attention, tokens: int, sequences: int) -> AttentionTile:
    """Choose the tile for a batch; `sequences` is what the layout has room for. Found by trying, on an H100: long
    sequences gain from wide tiles, while in short ones and in windows a wide tile mostly computes scores that are
    masked."""
    if attention.head_size > 128:
        return AttentionTile(64, 32, 4, 2)
    if tokens <= 64:
        return AttentionTile(16, 32, 1, 2)
    if attention.head_size > 64 or attention.window is not None or tokens < LARGE:
        return AttentionTile(64, 32, 4, 3)
    if tokens >= LONG * sequences:
        return AttentionTile(128, 64, 8, 3)
    return AttentionTile(64, 64, 4, 3, registers=128)


@dataclass(frozen=True, slots=True, eq=False)
class PositionBias:
    """The terms that attention adds to a score by the positions of its two tokens.

    max_positions: `Encoder.max_positions`. table: float32 (1 or heads, 2 * max_positions - 1), added by key - query.
    term: DeBERTa's.
    """

    max_positions: int
    table: Tensor | None = None
    term: DisentangledTerm | None = None


class FusedAttention:
    """softmax(cap(scale * q k^T) + position terms) v, over packed tokens.

    flash: runs batches that have bounds. dtype: the dtype of the result, None for that of the values.
    """

    def __init__(
        self,
        attention: Attention,
        parameters: Parameters,
        positions: PositionBias,
        *,
        flash: FlashAttention | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._dtype = dtype
        self._flash = flash
        self._attention = attention
        self._width = attention.heads * attention.head_size
        self._middle = positions.max_positions - 1
        self._table = positions.table
        self._term = positions.term
        self._slopes: Tensor | None = None
        if isinstance(attention.distance_bias, Alibi):
            self._slopes = torch.tensor(attention.distance_bias.slopes, device=parameters.device)
        self._block_d = max(16, int(triton.next_power_of_2(attention.head_size)))

    def __call__(self, qkv: Tensor, batch: DeviceBatch) -> Tensor:
        """Compute attention, (tokens, heads * head_size). qkv: (tokens, (heads + 2 * kv_heads) * head_size)."""
        if self._flash is not None and batch.bounds is not None:
            return self._flash(qkv, batch).to(self._dtype or qkv.dtype)
        form, tokens = self._attention, qkv.shape[0]
        tile = choose_tile(form, tokens, batch.sequences)
        keys_start, values_start = self._width, self._width + form.kv_heads * form.head_size
        out = qkv.new_empty((tokens, self._width), dtype=self._dtype)
        to_position, to_content, rows = self._multiply_by_table_rows(qkv, tokens)
        grid = (form.heads, triton.cdiv(tokens, tile.queries))
        kernel: Callable[..., object] = attend[grid]
        kernel(
            query=qkv,
            key=qkv[:, keys_start:],
            value=qkv[:, values_start:],
            out=out,
            starts=batch.starts,
            ends=batch.ends,
            slopes=self._slopes,
            table=self._table,
            content_to_position=to_position,
            position_to_content=to_content,
            row_of=None if self._term is None else self._term.row_of,
            tokens=tokens,
            rows=rows,
            query_step=qkv.stride(0),
            key_step=qkv.stride(0),
            out_step=self._width,
            table_step=0 if self._table is None or len(self._table) == 1 else self._table.stride(0),
            middle=self._middle,
            scale=form.scale,
            soft_cap=form.soft_cap or 0.0,
            HEAD_SIZE=form.head_size,
            GROUP=form.heads // form.kv_heads,
            WINDOW=-1 if form.window is None else form.window,
            CAUSAL=form.causal,
            CAPPED=form.soft_cap is not None,
            ALIBI=self._slopes is not None,
            TABLE=self._table is not None,
            TO_POSITION=to_position is not None,
            TO_CONTENT=to_content is not None,
            BLOCK_M=tile.queries,
            BLOCK_N=tile.keys,
            BLOCK_D=self._block_d,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **({} if tile.registers is None else {"maxnreg": tile.registers}),
        )
        return out

    def _multiply_by_table_rows(self, qkv: Tensor, tokens: int) -> tuple[Tensor | None, Tensor | None, int]:
        """DeBERTa's products of each token with each row of the position tables: (heads, tokens, rows)."""
        if self._term is None:
            return None, None, 0
        form = self._attention
        heads = qkv.view(tokens, -1, form.head_size).transpose(0, 1)
        products: list[Tensor | None] = []
        rows = 0
        for part, positions in (
            (heads[: form.heads], self._term.position_key),
            (heads[form.heads : 2 * form.heads], self._term.position_query),
        ):
            products.append(None if positions is None else part @ positions.transpose(1, 2))
            rows = rows if positions is None else positions.shape[1]
        return products[0], products[1], rows
