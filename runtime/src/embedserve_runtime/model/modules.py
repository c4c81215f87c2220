"""The sentence-transformers layout: modules.json and the small files beside it, read into a pipeline.

Folders without modules.json are served as sentence-transformers would load them: mean pooling, not normalised.
What a module's own file says and we do not do stops the start, also where the module itself is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.files import FileModel, read_json, read_json_if_there
from embedserve_runtime.model.pipeline import DenseLayer, Pooling

# sentence-transformers' names of pooling modes (modules/pooling.py) to ours.
POOLING_MODES = {
    "cls": Pooling.CLS,
    "max": Pooling.MAX,
    "mean": Pooling.MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN_SQRT,
    "weightedmean": Pooling.WEIGHTED_MEAN,
    "lasttoken": Pooling.LAST,
}
# The older spelling: one boolean a mode. Several are joined in this order, which is that of sentence-transformers.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Today's name and those of old versions, in the order in which sentence-transformers looks for them.
TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
SUPPORTED = (
    "Transformer",
    "StaticEmbedding",
    "SparseStaticEmbedding",
    "Pooling",
    "Dense",
    "Normalize",
    "Dropout",
    "SpladePooling",
    "LogitScore",
    "MultiVectorMask",
    "HierarchicalTokenPooling",
)
ORDERS = (
    "(MLM)?Transformer( Pooling( Dense)*( Normalize)*| SpladePooling| LogitScore"
    "|( Dense)+( Normalize)?( MultiVectorMask)?( Normalize)?( HierarchicalTokenPooling)?)?"
    "|StaticEmbedding( Dense)*( Normalize)*"
    "|SparseStaticEmbedding|IDF"
)
# Modules of which only the folder is noted here, and where.
PLACES = {
    "Transformer": "transformer",
    "MLMTransformer": "transformer",  # an old name in sparse encoders
    "StaticEmbedding": "static",
    "SparseStaticEmbedding": "words",
    "IDF": "words",  # an old name
    "MultiVectorMask": "mask",
    "HierarchicalTokenPooling": "token_pooling",
}
# sentence-transformers' names of what modules hand on.
TEXTS, TOKENS = "sentence_embedding", "token_embeddings"
MULTI_VECTOR_TYPES = ("ColBERT", "MultiVectorEncoder")
DENSE_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": Activation.IDENTITY,
    "torch.nn.modules.activation.Tanh": Activation.TANH,
    "torch.nn.modules.activation.ReLU": Activation.RELU,
    "torch.nn.modules.activation.Sigmoid": Activation.SIGMOID,
    "torch.nn.modules.activation.SiLU": Activation.SILU,
    "torch.nn.modules.activation.GELU": Activation.GELU,
}


class ModuleEntry(FileModel):
    """A line of modules.json."""

    idx: int
    path: str
    type: str

    @property
    def kind(self) -> str:
        """The class name; the package it lies in differs between versions of sentence-transformers."""
        return self.type.rsplit(".", 1)[-1]


class _PoolingFile(FileModel):
    pooling_mode: str | list[str] | None = None
    include_prompt: bool = True
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class _PlacesFile(FileModel):
    """What a module works on: vectors of texts, or of tokens."""

    module_input_name: str | None = None
    module_output_name: str | None = None


class _DenseFile(_PlacesFile):
    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


class _TransformerFile(FileModel):
    max_seq_length: int | None = None
    do_lower_case: bool = False


class SpladeFile(FileModel):
    """The SpladePooling module."""

    pooling_strategy: Literal["max", "sum"] = "max"
    activation_function: Literal["relu", "log1p_relu"] = "relu"


class LogitScoreFile(FileModel):
    """The LogitScore module: which rows of a causal model's output layer make the score."""

    true_token_id: int
    false_token_id: int | None = None
    module_input_name: Literal["causal_logits"] = "causal_logits"


class _SentenceTransformersFile(FileModel):
    model_type: str | None = None
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt_name: str | None = None
    activation_fn: str | None = None


class _TokenizerConfigFile(FileModel):
    model_max_length: float | None = None
    model_input_names: list[str] | None = None


