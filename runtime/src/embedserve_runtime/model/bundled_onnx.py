"""ONNX files that a repository bundles: which one is run, what it is fed, and which of its outputs is what.

The names of inputs and outputs are those that optimum, transformers.js and sentence-transformers export.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from embedserve_runtime.errors import (
    ConfigError,
    ModelFileMissing,
    ModelInvalid,
    UnsupportedArchitecture,
)
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Embeddings, Encoder
from embedserve_runtime.model.canonical import NOT_HASHED
from embedserve_runtime.model.files import FileModel, ModelFiles
from embedserve_runtime.model.heads.description import LexicalHead
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, PaddingConfig
from embedserve_runtime.model.onnx_file import Element, Value, read_declaration
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.vocabulary import parse_tokenizer, read_unused_token_ids
from embedserve_runtime.store.manifest import hash_file

# In this order; of other files one alone is taken, several must be chosen from.
DEFAULT_FILES = ("onnx/model.onnx", "model.onnx")
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
CACHE_PREFIX = "past_key_values."
HIDDEN_NAMES = ("last_hidden_state", "token_embeddings", "hidden_states")
ROW_NAMES = ("sentence_embedding",)
LOGITS = "logits"
# Operators that find one range of 8 bit for all of a batch, so that a text's values depend on the texts with it: of
# ONNX, and what ONNX Runtime and its quantizer write in their place.
BATCH_QUANTIZERS = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
# Tokens of a text where neither config.json nor the tokenizer's files bound them.
DEFAULT_LENGTH = 512

PooledKind = Literal["dense", "logits"]


class GraphConfig(FileModel):
    """Keys of config.json, under the names that families use for them."""

    model_type: str = ""
    architectures: list[str] | None = None
    hidden_size: int | None = None
    dim: int | None = None
    d_model: int | None = None
    n_embd: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    type_vocab_size: int = 1
    pad_token_id: int | None = None

    @property
    def size(self) -> int | None:
        return self.hidden_size or self.dim or self.d_model or self.n_embd

    @property
    def classifies(self) -> bool:
        return any(name.endswith("ForSequenceClassification") for name in self.architectures or [])


@dataclass(frozen=True, slots=True)
class BundledOnnx:
    """A bundled ONNX file, and how it is run.

    inputs: what it is fed. hidden: the output (batch, tokens, size); None where the graph keeps it.
    pooled: the output (batch, size) that is used as it comes, None without. pooled_kind: whether it holds dense vectors
    or logits. width: columns of `pooled`, None without. size: columns of `hidden`, of `pooled` where the graph keeps
    the hidden states.
    is_width_declared: whether the file says `width`, which else is that of config.json.
    batch_quantizers: its operators that are in BATCH_QUANTIZERS. has_float16: see `OnnxDeclaration`.
    weights: the output (batch, tokens, 1) besides `hidden` that holds a weight for each token; None without.
    external: files of its weights, relative to its folder. pad: token id of padding, on `pad_side`.
    contents: digests of the files, since neither weights nor operations can be compared with another file's by name.
    origin: of an export of ours, what it was made from, instead of `contents`: names with digests.
    """

    file: Path = field(compare=False, metadata=NOT_HASHED)
    inputs: tuple[Value, ...]
    external: tuple[str, ...] = field(metadata=NOT_HASHED)
    hidden: str | None
    pooled: str | None
    pooled_kind: PooledKind
    width: int | None
    size: int
    weights: str | None
    pad: int
    pad_side: Literal["left", "right"]
    contents: tuple[str, ...] = ()
    origin: tuple[tuple[str, str], ...] = ()
    is_width_declared: bool = field(default=True, metadata=NOT_HASHED)
    batch_quantizers: tuple[str, ...] = field(default=(), metadata=NOT_HASHED)
    has_float16: bool = field(default=False, metadata=NOT_HASHED)

    @property
    def runs_singly(self) -> bool:
        """Return whether each text is run alone, since its values would depend on the others in a batch."""
        return bool(self.batch_quantizers)

    @property
    def files(self) -> list[Path]:
        return [self.file, *(self.file.parent / name for name in self.external)]


def choose_file(files: ModelFiles, names: Iterable[str], requested: str | None) -> str | None:
    """Choose the ONNX file to run: the one that `model.onnx_file` names, otherwise one where no family fits; None where
    the safetensors weights are run.

    files: the encoder's small files. names: of all files that the model has.
    Raises ConfigError where the named one is not there, ModelInvalid where one of several must be named,
    UnsupportedArchitecture where there is neither a family nor an ONNX file.
    """
    present = set(names)
    there = sorted(name for name in present if name.endswith(".onnx"))
    if requested is not None:
        if requested not in there:
            raise ConfigError(
                f"model.onnx_file: {requested} is not in the model; there: {', '.join(there) or 'none'}"
            )
        return requested
    if _can_be_table(files, present) or "config.json" not in files:
        return None
    try:
        families.describe(files)
    except UnsupportedArchitecture as error:
        if not there:
            raise type(error)(f"{error.message}; it has no ONNX file to run instead") from error
    else:
        return None
    default = next((name for name in DEFAULT_FILES if name in there), None)
    if default is None and len(there) > 1:
        raise ModelInvalid(
            f"the model has several ONNX files; set model.onnx_file to one of {', '.join(there)}"
        )
    return default or there[0]


def _can_be_table(files: ModelFiles, names: Container[str]) -> bool:
    """Return whether it can be a static embedding model, of which only the weights say it for certain."""
    return read_graph_config(files).model_type in ("", "model2vec") and "model.safetensors" in names


def read_graph(files: ModelFiles, file: Path, *, task: str, pooled: bool) -> BundledOnnx:
    """Describe the ONNX file of a folder. files: the encoder's files. task: `model.task`. pooled: the settings name a
    pooling, so hidden states are needed.

    Raises ModelFileMissing, ModelInvalid or UnsupportedArchitecture, naming inputs or outputs.
    """
    declared = read_declaration(file)
    for name in declared.external:
        _check_external(file, name)
    config = read_graph_config(files)
    hidden = _find_hidden_states(file, declared.outputs)
    pooled_output, pooled_kind = _find_pooled_output(
        file, declared.outputs, config, hidden, "embed" if pooled else task
    )
    if pooled_output is not None and pooled_kind == "dense" and pooled:
        pooled_output = None
    measured = hidden or pooled_output
    if measured is None:
        listed = ", ".join(f"{value.name} {_format_shape(value)}" for value in declared.outputs)
        raise UnsupportedArchitecture(
            f"{file} has no output that can be used for this task: {listed}; looked for "
            f"{', '.join((*ROW_NAMES, *HIDDEN_NAMES, LOGITS))}, or one output of two or three sides"
        )
    side = files.parse_if_there(TOKENIZER_CONFIG_FILE, PaddingConfig, PaddingConfig())
    return BundledOnnx(
        file=file,
        inputs=tuple(_check_input(file, value) for value in declared.inputs),
        external=declared.external,
        hidden=None if hidden is None else hidden.name,
        pooled=None if pooled_output is None else pooled_output.name,
        pooled_kind=pooled_kind,
        width=None if pooled_output is None else _read_last_size(pooled_output, config, file),
        size=_read_last_size(measured, config, file),
        weights=None if pooled_output is not None else _find_token_weights(declared.outputs),
        pad=config.pad_token_id or 0,
        pad_side=side.padding_side,
        is_width_declared=pooled_output is None or _read_declared_size(pooled_output) is not None,
        batch_quantizers=tuple(sorted(declared.operators & BATCH_QUANTIZERS)),
        has_float16=declared.has_float16,
    )


def _check_external(file: Path, name: str) -> None:
    """Raise ModelInvalid for weights outside the file's folder, which ONNX Runtime refuses to read, and
    ModelFileMissing where they are not there. name: relative to that folder."""
    weights = file.parent / name
    # The second folder is the one of a file that is a link, as in the hub's own cache.
    folders = (file.parent.resolve(), file.resolve().parent)
    if Path(name).is_absolute() or not any(weights.resolve().is_relative_to(folder) for folder in folders):
        raise ModelInvalid(
            f"{file}: its weights {name} lie outside its folder; put them beside the ONNX file and name them so in it"
        )
    if not weights.is_file():
        raise ModelFileMissing(f"{name}, the weights of {file.name}, not found in {file.parent}")


def read_graph_config(files: ModelFiles) -> GraphConfig:
    return files.parse_if_there("config.json", GraphConfig, GraphConfig())


def describe_graph_encoder(files: ModelFiles, graph: BundledOnnx) -> Encoder:
    """Describe the sizes of a graph, as an encoder without layers."""
    config = read_graph_config(files)
    has_types = any(value.name == "token_type_ids" for value in graph.inputs)
    return Encoder(
        family=config.model_type or "unknown",
        hidden_size=graph.size,
        max_positions=config.max_position_embeddings or config.n_positions or DEFAULT_LENGTH,
        embeddings=Embeddings(
            vocabulary=config.vocab_size or _count_tokens(files),
            positions=None,
            token_types=max(config.type_vocab_size, 2) if has_types else 0,
            norm=None,
        ),
        layers=(),
        final_norm=None,
        parameter_names=ParameterNames((), {}),
    )


def _count_tokens(files: ModelFiles) -> int:
    """Return one more than the greatest id that the tokenizer gives."""
    tokenizer = parse_tokenizer(files.require(TOKENIZER_FILE))
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def _find_hidden_states(file: Path, outputs: Sequence[Value]) -> Value | None:
    output = next((value for name in HIDDEN_NAMES for value in outputs if value.name == name), None)
    if output is not None:
        return _require_float(file, output)
    return _choose_only(file, [value for value in outputs if value.rank == 3 and value.name != LOGITS])


def _find_pooled_output(
    file: Path, outputs: Sequence[Value], config: GraphConfig, hidden: Value | None, task: str
) -> tuple[Value | None, PooledKind]:
    by_name = {value.name: value for value in outputs}
    if task in ("rerank", "classify") or (task == "auto" and LOGITS in by_name and _is_for_logits(by_name)):
        return _find_logits(file, by_name, outputs), "logits"
    output = next((by_name[name] for name in ROW_NAMES if name in by_name), None)
    if output is not None:
        return _require_float(file, output), "dense"
    if hidden is not None:
        return None, "dense"
    pooled_output = _choose_only(
        file, [value for value in outputs if value.rank == 2 and value.name != LOGITS]
    )
    return pooled_output, "logits" if task == "auto" and config.classifies else "dense"


def _find_token_weights(outputs: Sequence[Value]) -> str | None:
    """Find logits of one label for each token, as exports of a token classifier have them."""
    logits = next((value for value in outputs if value.name == LOGITS), None)
    if logits is None or not logits.is_float or logits.rank != 3 or not logits.shape or logits.shape[-1] != 1:
        return None
    return logits.name


def describe_graph_weights(files: ModelFiles, encoder: Encoder) -> LexicalHead:
    """Describe the head of a graph's token weights: those of special tokens are dropped. Raises ModelInvalid."""
    return LexicalHead((), read_unused_token_ids(files), encoder.embeddings.vocabulary)


