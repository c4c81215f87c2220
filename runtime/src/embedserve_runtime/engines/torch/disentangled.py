"""DeBERTa-v2's position terms: content-to-position and position-to-content.

scores = scale * (q k^T + q P_k^T by distance + k P_q^T by distance), where P_k and P_q are the relative embeddings
through a key and a query product. All terms share one scale, 1 / sqrt(head_size * (1 + number of terms)), which is
the description's `Attention.scale`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.kernels import compute_distances
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.model.architecture import Attention
from embedserve_runtime.model.relative import compute_distance_rows, list_distances


class DisentangledTerm:
    """The two position terms of one layer. Positions depend on parameters alone, so their products are made at load.

    position_key, position_query: (heads, 2 * span, head_size); row_of: int32, by key - query.
    """

    def __init__(
        self,
        attention: Attention,
        position_key: Tensor | None,
        position_query: Tensor | None,
        row_of: Tensor,
    ) -> None:
        self._scale = attention.scale
        self.position_key = position_key
        self.position_query = position_query
        self.row_of = row_of
        self._middle = len(row_of) // 2

    def __call__(self, query: Tensor, key: Tensor, queries: range, keys: range) -> Tensor:
        rows = self.row_of[compute_distances(queries, keys, query.device) + self._middle].long()
        query = query[:, :, queries.start : queries.stop] * self._scale
        key = key[:, :, keys.start : keys.stop] * self._scale
        shape = (query.shape[0], query.shape[1], len(queries), len(keys))
        scores = query.new_zeros(shape)
        if self.position_key is not None:
            by_row = query @ self.position_key.transpose(1, 2)
            scores = scores + by_row.gather(-1, rows.expand(shape))
        if self.position_query is not None:
            by_row = key @ self.position_query.transpose(1, 2)
            turned = rows.T.expand(*shape[:2], len(keys), len(queries))
            scores = scores + by_row.gather(-1, turned).transpose(2, 3)
        return scores


def build_disentangled_term(
    parameters: Parameters, attention: Attention, embeddings: Tensor, max_positions: int, name: str
) -> DisentangledTerm | None:
    """Build the term of the layer's attention `name`; embeddings: the relative embeddings after their norm."""
    scheme = attention.disentangled
    if scheme is None:
        return None

    def project(own: str, shared: str) -> Tensor:
        bias = True if not scheme.shared_projections else attention.qkv_bias
        product = parameters.load_linear([f"{name}.{shared if scheme.shared_projections else own}"], bias)
        heads = product(embeddings).view(-1, attention.heads, attention.head_size)
        return heads.transpose(0, 1).contiguous()

    # The table is read at key - query + middle, and the scheme counts query - key.
    row_of = compute_distance_rows(-list_distances(max_positions), scheme)
    return DisentangledTerm(
        attention,
        position_key=project("position_key", "key") if scheme.content_to_position else None,
        position_query=project("position_query", "query") if scheme.position_to_content else None,
        row_of=parameters.copy_array(row_of, torch.int32),
    )