@dataclass(slots=True)
class Modules:
    """What the modules say, in the order in which they run.

    written: whether there is a modules.json. transformer: folder of the encoder inside the model folder.
    pooling: None when no module says it.
    dense, normalize: on vectors of texts. token_dense, token_normalize: on vectors of tokens.
    static: folder of the module that is a table of token vectors.
    words: folder of the module that is a table of token weights.
    mask: folder of the module that says which tokens of a multi-vector model count. token_pooling: folder of the
        module that makes one vector of several.
    """

    written: bool = False
    transformer: str = ""
    pooling: tuple[Pooling, ...] | None = None
    include_prompt: bool = True
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False
    splade: SpladeFile | None = None
    logit_score: LogitScoreFile | None = None
    token_dense: tuple[DenseLayer, ...] = ()
    token_normalize: bool = False
    mask: str | None = None
    token_pooling: str | None = None
    static: str | None = None
    words: str | None = None


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """What the folder's own files say, before the settings of the service are laid over it.

    max_length: tokens, special ones included; None when no file says it.
    token_types: whether the tokenizer hands token types on to the model.
    activation: class of the function that makes a cross-encoder's scores; None when no file here says it.
    """

    modules: Modules
    max_length: int | None
    lowercase: bool
    prompts: dict[str, str]
    default_prompt: str | None
    token_types: bool
    activation: str | None


def read_entries(folder: Path) -> list[ModuleEntry]:
    """The lines of modules.json in their order, none without the file. Raises ModelInvalid."""
    entries = read_json_if_there(folder / "modules.json", list[ModuleEntry], [])
    return sorted(entries, key=lambda entry: entry.idx)


def read_layout(folder: Path, entries: Sequence[ModuleEntry]) -> ModelLayout:
    """Read the layout of the modules in `entries`.

    Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture, naming file and module.
    """
    model = read_json_if_there(
        folder / "config_sentence_transformers.json", _SentenceTransformersFile, _SentenceTransformersFile()
    )
    modules = read_modules(folder, entries, model.model_type)
    encoder = folder / modules.transformer
    settings = _read_transformer(encoder)
    tokenizer = read_json_if_there(
        encoder / "tokenizer_config.json", _TokenizerConfigFile, _TokenizerConfigFile()
    )
    return ModelLayout(
        modules=modules,
        max_length=settings.max_seq_length or _limit(tokenizer),
        lowercase=settings.do_lower_case,
        prompts=model.prompts,
        default_prompt=model.default_prompt_name,
        # Where the file does not say it, the encoder's table of types does.
        token_types=tokenizer.model_input_names is None or "token_type_ids" in tokenizer.model_input_names,
        activation=model.activation_fn,
    )


def read_modules(folder: Path, entries: Sequence[ModuleEntry], model_type: str | None) -> Modules:
    """Read the configuration of each module. Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture."""
    modules, order = Modules(written=bool(entries)), [entry.kind for entry in entries]
    for entry in entries:
        config = folder / entry.path / "config.json"
        match entry.kind:
            case kind if kind in PLACES:
                setattr(modules, PLACES[kind], entry.path)
            case "Pooling":
                modules.pooling, modules.include_prompt = _read_pooling(config)
            case "SpladePooling":
                modules.splade = read_json(config, SpladeFile)
            case "LogitScore":
                modules.logit_score = read_json(config, LogitScoreFile)
            case "Dense":
                _add_dense(modules, folder, entry, model_type)
            case "Normalize":
                _add_normalize(modules, config)
            case "Dropout":  # does nothing outside training
                pass
            case _:
                raise UnsupportedArchitecture(
                    f"{folder / 'modules.json'}: module {entry.type} is not supported; "
                    f"supported: {', '.join(SUPPORTED)}"
                )
    _check_order(folder / "modules.json", [kind for kind in order if kind != "Dropout"])
    pools = modules.pooling is not None or modules.static is not None
    if (modules.token_dense or modules.token_normalize) if pools else (modules.dense or modules.normalize):
        raise UnsupportedArchitecture(
            f"{folder / 'modules.json'}: Dense and Normalize must work on {TEXTS if pools else TOKENS} "
            f"{'behind' if pools else 'without'} a Pooling module"
        )
    return modules


