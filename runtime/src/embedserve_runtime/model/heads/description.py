"""Heads as data: what is done with the hidden states, and where a checkpoint keeps the tensors.

Read from a folder by `reading`, executed by `embedserve_runtime.heads`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm
from embedserve_runtime.model.canonical import NOT_HASHED
from embedserve_runtime.model.pipeline import DenseLayer, Pooling


class Task(StrEnum):
    """The task of a served model. RERANK is a classifier with one label."""

    EMBED = "embed"
    RERANK = "rerank"
    CLASSIFY = "classify"
    SPARSE = "sparse"
    MULTI_VECTOR = "multi_vector"


class ScoreFunction(StrEnum):
    """The function that turns logits into scores."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


class SparsePooling(StrEnum):
    """The operation that combines the token rows of a sequence into one row."""

    MAX = "max"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """norm(activation(W x + b)), the norm where there is one; perhaps + x or + R x.

    weight, bias: checkpoint tensors that may hold it, tried in order; an empty bias is none.
    norm_names: the same for the norm, without `.weight` and `.bias`.
    rows: which rows of the stored weight make the layer: one, or two, of which the second is taken off the first;
        empty for the whole. divisor: what the weight is divided by.
    file: where the tensors lie instead of the checkpoint: a file or a module's folder inside the model folder.
    norm_file: the same for the norm, where it lies elsewhere.
    residual: x is added at the end.
    residual_weight: tensors that may hold R where R x is added instead; empty where there is none.
    """

    in_features: int
    out_features: int
    weight: tuple[str, ...] = field(metadata=NOT_HASHED)
    bias: tuple[str, ...] = field(metadata=NOT_HASHED)
    activation: Activation = Activation.IDENTITY
    norm: Norm | None = None
    norm_names: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)
    rows: tuple[int, ...] = ()
    divisor: float = 1.0
    file: str = field(default="", metadata=NOT_HASHED)
    norm_file: str = field(default="", metadata=NOT_HASHED)
    residual: bool = False
    residual_weight: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)

    @classmethod
    def from_dense(cls, dense: DenseLayer) -> HeadLayer:
        """Convert a Dense module, with the names that sentence-transformers gives its tensors."""
        return cls(
            dense.in_features,
            dense.out_features,
            ("linear.weight",),
            ("linear.bias",) if dense.bias else (),
            dense.activation,
            file=dense.folder,
            residual=dense.residual,
            residual_weight=("residual.weight",) if dense.projects_residual else (),
        )


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The written prompt that a model judges a pair by.

    parts: texts with the placeholders {instruction}, {query} and {document}, each tokenized on its own, special tokens
        written out; {document} occurs once.
    instruction: the one used when a request brings none.
    plain_parts: those used where there is no instruction at all; empty: `parts`.
    strips: whether white space at the ends of what is put in is taken off.
    """

    parts: tuple[str, ...]
    instruction: str = ""
    plain_parts: tuple[str, ...] = ()
    strips: bool = False

    @property
    def takes_instruction(self) -> bool:
        return any("{instruction}" in part for part in self.parts)


@dataclass(frozen=True, slots=True)
class ClassifierHead:
    """Pools each sequence to one vector and applies layers, the last of which gives a logit for each label.

    Without layers the logits come from elsewhere.
    padding: LAST only: an id that is not counted as a text's last token; where a text has no other, its first token
        is read. None counts every id.
    template: how a pair becomes a text; None where the tokenizer joins pairs.
    """

    pooling: Pooling
    layers: tuple[HeadLayer, ...]
    labels: tuple[str, ...]
    scores: ScoreFunction
    padding: int | None = None
    template: PromptTemplate | None = None


@dataclass(frozen=True, slots=True)
class SparseHead:
    """The layers on every token, of which the last gives a logit for each vocabulary entry; then
    log(1 + max(0, logit)), pooled over the tokens. log_twice: the logarithm is taken a second time before pooling.
    """

    layers: tuple[HeadLayer, ...]
    pooling: SparsePooling
    log_twice: bool = False

    @property
    def vocabulary(self) -> int:
        return self.layers[-1].out_features


@dataclass(frozen=True, slots=True)
class LexicalHead:
    """A weight for each token, max(0, logit); of a token that occurs several times, the largest.

    dropped: token ids that get none. vocabulary: how many token ids there are. layers: on every token, of which the
    last gives one logit; none where a graph gives the logits.
    """

    layers: tuple[HeadLayer, ...]
    dropped: tuple[int, ...]
    vocabulary: int


@dataclass(frozen=True, slots=True)
class QueryExpansion:
    """Queries are filled up to `length` with a token, by its id, whose vectors count.

    fixed: longer queries are cut to `length`. attend: whether attention sees it.
    """

    length: int
    fixed: bool
    attend: bool
    token: int


@dataclass(frozen=True, slots=True)
class TokenPooling:
    """Vectors that are alike become one: the number of vectors divided by `factor` stay.

    protected: leading vectors that stay as they are. normalize: L2 normalize afterwards.
    """

    factor: float
    protected: int = 1
    normalize: bool = True


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """The encoding of queries and documents of a multi-vector model, and which tokens have vectors.

    query_prompt, document_prompt: texts put before each input, markers included.
    markers: texts at their beginning that are one token each where the vocabulary has it.
    query_length, document_length: tokens, special ones included; None for the model's own.
    skipped: ids of tokens whose vectors do not count, for the roles in `skipped_roles`.
    pooling: of the vectors of the roles in `pooled_roles`.
    """

    query_prompt: str = ""
    document_prompt: str = ""
    markers: tuple[str, ...] = ()
    query_length: int | None = None
    document_length: int | None = None
    expansion: QueryExpansion | None = None
    skipped: tuple[int, ...] = ()
    skipped_roles: tuple[str, ...] = ()
    pooling: TokenPooling | None = None
    pooled_roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MultiVectorHead:
    """A vector for each token: the layers, then L2 normalize.

    skipped: leading tokens that get none. interaction: None where queries and documents are treated alike.
    """

    layers: tuple[HeadLayer, ...]
    normalize: bool
    skipped: int = 0
    interaction: LateInteraction | None = None


# Instead of pooling; in addition to it.
Head = ClassifierHead | SparseHead | MultiVectorHead
TokenHead = LexicalHead | SparseHead | MultiVectorHead


def count_outputs(head: Head) -> int:
    """Count the columns of a row that the head gives."""
    if isinstance(head, ClassifierHead):
        return len(head.labels)
    return head.layers[-1].out_features
