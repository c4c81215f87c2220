"""Defines the model card: everything that decides the vectors of a model, besides its tensors.

Tokenizer, engine and heads are built from a card and tensors; nothing of the model's folder is read for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.canonical import NOT_HASHED
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    LateInteraction,
    LexicalHead,
    MultiVectorHead,
    SparseHead,
    Task,
    TokenHead,
)
from embedserve_runtime.model.lora import LoraAdapter
from embedserve_runtime.model.pipeline import Pipeline
from embedserve_runtime.model.ranges import Ranges
from embedserve_runtime.model.sparse_static import SparseStaticTable
from embedserve_runtime.model.static import StaticTable

Backbone = StaticTable | SparseStaticTable | BundledOnnx
OUTPUT_OF: Mapping[type[Head | TokenHead], OutputKind] = MappingProxyType(
    {
        ClassifierHead: OutputKind.LOGITS,
        SparseHead: OutputKind.SPARSE,
        LexicalHead: OutputKind.SPARSE,
        MultiVectorHead: OutputKind.MULTI_VECTOR,
    }
)


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The settings that decide the token ids of a text.

    content: of tokenizer.json, as the folder's tokenizer class has it. digest: of what that says besides truncation and
        padding, which the runtime sets itself.
    max_token_id: the largest id that it gives.
    lowercase: whether texts are lower-cased first (sentence_bert_config `do_lower_case`).
    adds_special_tokens: whether tokenizer.json's special tokens are put around a text.
    truncation_side: the side on which long texts are truncated where a request does not say it.
    splits_special_tokens: whether a special token that a text writes out is read as other text is.
    overrides: what is not as the folder's tokenizer.json says, one sentence each.
    """

    content: bytes = field(repr=False, compare=False, metadata=NOT_HASHED)
    digest: str
    max_token_id: int = field(metadata=NOT_HASHED)
    lowercase: bool
    adds_special_tokens: bool = True
    truncation_side: Literal["left", "right"] = "right"
    splits_special_tokens: bool = False
    overrides: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)


