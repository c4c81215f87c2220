"""Bodies of the routes of Text Embeddings Inference: requests, and answers that are objects."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from embedserve_runtime.api.schemas.base import (
    UNION_MEMBER,
    ApiModel,
    Dimensions,
    Direction,
    ErrorMessage,
    ExpectedInput,
    FailFastList,
    Inputs,
    InputTypeField,
    ModelId,
    RawScores,
    RequestBody,
    Truncate,
    TypedInputs,
    VectorSpace,
    is_none,
)


class EmbedRequest(TypedInputs):
    """Body of `POST /embed`."""

    paths = ("/embed",)

    inputs: Inputs
    truncate: Truncate = None
    truncation_direction: Direction = None
    normalize: bool | None = Field(
        None, description="Scale each vector to length 1; null means true.", examples=[True]
    )
    dimensions: Dimensions = None


class EmbedTokensRequest(TypedInputs):
    """Body of `POST /embed_all` and `POST /embed_sparse`."""

    paths = ("/embed_all", "/embed_sparse")

    inputs: Inputs
    truncate: Truncate = None
    truncation_direction: Direction = None


class PredictRequest(RequestBody):
    """Body of `POST /predict`."""

    paths = ("/predict",)

    inputs: Annotated[
        Annotated[
            FailFastList[
                Annotated[
                    Annotated[str, UNION_MEMBER] | Annotated[FailFastList[str], UNION_MEMBER],
                    Field(union_mode="left_to_right"),
                ]
            ],
            UNION_MEMBER,
        ]
        | Annotated[str, UNION_MEMBER],
        ExpectedInput(
            "a text, a pair of texts, or a list of arrays of one text or two",
            "a text, or an array of one text or two",
        ),
        Field(
            union_mode="left_to_right",
            description="A text, a pair of texts, or a list of arrays of one text or two.",
            examples=["A good film."],
        ),
    ]
    truncate: Truncate = None
    truncation_direction: Direction = None
    raw_scores: RawScores = None


class SimilarityInputs(ApiModel):
    """A text, and the texts that it is compared with."""

    source_sentence: str = Field(
        description="The text that all others are compared with.", examples=["What is a vector?"]
    )
    sentences: FailFastList[str] = Field(
        description="The texts that are compared with it.", examples=[["A list of numbers.", "A fruit."]]
    )


class SimilarityParameters(TypedInputs):
    """Options of the embedding of the texts."""

    truncate: Truncate = None
    truncation_direction: Direction = None


class SimilarityRequest(SimilarityParameters):
    """Body of `POST /similarity`. Fields of `parameters` may stand beside it, too."""

    paths = ("/similarity",)

    inputs: SimilarityInputs = Field(
        description="What is compared with what.",
        examples=[{"source_sentence": "What is a vector?", "sentences": ["A list of numbers."]}],
    )
    parameters: SimilarityParameters | None = Field(
        None, description="Options of the embedding of the texts.", examples=[{"truncate": True}]
    )


class TokenizeRequest(TypedInputs):
    """Body of `POST /tokenize`."""

    paths = ("/tokenize",)

    inputs: Annotated[
        Annotated[FailFastList[str], UNION_MEMBER] | Annotated[str, UNION_MEMBER],
        ExpectedInput("a text or a list of texts"),
        Field(
            union_mode="left_to_right",
            description="A text or a list of texts.",
            examples=[["What is a vector?"]],
        ),
    ]
    add_special_tokens: bool | None = Field(
        None, description="With the special tokens that the model expects; null means true.", examples=[True]
    )


class DecodeRequest(RequestBody):
    """Body of `POST /decode`."""

    paths = ("/decode",)

    ids: Annotated[
        FailFastList[
            Annotated[
                Annotated[FailFastList[int], UNION_MEMBER] | Annotated[int, UNION_MEMBER],
                Field(union_mode="left_to_right"),
            ]
        ],
        ExpectedInput("an array of token ids or a list of them", "a token id or an array of token ids"),
        Field(description="One array of token ids, or a list of them.", examples=[[101, 2054, 2003, 102]]),
    ]
    skip_special_tokens: bool | None = Field(
        None, description="Leave special tokens out; null means true.", examples=[True]
    )
    input_type: InputTypeField = None


Parameters = Annotated[
    dict[str, Any] | None,
    Field(description="Fields that may as well stand beside the inputs.", examples=[{"truncate": True}]),
]


class InvocationRequest(ApiModel):
    """Body of `POST /` and `POST /invocations`: that of the route for what the model does."""

    model_config = ConfigDict(extra="allow")

    inputs: Any = Field(
        None,
        description="As the route for the model's task takes them; an object is compared as on `/similarity`.",
        examples=["What is a vector?"],
    )

    parameters: Parameters = None

    @property
    def content(self) -> dict[str, Any]:
        """All members that were given."""
        members = {
            name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set
        }
        return {**(self.model_extra or {}), **members}


class VertexRequest(RequestBody):
    """Body of `POST /vertex`: each instance is a body of `/embed`, or of the route of what the model does."""

    paths = ("/vertex",)

    instances: list[Any] = Field(
        description="Bodies of `/embed`, or of the route of what the model does.",
        examples=[[{"inputs": "What is a vector?"}]],
    )
    parameters: Parameters = None


class TokenItem(ApiModel):
    """A token; start and stop are UTF-8 byte offsets into prompt + text, null for special tokens."""

    id: int = Field(description="Place in the vocabulary.", examples=[2054])
    text: str = Field(description="The token as the vocabulary has it.", examples=["what"])
    special: bool = Field(description="Whether it is a special token.", examples=[False])
    start: int | None = Field(description="Byte at which it starts.", examples=[0])
    stop: int | None = Field(description="Byte before which it ends.", examples=[4])


class SparseItem(ApiModel):
    """An entry of a sparse vector: its place in the vocabulary and its weight."""

    index: int = Field(description="Place in the vocabulary.", examples=[2054])
    value: float = Field(description="Weight of the entry.", examples=[1.25])


class PredictItem(ApiModel):
    """A label with its score."""

    score: float = Field(description="Probability of the label, or its raw score.", examples=[0.98])
    label: str = Field(description="Name of the label.", examples=["positive"])


class ErrorResponse(ApiModel):
    """An error as Text Embeddings Inference writes it."""

    error: ErrorMessage
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"] = Field(
        description="Kind of the error, in the words of Text Embeddings Inference.", examples=["Validation"]
    )


class EmbeddingModelType(ApiModel):
    """Pooling of hidden states."""

    pooling: str = Field(description="Name of the pooling, as TEI has it.", examples=["mean"])


class LabelsModelType(ApiModel):
    """The labels of a classifier, both ways."""

    id2label: dict[str, str] = Field(description="Labels by their numbers.", examples=[{"0": "positive"}])
    label2id: dict[str, int] = Field(description="Numbers by their labels.", examples=[{"positive": 0}])


class ModelType(ApiModel):
    """The kind of model, as TEI tags it: exactly one of these."""

    embedding: EmbeddingModelType | None = Field(
        None, exclude_if=is_none, description="The model makes vectors.", examples=[{"pooling": "mean"}]
    )
    classifier: LabelsModelType | None = Field(
        None,
        exclude_if=is_none,
        description="The model labels texts.",
        examples=[{"id2label": {"0": "positive"}, "label2id": {"positive": 0}}],
    )
    reranker: LabelsModelType | None = Field(
        None,
        exclude_if=is_none,
        description="The model scores texts for a query.",
        examples=[{"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}],
    )


class EngineInfo(ApiModel):
    """The engine that runs the model."""

    kind: str = Field(description="Name of the engine.", examples=["onnx"])
    devices: list[str] = Field(description="Where it computes.", examples=[["cpu"]])
    precision: str = Field(description="Number type in which it computes.", examples=["float32"])
    attention: str | None = Field(
        description="How it computes attention, where it has a choice.", examples=["flash"]
    )
    threads: int | None = Field(
        description="How many threads compute, where the engine shares the cores.", examples=[8]
    )
    max_sequences: int | None = Field(
        description="1 where each text is run alone, since its values would depend on the texts beside it.",
        examples=[1],
    )


class ParityInfo(ApiModel):
    """Measured distance of the vectors to those of a more exact precision."""

    reference: str = Field(description="The precision that it was measured against.", examples=["float32"])
    mean_cosine: float = Field(description="Mean cosine of a text's two vectors.", examples=[0.9988])
    min_cosine: float = Field(description="Least cosine of a text's two vectors.", examples=[0.9951])
    texts: str = Field(
        description="The texts, in the runtime's package.", examples=["parity/texts/parity.txt"]
    )


class MemoryInfo(ApiModel):
    """Peak memory of the server, and the limits that it lowered to fit."""

    limit_bytes: int | None = Field(description="Limit of the container; null: none.", examples=[1073741824])
    planned_bytes: int = Field(description="What the server plans to take.", examples=[846213120])
    lowered: list[str] = Field(
        description="What is less than the settings ask for, since the limit has no room for it.",
        examples=[["1024 tokens of a batch instead of 2048"]],
    )


class InfoResponse(ApiModel):
    """Answer of `GET /info`: TEI's keys, then our own."""

    model_id: str = Field(
        description="Where the model comes from.", examples=["sentence-transformers/all-MiniLM-L6-v2"]
    )
    model_sha: str | None = Field(
        description="Revision of the model, if it is known.",
        examples=["c9745ed1d9f207416be6d2e6f8de32d1f16199bf"],
    )
    model_dtype: str = Field(description="Number type in which the model computes.", examples=["float32"])
    served_model_name: ModelId
    model_type: ModelType = Field(
        description="The kind of model.", examples=[{"embedding": {"pooling": "mean"}}]
    )
    max_concurrent_requests: int = Field(description="How many inputs may wait.", examples=[512])
    max_input_length: int = Field(description="Most tokens of an input.", examples=[512])
    max_batch_tokens: int = Field(description="Most tokens that are computed together.", examples=[16384])
    max_batch_requests: int | None = Field(
        description="Most requests that are computed together; null: no limit.", examples=[None]
    )
    max_client_batch_size: int = Field(description="Most inputs of a request.", examples=[32])
    auto_truncate: bool = Field(description="Whether inputs that are too long are cut.", examples=[True])
    tokenization_workers: int = Field(description="How many threads tokenize.", examples=[4])
    version: str = Field(description="Version of the server.", examples=["0.1.0"])
    vector_space: VectorSpace
    compute: str = Field(
        description="What computes the vectors: a number type, with the digest of a converted file.",
        examples=["int8@1f0c54d0a9e2", "float32"],
    )
    parity: ParityInfo | None = Field(
        description="How far vectors are from those in float32; null: not measured.",
        examples=[
            {
                "reference": "float32",
                "mean_cosine": 0.9988,
                "min_cosine": 0.9951,
                "texts": "parity/texts/parity.txt",
            }
        ],
    )
    dimensions: int = Field(description="Numbers of a vector.", examples=[384])
    full_dimensions: int = Field(
        description="Numbers of a vector before the server's setting cuts it.", examples=[384]
    )
    normalize: bool = Field(description="Whether vectors are scaled to length 1.", examples=[True])
    prompts: list[str] = Field(description="Names of the model's prompts.", examples=[["query", "document"]])
    default_prompt: str | None = Field(
        description="Name of the prompt taken where none is asked for; null: none.", examples=["document"]
    )
    adapter_task: str | None = Field(
        description="The task of a request that names none; null: none.", examples=["retrieval"]
    )
    adapter_tasks: list[str] = Field(
        description="All tasks that the model has adapters for.", examples=[["retrieval", "text-matching"]]
    )
    vector_spaces: dict[str, str] = Field(
        description="The vector space of each task that requests can choose.",
        examples=[{"retrieval": "vs2-4d4f43f9e189b33de563", "text-matching": "vs2-90b1f0c5d8a3c2e1b7a6"}],
    )
    engine: EngineInfo = Field(
        description="What runs the model.",
        examples=[
            {
                "kind": "onnx",
                "devices": ["cpu"],
                "precision": "float32",
                "attention": None,
                "threads": 8,
                "max_sequences": None,
            }
        ],
    )
    http_workers: int = Field(description="How many processes speak HTTP.", examples=[1])
    memory: MemoryInfo | None = Field(
        description="Memory of the server; null: not planned.",
        examples=[{"limit_bytes": 1073741824, "planned_bytes": 846213120, "lowered": []}],
    )
