"""Adds calls of attention on packed queries, keys and values: one for each group of sequences of one length.

Groups are consecutive in the batch (`forward.grouping.EqualGroups`), so their results end to end are packed again. A
batch of one group, as a lone text is, takes all rows as they are; several groups go through a loop, whose own work is
a seventh of a short text's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

from embedserve_runtime.engines.onnx.attention_blocks import (
    MAX_TOKENS_IN_ONE_TABLE,
    AttentionInBlocks,
    write_hidden_keys,
    write_scored_attention,
)
from embedserve_runtime.engines.onnx.disentangled import DisentangledTerms
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter, add_loop, build_branch
from embedserve_runtime.model.architecture import Attention

# `MultiHeadAttention` copies queries, keys and values of each head apart first, `Attention` takes them where they lie.
# Where nothing is added to the scores only the former keeps them in the cache. Otherwise both write all of them, and up
# to this number of tokens of a sequence `Attention` is faster for every family.
MAX_TOKENS_IN_PLACE = 256


@dataclass(frozen=True, slots=True)
class FusedQKV:
    """Fused queries, keys and values, (tokens, 3 x columns)."""

    value: str
    columns: int


# Packed queries, keys and values, with as many heads each; three values of (tokens, columns) where they are apart.
QKV = FusedQKV | tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """The names of the values that attention over one group of sequences reads.

    blocks: queries, keys and values, (sequences, length, columns). shape: int64, these three. attended_lengths: how
    many leading tokens attention sees, int32 (sequences,), empty for all. distances: what is added by the distance of
    query and key, (1, heads or 1, length, length), if anything.
    """

    blocks: Sequence[str]
    shape: str
    attended_lengths: str
    distances: str | None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A call of attention on sequences of one length.

    distances: what is added to the scores of the longest sequences by the distance of query and key, (1, heads or 1,
    longest, longest), of those up to MAX_TOKENS_IN_ONE_TABLE. positions: what depends on queries and keys too.
    in_blocks: for longer sequences; None where there are none.
    """

    layer: Attention
    distances: str | None
    positions: DisentangledTerms | None
    in_blocks: AttentionInBlocks | None
    has_attention_mask: bool

    def add(self, body: GraphWriter, inputs: GroupInputs) -> str:
        """Add the call; its result is packed (tokens, heads x head_size)."""
        has_bias = inputs.distances is not None or self.positions is not None
        is_capped = self.layer.soft_cap is not None
        if is_capped or (has_bias and inputs.attended_lengths):
            # What only the operator with all scores has: the cap, and zeros for a query that sees no key.
            context = self._write_any_length(body, inputs, self._write_scores)
        elif has_bias:
            context = _choose_by_length(
                body,
                inputs.shape,
                MAX_TOKENS_IN_PLACE,
                lambda short: self._write_scores(short, inputs),
                lambda long: self._write_any_length(long, inputs, self._write_one_table),
            )
        elif inputs.attended_lengths:
            context = self._write_any_length(body, inputs, self._write_one_table)
        else:
            context = self._write_one_table(body, inputs)
        return body.add("Reshape", context, body.add_integers(-1, self.layer.heads * self.layer.head_size))

    def _write_any_length(
        self,
        body: GraphWriter,
        inputs: GroupInputs,
        write_one_table: Callable[[GraphWriter, GroupInputs], str],
    ) -> str:
        in_blocks = self.in_blocks
        if in_blocks is None:
            return write_one_table(body, inputs)

        def write_in_blocks(long: GraphWriter) -> str:
            length = long.add("Gather", inputs.shape, long.add_integers(1))
            return in_blocks.add(long, inputs.blocks, length, inputs.attended_lengths)

        return _choose_by_length(
            body,
            inputs.shape,
            MAX_TOKENS_IN_ONE_TABLE,
            lambda short: write_one_table(short, inputs),
            write_in_blocks,
        )

    def _write_score_terms(self, body: GraphWriter, inputs: GroupInputs) -> list[str]:
        """Write what is added to the scores."""
        added = [] if inputs.distances is None else [inputs.distances]
        if self.positions is not None:
            queries, keys, _ = inputs.blocks
            added.append(self.positions.write_block(body, queries, keys, inputs.shape))
        return added

    def _write_scores(self, body: GraphWriter, inputs: GroupInputs) -> str:
        """Write attention by the operator that takes all scores."""
        terms = self._write_score_terms(body, inputs)
        hidden_keys = None
        if inputs.attended_lengths:
            length = body.add("Gather", inputs.shape, body.add_integers(1))
            hidden_keys = write_hidden_keys(body, length, inputs.attended_lengths)
        return write_scored_attention(body, self.layer, inputs.blocks, terms, hidden_keys)

    def _write_one_table(self, body: GraphWriter, inputs: GroupInputs) -> str:
        """Write attention by the operator of queries, keys and values that are apart."""
        terms = self._write_score_terms(body, inputs)
        bias = body.add("Add", *terms) if len(terms) > 1 else "".join(terms)
        return body.add(
            "MultiHeadAttention",
            *(*inputs.blocks, "", inputs.attended_lengths, bias),
            domain=FUSED,
            num_heads=self.layer.heads,
            scale=self.layer.scale,
        )