def _is_for_logits(by_name: Mapping[str, Value]) -> bool:
    return not any(name in by_name for name in (*ROW_NAMES, *HIDDEN_NAMES))


def _find_logits(file: Path, by_name: Mapping[str, Value], outputs: Sequence[Value]) -> Value:
    value = by_name.get(LOGITS) or _choose_only(file, [value for value in outputs if value.rank == 2])
    if value is None or value.rank not in (2, None):
        actual = "none" if value is None else f"{value.name} {_format_shape(value)}"
        raise UnsupportedArchitecture(
            f"{file} has no output with one row of logits for each text, as scores and labels need it; found {actual}"
        )
    return _require_float(file, value)


def _choose_only(file: Path, candidates: Sequence[Value]) -> Value | None:
    floats = [value for value in candidates if value.is_float]
    if len(floats) > 1:
        listed = ", ".join(f"{value.name} {_format_shape(value)}" for value in floats)
        raise ModelInvalid(f"{file}: which output is meant cannot be told by name or shape: {listed}")
    return floats[0] if floats else None


def _require_float(file: Path, value: Value) -> Value:
    if not value.is_float:
        raise UnsupportedArchitecture(
            f"{file}: output {value.name} has element type {value.element}; float32, float16 and float64 are read"
        )
    return value


