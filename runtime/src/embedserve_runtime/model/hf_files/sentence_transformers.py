"""The files of a sentence-transformers repository: modules.json, what lies beside it, and each module's own file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt

from embedserve_runtime.model.files import FileModel

MODULES_FILE = "modules.json"
SENTENCE_TRANSFORMERS_FILE = "config_sentence_transformers.json"


class ModuleEntry(FileModel):
    """An entry of modules.json."""

    idx: int
    path: str
    type: str

    @property
    def kind(self) -> str:
        """The class name, without its package, which differs between versions of sentence-transformers."""
        return self.type.rsplit(".", 1)[-1]


class SentenceTransformersConfig(FileModel):
    """config_sentence_transformers.json. activation_fn: class of the function that makes a cross-encoder's scores."""

    model_type: str | None = None
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt_name: str | None = None
    activation_fn: str | None = None


class RouterParameters(FileModel):
    """The `parameters` of a Router module."""

    default_route: str | None = None
    allow_empty_key: bool = True
    route_mappings: dict[str, str] = Field(default_factory=dict)


class RouterConfig(FileModel):
    """router_config.json of a Router module. types: classes of modules by folder. structure: folders by route."""

    types: dict[str, str]
    structure: dict[str, list[str]]
    parameters: RouterParameters = Field(default_factory=RouterParameters)


class TokenizerCall(FileModel):
    """The arguments with which a Transformer module calls its tokenizer. truncation: only to say that texts are
    truncated."""

    add_special_tokens: bool | None = None
    max_length: PositiveInt | None = None
    truncation: Literal[True, "longest_first", "only_first"] | None = None


class ProcessingArguments(FileModel):
    """The `processing_kwargs` of a Transformer module. chat_template: variables that its program is given."""

    common: TokenizerCall = TokenizerCall()
    text: TokenizerCall = TokenizerCall()
    chat_template: dict[str, Any] | None = None


class TokenizerArguments(FileModel):
    """The arguments with which a Transformer module loads its tokenizer."""

    model_max_length: PositiveInt | None = None
    truncation_side: Literal["left", "right"] | None = None


class TransformerConfig(FileModel):
    """The keys of a Transformer module's file (sentence_bert_config.json) that are done."""

    max_seq_length: PositiveInt | None = None
    do_lower_case: bool = False
    transformer_task: str | None = None
    modality_config: dict[str, dict[str, Any]] | None = None
    module_output_name: str | None = None
    processing_kwargs: ProcessingArguments | None = None
    tokenizer_args: TokenizerArguments | None = None
    processor_kwargs: TokenizerArguments | None = None


class PoolingConfig(FileModel):
    """A Pooling module. The flags are the older spelling of `pooling_mode`."""

    pooling_mode: str | list[str] | None = None
    include_prompt: bool = True
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class ModuleInputConfig(FileModel):
    """The keys of a module that say what it works on: vectors of texts, or of tokens."""

    module_input_name: str | None = None
    module_output_name: str | None = None


class DenseConfig(ModuleInputConfig):
    """A Dense module."""

    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


class LayerNormConfig(FileModel):
    """A LayerNorm module."""

    dimension: int


class SpladePoolingConfig(FileModel):
    """A SpladePooling module."""

    pooling_strategy: Literal["max", "sum"] = "max"
    activation_function: Literal["relu", "log1p_relu"] = "relu"


class LogitScoreConfig(FileModel):
    """A LogitScore module: which rows of a causal model's output layer make the score."""

    true_token_id: int
    false_token_id: int | None = None
    module_input_name: Literal["causal_logits"] = "causal_logits"


class MultiVectorMaskConfig(FileModel):
    """A MultiVectorMask module: which tokens have no vector."""

    skiplist_words: list[str] | None = None
    skiplist_tasks: str | list[str] | None = None
    keep_only_token_ids: list[int] | None = None


class HierarchicalTokenPoolingConfig(FileModel):
    """A HierarchicalTokenPooling module. normalize_embeddings: as sentence-transformers reads a file without it."""

    pool_factor: float = Field(default=1.0, ge=1)
    num_protected_tokens: int = Field(default=1, ge=0)
    normalize_embeddings: bool = False
    tasks: str | list[str] | None = None


class SparseStaticEmbeddingConfig(FileModel):
    """A SparseStaticEmbedding module. path: of weights in a JSON file."""

    path: str | None = None
