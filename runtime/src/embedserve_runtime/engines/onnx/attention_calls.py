"""Adds calls of attention on packed queries, keys and values: one for each group of sequences of one length.

Groups are consecutive in the batch (`grouping.EqualGroups`), so their results end to end are packed again. A batch of
one group, as a lone text is, takes all rows as they are; several groups go through a loop, whose own work is a
seventh of a short text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from embedserve_runtime.engines.onnx.disentangled import PositionTerms
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.model.architecture import Attention

# `MultiHeadAttention` copies queries, keys and values of each head apart first, `Attention` takes them where they lie.
# Where nothing is added to the scores only the former keeps them in the cache. Otherwise both write all of them, and up
# to so many tokens of a sequence `Attention` is faster for every family.
MAX_TOKENS_IN_PLACE = 256


@dataclass(frozen=True, slots=True)
class FusedQKV:
    """Fused queries, keys and values, (tokens, 3 x columns)."""

    value: str
    columns: int


# Packed queries, keys and values, with as many heads each; three values of (tokens, columns) where they are apart.
Heads = FusedQKV | tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A call of attention on sequences of one length.

    distances: what is added to the scores of the longest sequences by the distance of query and key, (1, heads or 1,
    longest, longest). positions: what depends on queries and keys too.
    """

    layer: Attention
    distances: str | None
    positions: PositionTerms | None
    has_attention_mask: bool

    def add(
        self,
        body: GraphWriter,
        blocks: Sequence[str],
        shape: str,
        *,
        attended_lengths: str,
        distances: str | None,
    ) -> str:
        """Add the call; its result is packed (tokens, heads x head_size).

        blocks: queries, keys and values, (sequences, length, columns). shape: int64, these three. attended_lengths: how
        many leading tokens attention sees, int32 (sequences,), empty for all. distances: those of this length.
        """
        layer = self.layer
        added = [] if distances is None else [distances]
        if self.positions is not None:
            added.append(self.positions.write_block(body, blocks[0], blocks[1], shape))
        bias = body.add("Add", *added) if len(added) > 1 else "".join(added)
        if bias and not attended_lengths:
            context = self._write_with_bias(body, blocks, shape, bias)
        else:
            context = self._write_heads_apart(body, [*blocks, "", attended_lengths, bias])
        return body.add("Reshape", context, body.add_integers(-1, layer.heads * layer.head_size))

    def _write_with_bias(self, body: GraphWriter, blocks: Sequence[str], shape: str, bias: str) -> str:
        short, long = body.open_subgraph(), body.open_subgraph()
        heads = self.layer.heads
        in_place = short.add(
            "Attention", *blocks, bias, q_num_heads=heads, kv_num_heads=heads, scale=self.layer.scale
        )
        apart = self._write_heads_apart(long, [*blocks, "", "", bias])
        length = body.add("Gather", shape, body.add_scalar(1))
        return body.add(
            "If",
            body.add("LessOrEqual", length, body.add_scalar(MAX_TOKENS_IN_PLACE)),
            then_branch=_build_branch(short, in_place, "short"),
            else_branch=_build_branch(long, apart, "long"),
        )

    def _write_heads_apart(self, body: GraphWriter, inputs: Sequence[str]) -> str:
        return body.add(
            "MultiHeadAttention", *inputs, domain=FUSED, num_heads=self.layer.heads, scale=self.layer.scale
        )


def _build_branch(body: GraphWriter, found: str, name: str) -> onnx.GraphProto:
    """Build a graph without inputs that gives `found`."""
    output = helper.make_tensor_value_info(found, TensorProto.FLOAT, None)
    return helper.make_graph(body.nodes, name, [], [output])


def add_attention_calls(graph: GraphWriter, heads: Heads, call: AttentionCall) -> str:
    """Add the calls for all groups; their result is packed (tokens, heads x head_size)."""
    is_one = graph.add("Equal", "groups", graph.add_scalar(1))
    return graph.add(
        "If",
        is_one,
        then_branch=_build_one_group(graph, heads, call),
        else_branch=_build_all_groups(graph, heads, call),
    )


def _build_one_group(graph: GraphWriter, heads: Heads, call: AttentionCall) -> onnx.GraphProto:
    """Build the branch for a batch of sequences of one length."""
    shape = graph.add("Gather", "shapes", graph.add_scalar(0))
    body = graph.open_subgraph()
    if isinstance(heads, FusedQKV):
        block = body.add("Reshape", heads.value, shape)
        blocks = body.add_many("Split", block, outputs=3, axis=2, num_outputs=3)
    else:
        blocks = [body.add("Reshape", value, shape) for value in heads]
    attended_lengths = "attended" if call.has_attention_mask else ""
    found = call.add(body, blocks, shape, attended_lengths=attended_lengths, distances=call.distances)
    return _build_branch(body, found, "one_group")


def _build_all_groups(graph: GraphWriter, heads: Heads, call: AttentionCall) -> onnx.GraphProto:
    """Build the branch for any batch."""
    branch = graph.open_subgraph()
    body = _group_of_many(branch, heads, call)
    collected = branch.add("Loop", "groups", "", branch.add("SequenceEmpty"), body=body)
    found = branch.add("ConcatFromSequence", collected, axis=0)
    return _build_branch(branch, found, "all_groups")


def _group_of_many(branch: GraphWriter, heads: Heads, call: AttentionCall) -> onnx.GraphProto:
    """Build the loop's body: (number, keep going, results so far) to (keep going, results and this group's)."""
    body = branch.open_subgraph()
    number, keep_going, collected = (
        body.make_name("number"),
        body.make_name("keep_going"),
        body.make_name("collected"),
    )
    shape = body.add("Gather", "shapes", number)

    def write_block(value: str, first: int = 0, end: int | None = None) -> str:
        bounds = [body.add("Gather", name, number) for name in _write_bounds(branch, first, end)]
        return body.add("Reshape", body.add("Slice", value, *bounds), shape)

    if isinstance(heads, FusedQKV):
        width = heads.columns
        blocks = [write_block(heads.value, part * width, (part + 1) * width) for part in range(3)]
    else:
        blocks = [write_block(value) for value in heads]
    attended_lengths = ""
    if call.has_attention_mask:
        attended_lengths = body.add(
            "Slice", "attended", *(body.add("Gather", name, number) for name in ("firsts", "lasts"))
        )
    distances = None if call.distances is None else _write_corner(body, call.distances, shape)
    found = call.add(body, blocks, shape, attended_lengths=attended_lengths, distances=distances)
    grown = body.add("SequenceInsert", collected, found)
    still = body.add("Identity", keep_going)
    return helper.make_graph(
        body.nodes,
        "group_of_many",
        [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(keep_going, TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info(collected, TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info(still, TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info(grown, TensorProto.FLOAT, None),
        ],
    )


def _write_bounds(graph: GraphWriter, first: int, end: int | None) -> tuple[str, str]:
    """Where the groups start and end, with the columns unless all are meant: int64 (groups, 1 or 2)."""
    if end is None:
        return "starts", "ends"
    behind = graph.add_integers(0, 0, 0, 1)
    return (
        graph.add("Pad", "starts", behind, graph.add_scalar(first)),
        graph.add("Pad", "ends", behind, graph.add_scalar(end)),
    )


def _write_corner(body: GraphWriter, distances: str, shape: str) -> str:
    """The part for sequences of the group's length, (1, heads or 1, length, length)."""
    length = body.add("Gather", shape, body.add_integers(1, 1))
    return body.add("Slice", distances, body.add_integers(0, 0), length, body.add_integers(2, 3))
