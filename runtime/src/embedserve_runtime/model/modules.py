"""The sentence-transformers layout: modules.json and the small files next to it, read into a pipeline.

Folders without modules.json are served as sentence-transformers would load them: mean pooling, not normalized.
What a module's own file says and we do not do stops the start, also where the module itself is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.dense_modules import (
    TEXTS,
    TOKENS,
    read_dense,
    read_input_kind,
    read_score_layers,
)
from embedserve_runtime.model.files import ModelFile, ModelFiles
from embedserve_runtime.model.heads.description import HeadLayer
from embedserve_runtime.model.hf_files.sentence_transformers import (
    MODULES_FILE,
    SENTENCE_TRANSFORMERS_FILE,
    LogitScoreConfig,
    ModuleEntry,
    ModuleInputConfig,
    PoolingConfig,
    SentenceTransformersConfig,
    SpladePoolingConfig,
)
from embedserve_runtime.model.hf_files.tokenizers import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    TokenizerConfig,
    TokenizerJson,
)
from embedserve_runtime.model.pipeline import DenseLayer, Pooling
from embedserve_runtime.model.transformer_module import TransformerModule, read_transformer

ConfigT = TypeVar("ConfigT")

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
TRANSFORMERS = ("Transformer", "MLMTransformer")  # the second is an old name in sparse encoders
SPARSE_STATIC = ("SparseStaticEmbedding", "IDF")  # the second is an old name
DROPOUT = "Dropout"  # does nothing outside training
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


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of modules.json, in the order in which they run.

    has_modules_file: whether there is a modules.json. transformer: folder of the encoder inside the model folder.
    pooling: None when no module says it.
    dense, normalize: on vectors of texts. token_dense, token_normalize: on vectors of tokens.
    static: folder of the module that is a table of token vectors.
    sparse_static: folder of the module that is a table of them. scores: layers that make a cross-encoder's scores.
    mask: folder of the module that says which tokens of a multi-vector model count. token_pooling: folder of the
        module that makes one vector of several.
    """

    has_modules_file: bool = False
    transformer: str = ""
    pooling: tuple[Pooling, ...] | None = None
    include_prompt: bool = True
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False
    splade: SpladePoolingConfig | None = None
    logit_score: LogitScoreConfig | None = None
    token_dense: tuple[DenseLayer, ...] = ()
    token_normalize: bool = False
    mask: str | None = None
    token_pooling: str | None = None
    static: str | None = None
    sparse_static: str | None = None
    scores: tuple[HeadLayer, ...] = ()

    @property
    def has_table(self) -> bool:
        """Return whether the pipeline has a table of vectors or weights instead of a Transformer module."""
        return self.static is not None or self.sparse_static is not None


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The settings in the folder's own files, before those of the service are applied.

    max_length: tokens, special ones included; None when no file says it. transformer: the Transformer module's file.
    token_types: whether the tokenizer hands token types on to the model.
    truncation_side: the side on which the tokenizer truncates.
    activation: class of the function that makes a cross-encoder's scores; None when no file here says it.
    """

    modules: Modules
    transformer: TransformerModule
    max_length: int | None
    prompts: dict[str, str]
    default_prompt: str | None
    token_types: bool
    truncation_side: Literal["left", "right"]
    activation: str | None


def read_entries(files: ModelFiles) -> list[ModuleEntry]:
    """Read the entries of modules.json in their order, none without the file. Raises ModelInvalid."""
    entries = files.parse_if_there(MODULES_FILE, list[ModuleEntry], [])
    return sorted(entries, key=lambda entry: entry.idx)


def read_layout(files: ModelFiles, entries: Sequence[ModuleEntry]) -> ModelLayout:
    """Read the layout of the modules in `entries`.

    Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture, naming file and module.
    """
    model = files.parse_if_there(
        SENTENCE_TRANSFORMERS_FILE, SentenceTransformersConfig, SentenceTransformersConfig()
    )
    modules = read_modules(files, entries, model.model_type)
    encoder = files.enter_folder(modules.transformer)
    # Beside a table the root folder may have the file of another route's Transformer module.
    transformer = (
        TransformerModule() if modules.has_table else read_transformer(encoder, _list_tasks(modules))
    )
    tokenizer = _read_tokenizer_config(encoder)
    return ModelLayout(
        modules=modules,
        transformer=transformer,
        max_length=transformer.max_length or _find_length_limit(tokenizer),
        prompts=model.prompts,
        default_prompt=model.default_prompt_name,
        # Where the file does not say it, the encoder's table of types does.
        token_types=tokenizer.model_input_names is None or "token_type_ids" in tokenizer.model_input_names,
        truncation_side=transformer.truncation_side or tokenizer.truncation_side or _read_direction(encoder),
        activation=model.activation_fn,
    )


def _list_tasks(modules: Modules) -> tuple[str, ...]:
    """Return the values of `transformer_task` that fit the modules."""
    if modules.splade is not None:
        return ("fill-mask",)
    if modules.logit_score is not None:
        return ("text-generation",)
    if modules.pooling is not None or modules.token_dense:
        return ("feature-extraction",)
    return "feature-extraction", "sequence-classification"


def read_modules(files: ModelFiles, entries: Sequence[ModuleEntry], model_type: str | None) -> Modules:
    """Read the configuration of each module. Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture."""
    path = files.path / MODULES_FILE
    scores = read_score_layers(files, entries)
    if scores:
        entries = [entry for entry in entries if entry.kind not in ("Dense", "LayerNorm")]
    _check_known(path, entries)
    _check_order(path, [entry.kind for entry in entries if entry.kind != DROPOUT])
    # Of all kinds but Dense and Normalize, the order has one at most.
    folder_of = {entry.kind: entry.path for entry in entries}
    dense = [read_dense(files, entry, model_type) for entry in entries if entry.kind == "Dense"]
    normalized = [_read_normalized(files, entry) for entry in entries if entry.kind == "Normalize"]
    modules = Modules(
        has_modules_file=bool(entries),
        transformer=_find_first(folder_of, TRANSFORMERS) or "",
        dense=tuple(layer for target, layer in dense if target == TEXTS),
        normalize=TEXTS in normalized,
        splade=_parse_config(files, folder_of.get("SpladePooling"), SpladePoolingConfig),
        logit_score=_parse_config(files, folder_of.get("LogitScore"), LogitScoreConfig),
        token_dense=tuple(layer for target, layer in dense if target == TOKENS),
        token_normalize=TOKENS in normalized,
        mask=folder_of.get("MultiVectorMask"),
        token_pooling=folder_of.get("HierarchicalTokenPooling"),
        static=folder_of.get("StaticEmbedding"),
        sparse_static=_find_first(folder_of, SPARSE_STATIC),
        scores=scores,
    )
    if "Pooling" in folder_of:
        file = files.enter_folder(folder_of["Pooling"]).require("config.json")
        pooling, include_prompt = _read_pooling(file)
        modules = replace(modules, pooling=pooling, include_prompt=include_prompt)
    _check_inputs(path, modules)
    return modules


def _find_first(folder_of: Mapping[str, str], kinds: Sequence[str]) -> str | None:
    return next((folder_of[kind] for kind in kinds if kind in folder_of), None)


def _parse_config(files: ModelFiles, folder: str | None, shape: type[ConfigT]) -> ConfigT | None:
    """Parse the configuration of the module in `folder`; None where there is no such module."""
    return None if folder is None else files.enter_folder(folder).parse("config.json", shape)


def _check_known(path: Path, entries: Sequence[ModuleEntry]) -> None:
    for entry in entries:
        if entry.kind not in (*SUPPORTED, *TRANSFORMERS, *SPARSE_STATIC):
            supported = ", ".join(SUPPORTED)
            raise UnsupportedArchitecture(
                f"{path}: module {entry.type} is not supported; supported: {supported}"
            )


def _check_order(path: Path, order: Sequence[str]) -> None:
    """Raise UnsupportedArchitecture unless the kinds of modules, in the order of modules.json, match `ORDERS`, the
    orders that the pipeline computes."""
    if order and re.fullmatch(ORDERS, " ".join(order)) is None:
        raise UnsupportedArchitecture(
            f"{path}: the modules {', '.join(order)} are not supported together; supported: Transformer, then "
            "Pooling, Dense and Normalize, or SpladePooling, or LogitScore, or Dense, Normalize, MultiVectorMask and "
            "HierarchicalTokenPooling; StaticEmbedding, then Dense and Normalize; SparseStaticEmbedding; in this order"
        )


def _check_inputs(path: Path, modules: Modules) -> None:
    """Refuse modules on vectors of texts where nothing makes such, and on vectors of tokens where they are pooled."""
    pools = modules.pooling is not None or modules.static is not None
    if (modules.token_dense or modules.token_normalize) if pools else (modules.dense or modules.normalize):
        raise UnsupportedArchitecture(
            f"{path}: Dense and Normalize must read {TEXTS if pools else TOKENS} "
            f"{'after' if pools else 'without'} a Pooling module"
        )


def _read_normalized(files: ModelFiles, entry: ModuleEntry) -> str:
    """Return what a Normalize module normalizes: TEXTS or TOKENS."""
    own = files.enter_folder(entry.path)
    config = own.parse_if_there("config.json", ModuleInputConfig, ModuleInputConfig())
    return read_input_kind(own.path / "config.json", config, TEXTS)


def _read_tokenizer_config(files: ModelFiles) -> TokenizerConfig:
    return files.parse_if_there(TOKENIZER_CONFIG_FILE, TokenizerConfig, TokenizerConfig())


def _read_direction(files: ModelFiles) -> Literal["left", "right"]:
    """Read the side of tokenizer.json's truncation, which transformers takes where tokenizer_config.json names none."""
    truncation = files.parse_if_there(TOKENIZER_FILE, TokenizerJson, TokenizerJson()).truncation
    return "left" if truncation is not None and truncation.direction == "Left" else "right"