def _check_input(file: Path, value: Value) -> Value:
    """Return the input if we know how to fill it. Raises UnsupportedArchitecture."""
    whole = value.element in (Element.INT64, Element.INT32)
    if value.name in TOKEN_INPUTS and whole:
        return value
    if value.name.startswith(CACHE_PREFIX) and value.is_float and value.rank == 4:
        return value
    raise UnsupportedArchitecture(
        f"{file}: input {value.name} {_format_shape(value)} of element type {value.element} cannot be filled; known: "
        f"{', '.join(TOKEN_INPUTS)} in int64 or int32, and {CACHE_PREFIX}* with four sides"
    )


def _read_last_size(value: Value, config: GraphConfig, file: Path) -> int:
    size = _read_declared_size(value) or config.size
    if size is None:
        raise ModelInvalid(
            f"{file}: output {value.name} {_format_shape(value)} does not say its size, nor does config.json"
        )
    return size


def _read_declared_size(value: Value) -> int | None:
    return value.shape[-1] if value.shape else None


def _format_shape(value: Value) -> str:
    if value.shape is None:
        return "(any shape)"
    return f"[{', '.join('?' if size is None else str(size) for size in value.shape)}]"


def digest_graph(graph: BundledOnnx) -> BundledOnnx:
    """Return the graph with the digests of its files, which takes as long as reading them."""
    return replace(graph, contents=tuple(map(hash_file, graph.files)))
