"""The sentence-transformers layout: modules.json and the small files beside it, read into a pipeline.

Folders without modules.json are served as sentence-transformers would load them: mean pooling, not normalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.files import FileModel, read_json, read_json_if_there
from embedserve_runtime.model.pipeline import Activation, DenseLayer, Pooling

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
DENSE_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": Activation.IDENTITY,
    "torch.nn.modules.activation.Tanh": Activation.TANH,
    "torch.nn.modules.activation.ReLU": Activation.RELU,
    "torch.nn.modules.activation.Sigmoid": Activation.SIGMOID,
    "torch.nn.modules.activation.SiLU": Activation.SILU,
    "torch.nn.modules.activation.GELU": Activation.GELU,
}


class _Module(FileModel):
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


class _DenseFile(FileModel):
    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"


class _TransformerFile(FileModel):
    max_seq_length: int | None = None
    do_lower_case: bool = False


class SpladeFile(FileModel):
    """The SpladePooling module."""

    pooling_strategy: Literal["max", "sum"] = "max"
    activation_function: Literal["relu", "log1p_relu"] = "relu"


class _SentenceTransformersFile(FileModel):
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt_name: str | None = None
    activation_fn: str | None = None


class _TokenizerConfigFile(FileModel):
    model_max_length: float | None = None
    model_input_names: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What the folder's own files say, before the settings of the service are laid over it.

    max_length: tokens, special ones included; None when no file says it.
    pools: whether a module says the pooling. splade: the module that makes sparse vectors.
    token_types: whether the tokenizer hands token types on to the model.
    activation: class of the function that makes a cross-encoder's scores; None when no file here says it.
    static: folder of the module that is a table of token vectors.
    """

    pooling: tuple[Pooling, ...]
    dense: tuple[DenseLayer, ...]
    normalize: bool
    max_length: int | None
    lowercase: bool
    prompts: dict[str, str]
    default_prompt: str | None
    pools: bool
    splade: SpladeFile | None
    token_types: bool
    activation: str | None
    static: Path | None = None


def read_layout(folder: Path) -> Layout:
    """Read the layout. Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture, naming file and module."""
    modules = sorted(
        read_json_if_there(folder / "modules.json", list[_Module], []), key=lambda module: module.idx
    )
    pooling: tuple[Pooling, ...] | None = None
    splade: SpladeFile | None = None
    dense: list[DenseLayer] = []
    normalize, transformer = False, folder
    static: Path | None = None
    for module in modules:
        match module.kind:
            case "Transformer" | "MLMTransformer":  # the second is an old name of sparse encoders
                transformer = folder / module.path
            case "StaticEmbedding":
                static = folder / module.path
            case "Pooling":
                pooling = _read_pooling(folder / module.path / "config.json")
            case "SpladePooling":
                splade = read_json(folder / module.path / "config.json", SpladeFile)
            case "Dense":
                dense.append(_read_dense(folder, module.path))
            case "Normalize":
                normalize = True
            case _:
                raise UnsupportedArchitecture(
                    f"{folder / 'modules.json'}: module {module.type} is not supported; "
                    "supported: Transformer, StaticEmbedding, Pooling, Dense, Normalize, SpladePooling"
                )
    if transformer != folder:
        raise UnsupportedArchitecture(
            f"{folder / 'modules.json'}: the Transformer module must lie in the root folder"
        )
    if splade is not None and (pooling is not None or dense or normalize):
        raise UnsupportedArchitecture(
            f"{folder / 'modules.json'}: SpladePooling together with Pooling, Dense or Normalize is not supported"
        )
    if static is not None and (pooling is not None or splade is not None):
        raise UnsupportedArchitecture(
            f"{folder / 'modules.json'}: StaticEmbedding gives whole vectors, so no Pooling can follow it"
        )
    settings = _read_transformer(folder)
    tokenizer = read_json_if_there(
        folder / "tokenizer_config.json", _TokenizerConfigFile, _TokenizerConfigFile()
    )
    model = read_json_if_there(
        folder / "config_sentence_transformers.json", _SentenceTransformersFile, _SentenceTransformersFile()
    )
    return Layout(
        pooling=pooling or (Pooling.MEAN,),
        dense=tuple(dense),
        normalize=normalize,
        max_length=settings.max_seq_length or _tokenizer_length(tokenizer),
        lowercase=settings.do_lower_case,
        prompts=model.prompts,
        default_prompt=model.default_prompt_name,
        pools=pooling is not None,
        splade=splade,
        # Where the file does not say it, the encoder's table of types does.
        token_types=tokenizer.model_input_names is None or "token_type_ids" in tokenizer.model_input_names,
        activation=model.activation_fn,
        static=static,
    )


def _read_transformer(folder: Path) -> _TransformerFile:
    found = next((folder / name for name in TRANSFORMER_FILES if (folder / name).exists()), None)
    return read_json(found, _TransformerFile) if found is not None else _TransformerFile()


def _tokenizer_length(tokenizer: _TokenizerConfigFile) -> int | None:
    length = tokenizer.model_max_length
    # transformers writes 1e30 for "no limit".
    return int(length) if length is not None and 0 < length < 1e9 else None


def _read_pooling(path: Path) -> tuple[Pooling, ...]:
    config = read_json(path, _PoolingFile)
    if config.pooling_mode is not None:
        modes = [config.pooling_mode] if isinstance(config.pooling_mode, str) else config.pooling_mode
    else:
        modes = [mode for flag, mode in POOLING_FLAGS.items() if getattr(config, flag)]
    if not modes or any(mode not in POOLING_MODES for mode in modes):
        raise UnsupportedArchitecture(
            f"{path}: pooling {' + '.join(modes) or 'none'} is not supported; supported: {', '.join(POOLING_MODES)}"
        )
    if not config.include_prompt:
        raise UnsupportedArchitecture(
            f"{path}: include_prompt = false (prompt left out of pooling) is not supported"
        )
    return tuple(POOLING_MODES[mode] for mode in modes)


def _read_dense(folder: Path, name: str) -> DenseLayer:
    path = folder / name / "config.json"
    config = read_json(path, _DenseFile)
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
    )