@dataclass(frozen=True, slots=True)
class QueryRoute:
    """The encoding of queries, where it differs from that of documents.

    card: of the model that queries alone would see; its prompts and vector space are those of the whole.
    default: `routes.QUERY` or `routes.DOCUMENT`, what an input is that is called neither; None: it must be called one.
    prompt: the name of a prompt that is for queries, beside `routes.QUERY`.
    """

    card: ModelCard
    default: str | None
    prompt: str | None = field(default=None, metadata=NOT_HASHED)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A description of a model and of how it is run.

    encoder_path: the folder of the encoder's tensors inside the model's, as `ModelTensors` takes it.
    source: the folder or repository as it was asked for; revision: the commit, or "local".
    max_length: tokens an input may have, special tokens included. Enforced by the tokenizer (`LengthLimit`); engines
        only know `Encoder.max_positions`. own_max_length: the limit that the model's files set; part of the identity.
    prompts: prompt texts by name; default_prompt: the name used when a request names none. added_prompts: names that
        the service's settings add to the model's own; a request that names one gets vectors of this space.
    vector_space: identity of the vectors, `vs2-` and 20 hex digits; it is made from the rest of the card and the
        tensors, and empty before. former_vector_space: the one that releases before `vs2-` gave the model.
    head: what makes rows instead of pooling; None for the task "embed". The pipeline then has no poolings, and
        its dimensions are the columns of a row: labels, or the vocabulary.
    query: how queries are treated; None where it is as documents, which the rest of the card is about.
    token_heads: what is made of each token besides a dense vector.
    pair_types: whether the encoder is told which of a pair's two texts a token belongs to.
    backbone: what runs instead of the layers that `encoder` describes; of the encoder then only the sizes hold.
    ranges: of the dimensions of dense vectors as the model makes them, where the folder has them.
    adapter: what is merged into the tensors of encoder and head. adapter_task: the task that it is for, where the model
        has several. adapter_tasks: all tasks that the model has adapters for. other_tasks: the cards of the other tasks
        that are served beside this one, each with a vector space of its own.
    guesses_pooling: whether nothing says how to pool, and the mean is taken as sentence-transformers takes it.
    ignored_settings: what the model's files say and is not done since no vector depends on it, as `file: key`.
    """

    source: str = field(metadata=NOT_HASHED)
    revision: str = field(metadata=NOT_HASHED)
    encoder: Encoder
    pipeline: Pipeline
    max_length: int = field(metadata=NOT_HASHED)
    own_max_length: int
    tokenizer: TokenizerSettings
    prompts: Mapping[str, str]
    default_prompt: str | None
    added_prompts: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)
    vector_space: str = field(default="", metadata=NOT_HASHED)
    former_vector_space: str | None = field(default=None, metadata=NOT_HASHED)
    task: Task = Task.EMBED
    head: Head | None = None
    token_heads: tuple[TokenHead, ...] = ()
    query: QueryRoute | None = None
    encoder_path: str = field(default="", metadata=NOT_HASHED)
    pair_types: bool = False
    backbone: Backbone | None = None
    ranges: Ranges | None = None
    adapter: LoraAdapter | None = None
    adapter_task: str | None = field(default=None, metadata=NOT_HASHED)
    adapter_tasks: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)
    other_tasks: tuple[ModelCard, ...] = field(default=(), metadata=NOT_HASHED)
    guesses_pooling: bool = field(default=False, metadata=NOT_HASHED)
    ignored_settings: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)

    @property
    def task_spaces(self) -> Mapping[str, str]:
        """The tasks that requests can choose, the default one first, with the identities of their vector spaces."""
        return {
            card.adapter_task: card.vector_space
            for card in (self, *self.other_tasks)
            if card.adapter_task is not None
        }

    def list_routes(self) -> list[ModelCard]:
        """List the cards of all encoders and tables, of each task: that for documents, and that for queries where they
        run something else."""
        return [
            route
            for task in (self, *self.other_tasks)
            for route in (task, None if task.query is None or task.shares_encoder else task.query.card)
            if route is not None
        ]

    @property
    def outputs(self) -> OutputKind:
        """The outputs that every input can have."""
        return self._own_outputs if self.query is None else self._own_outputs & self.query.card.outputs

    @property
    def _own_outputs(self) -> OutputKind:
        """All that one forward pass can give, of documents where queries differ."""
        if isinstance(self.backbone, SparseStaticTable):
            return OutputKind.SPARSE
        if isinstance(self.backbone, BundledOnnx) and self.head is None and self.backbone.hidden is None:
            return OutputKind.DENSE
        outputs = OutputKind.DENSE | OutputKind.HIDDEN if self.head is None else OUTPUT_OF[type(self.head)]
        for head in self.token_heads:
            outputs |= OUTPUT_OF[type(head)]
        return outputs

    @property
    def output_names(self) -> list[str]:
        """The outputs that requests can ask for, by their names in the API."""
        logits = "score" if self.task is Task.RERANK else "labels"
        names = {
            OutputKind.DENSE: "dense",
            OutputKind.SPARSE: "sparse",
            OutputKind.MULTI_VECTOR: "multiVector",
            OutputKind.LOGITS: logits,
            OutputKind.HIDDEN: "hidden",
        }
        return [name for output, name in names.items() if output in self.outputs]

    @property
    def main_output(self) -> OutputKind:
        """The output that the model is made for."""
        order = (OutputKind.DENSE, OutputKind.LOGITS, OutputKind.SPARSE, OutputKind.MULTI_VECTOR)
        return next(output for output in order if output in self.outputs)

    def makes_space(self, space: str) -> bool:
        """Return whether `space` names the model's vectors, by today's identity or the former one."""
        return space in (self.vector_space, self.former_vector_space)

    def serves_space(self, space: str) -> bool:
        """Return whether `space` names the vectors of one of the tasks that are served."""
        return any(card.makes_space(space) for card in (self, *self.other_tasks))

    @property
    def shares_encoder(self) -> bool:
        """Return whether queries differ from documents only in what is computed from the hidden states."""
        return self.query is not None and self.query.card.runs_encoder_of(self)

    def runs_encoder_of(self, card: ModelCard) -> bool:
        """Return whether this model and the other run one encoder, with the same adapter."""
        return (
            self.backbone is None
            and card.backbone is None
            and (self.encoder_path, self.adapter) == (card.encoder_path, card.adapter)
        )

    @property
    def default_prompt_text(self) -> str:
        """The prompt of inputs whose request names none."""
        return "" if self.default_prompt is None else self.prompts[self.default_prompt]

    @property
    def late_interaction(self) -> LateInteraction | None:
        """The late interaction of a multi-vector model; None for other models."""
        return self.head.interaction if isinstance(self.head, MultiVectorHead) else None

    @property
    def has_attention_mask(self) -> bool:
        """Return whether inputs have tokens that attention does not see: `PackedBatch.attended_lengths`."""
        late = self.late_interaction
        return late is not None and late.expansion is not None and not late.expansion.attend

    @property
    def sparse_width(self) -> int:
        """Dimensions of sparse vectors, 0 without any."""
        if isinstance(self.backbone, SparseStaticTable):
            return self.backbone.vocabulary
        sparse = [
            head for head in (self.head, *self.token_heads) if isinstance(head, SparseHead | LexicalHead)
        ]
        return sparse[0].vocabulary if sparse else 0

    @property
    def ranks_by_vectors(self) -> bool:
        """Return whether documents are ranked by comparing the vectors of their tokens."""
        return self.task is Task.MULTI_VECTOR