def _check_order(path: Path, order: Sequence[str]) -> None:
    """What stands in another order than here would have to be computed in another one."""
    if order and re.fullmatch(ORDERS, " ".join(order)) is None:
        raise UnsupportedArchitecture(
            f"{path}: the modules {', '.join(order)} are not supported together; supported: Transformer, then "
            "Pooling, Dense and Normalize, or SpladePooling, or LogitScore, or Dense, Normalize, MultiVectorMask and "
            "HierarchicalTokenPooling; StaticEmbedding, then Dense and Normalize; SparseStaticEmbedding; in this order"
        )


def _add_dense(modules: Modules, folder: Path, entry: ModuleEntry, model_type: str | None) -> None:
    path = folder / entry.path / "config.json"
    config = read_json(path, _DenseFile)
    # Multi-vector models were saved by PyLate before the file said what the layer works on.
    usual = TOKENS if entry.type.startswith("pylate.") or model_type in MULTI_VECTOR_TYPES else TEXTS
    layer = _read_dense(path, entry.path, config)
    if _place(path, config, usual) == TOKENS:
        modules.token_dense += (layer,)
    else:
        modules.dense += (layer,)


def _add_normalize(modules: Modules, path: Path) -> None:
    config = read_json_if_there(path, _PlacesFile, _PlacesFile())
    if _place(path, config, TEXTS) == TOKENS:
        modules.token_normalize = True
    else:
        modules.normalize = True


def _place(path: Path, config: _PlacesFile, usual: str) -> str:
    """What the module reads and writes: TEXTS or TOKENS. Raises UnsupportedArchitecture."""
    read = config.module_input_name or usual
    written = config.module_output_name or read
    if read not in (TEXTS, TOKENS) or written != read:
        raise UnsupportedArchitecture(
            f"{path}: a module that reads {read} and writes {written} is not supported; supported: {TEXTS} or "
            f"{TOKENS} for both"
        )
    return read


def _read_transformer(folder: Path) -> _TransformerFile:
    found = next((folder / name for name in TRANSFORMER_FILES if (folder / name).exists()), None)
    return read_json(found, _TransformerFile) if found is not None else _TransformerFile()


def tokenizer_length(folder: Path) -> int | None:
    """The tokens of a text that the tokenizer in `folder` keeps, if it has a limit. Raises ModelInvalid."""
    path = folder / "tokenizer_config.json"
    return _limit(read_json_if_there(path, _TokenizerConfigFile, _TokenizerConfigFile()))


def _limit(tokenizer: _TokenizerConfigFile) -> int | None:
    length = tokenizer.model_max_length
    # transformers writes 1e30 for "no limit".
    return int(length) if length is not None and 0 < length < 1e9 else None


def _read_pooling(path: Path) -> tuple[tuple[Pooling, ...], bool]:
    """Pooling modes, and whether the tokens of a prompt are pooled."""
    config = read_json(path, _PoolingFile)
    if config.pooling_mode is not None:
        modes = [config.pooling_mode] if isinstance(config.pooling_mode, str) else config.pooling_mode
    else:
        # sentence-transformers takes the mean where no flag is set.
        modes = [mode for flag, mode in POOLING_FLAGS.items() if getattr(config, flag)] or ["mean"]
    if not modes or any(mode not in POOLING_MODES for mode in modes):
        raise UnsupportedArchitecture(
            f"{path}: pooling {' + '.join(modes) or 'none'} is not supported; supported: {', '.join(POOLING_MODES)}"
        )
    return tuple(POOLING_MODES[mode] for mode in modes), config.include_prompt


def _read_dense(path: Path, name: str, config: _DenseFile) -> DenseLayer:
    activation = DENSE_ACTIVATIONS.get(config.activation_function)
    if activation is None:
        raise ModelInvalid(
            f"{path}: activation_function {config.activation_function} is not supported; "
            f"supported: {', '.join(DENSE_ACTIVATIONS)}"
        )
    return DenseLayer(
        folder=name,
        in_features=config.in_features,
        out_features=config.out_features,
        bias=config.bias,
        activation=activation,
        residual=config.use_residual,
    )