def read_tokenizer_length(files: ModelFiles) -> int | None:
    """Read how many tokens of a text the tokenizer in `files` keeps, if it has a limit. Raises ModelInvalid."""
    return _find_length_limit(_read_tokenizer_config(files))


def _find_length_limit(tokenizer: TokenizerConfig) -> int | None:
    length = tokenizer.model_max_length
    # transformers writes 1e30 for "no limit".
    return int(length) if length is not None and 0 < length < 1e9 else None


def _read_pooling(file: ModelFile) -> tuple[tuple[Pooling, ...], bool]:
    """Read the pooling modes, and whether the tokens of a prompt are pooled."""
    config = file.parse(PoolingConfig)
    if config.pooling_mode is not None:
        modes = [config.pooling_mode] if isinstance(config.pooling_mode, str) else config.pooling_mode
    else:
        # sentence-transformers takes the mean where no flag is set.
        modes = [mode for flag, mode in POOLING_FLAGS.items() if getattr(config, flag)] or ["mean"]
    if not modes or any(mode not in POOLING_MODES for mode in modes):
        raise UnsupportedArchitecture(
            f"{file.path}: pooling {' + '.join(modes) or 'none'} is not supported; supported: "
            f"{', '.join(POOLING_MODES)}"
        )
    return tuple(POOLING_MODES[mode] for mode in modes), config.include_prompt