def _choose_by_length(
    body: GraphWriter,
    shape: str,
    max_short_length: int,
    write_short: Callable[[GraphWriter], str],
    write_long: Callable[[GraphWriter], str],
) -> str:
    """Add two branches, the first for sequences of up to `max_short_length` tokens."""
    short, long = body.open_subgraph(), body.open_subgraph()
    branches = (
        build_branch(short, write_short(short), "short"),
        build_branch(long, write_long(long), "long"),
    )
    length = body.add("Gather", shape, body.add_scalar(1))
    is_short = body.add("LessOrEqual", length, body.add_scalar(max_short_length))
    return body.add("If", is_short, then_branch=branches[0], else_branch=branches[1])


def add_attention_calls(graph: GraphWriter, heads: QKV, call: AttentionCall) -> str:
    """Add the calls for all groups; their result is packed (tokens, heads x head_size)."""
    is_one = graph.add("Equal", "groups", graph.add_scalar(1))
    return graph.add(
        "If",
        is_one,
        then_branch=_build_one_group(graph, heads, call),
        else_branch=_build_all_groups(graph, heads, call),
    )


def _build_one_group(graph: GraphWriter, heads: QKV, call: AttentionCall) -> onnx.GraphProto:
    """Build the branch for a batch of sequences of one length."""
    shape = graph.add("Gather", "shapes", graph.add_scalar(0))
    body = graph.open_subgraph()
    if isinstance(heads, FusedQKV):
        block = body.add("Reshape", heads.value, shape)
        blocks = body.add_many("Split", block, outputs=3, axis=2, num_outputs=3)
    else:
        blocks = [body.add("Reshape", value, shape) for value in heads]
    attended_lengths = "attended" if call.has_attention_mask else ""
    output = call.add(body, GroupInputs(blocks, shape, attended_lengths, call.distances))
    return build_branch(body, output, "one_group")


def _build_all_groups(graph: GraphWriter, heads: QKV, call: AttentionCall) -> onnx.GraphProto:
    """Build the branch for any batch."""
    branch = graph.open_subgraph()
    output = add_loop(
        branch,
        "groups",
        lambda body, number: _write_group(branch, body, number, heads, call),
        axis=0,
        name="group_of_many",
    )
    return build_branch(branch, output, "all_groups")


def _write_group(branch: GraphWriter, body: GraphWriter, number: str, heads: QKV, call: AttentionCall) -> str:
    """Write the loop's body for the group of this number. branch: the graph around the loop."""
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
    return call.add(body, GroupInputs(blocks, shape, attended_lengths, distances))


def _write_bounds(graph: GraphWriter, first: int, end: int | None) -> tuple[str, str]:
    """Write the starts and ends of the groups, with those of the columns unless all are meant: int64 (groups, 1 or
    2)."""
    if end is None:
        return "starts", "ends"
    padding = graph.add_integers(0, 0, 0, 1)
    return (
        graph.add("Pad", "starts", padding, graph.add_scalar(first)),
        graph.add("Pad", "ends", padding, graph.add_scalar(end)),
    )


def _write_corner(body: GraphWriter, distances: str, shape: str) -> str:
    """Write the part for sequences of the group's length, (1, heads or 1, length, length)."""
    length = body.add("Gather", shape, body.add_integers(1, 1))
    return body.add("Slice", distances, body.add_integers(0, 0), length, body.add_integers(2, 3))
