"""The Dense and LayerNorm modules of sentence-transformers, and the chain of them that makes a cross-encoder's scores.

Source: CrossEncoder, Dense and LayerNorm of sentence-transformers 6.2; the ettin rerankers have such a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm, NormKind
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.heads.description import HeadLayer
from embedserve_runtime.model.hf_files.sentence_transformers import (
    DenseConfig,
    LayerNormConfig,
    ModuleEntry,
    ModuleInputConfig,
)
from embedserve_runtime.model.pipeline import DenseLayer

# sentence-transformers' names of what modules hand on.
TEXTS, TOKENS, SCORES = "sentence_embedding", "token_embeddings", "scores"
MULTI_VECTOR_TYPES = ("ColBERT", "MultiVectorEncoder")
# Of torch.nn.LayerNorm, which the module's file has no key for.
NORM_EPSILON = 1e-5
DENSE_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": Activation.IDENTITY,
    "torch.nn.modules.activation.Tanh": Activation.TANH,
    "torch.nn.modules.activation.ReLU": Activation.RELU,
    "torch.nn.modules.activation.Sigmoid": Activation.SIGMOID,
    "torch.nn.modules.activation.SiLU": Activation.SILU,
    "torch.nn.modules.activation.GELU": Activation.GELU,
}


def read_input_kind(path: Path, config: ModuleInputConfig, usual: str) -> str:
    """Read what a module works on: TEXTS or TOKENS. Raises UnsupportedArchitecture."""
    read = config.module_input_name or usual
    written = config.module_output_name or read
    if read not in (TEXTS, TOKENS) or written != read:
        raise UnsupportedArchitecture(
            f"{path}: a module that reads {read} and writes {written} is not supported; supported: {TEXTS} or "
            f"{TOKENS} for both"
        )
    return read


def read_dense(files: ModelFiles, entry: ModuleEntry, model_type: str | None) -> tuple[str, DenseLayer]:
    """Read the layer of a Dense module, and what it works on: TEXTS or TOKENS."""
    file = files.enter_folder(entry.path).require("config.json")
    # Multi-vector models were saved by PyLate before the file said what the layer works on.
    usual = TOKENS if entry.type.startswith("pylate.") or model_type in MULTI_VECTOR_TYPES else TEXTS
    return read_input_kind(file.path, file.parse(ModuleInputConfig), usual), _read_layer(files, entry)


def _read_layer(files: ModelFiles, entry: ModuleEntry) -> DenseLayer:
    file = files.enter_folder(entry.path).require("config.json")
    config = file.parse(DenseConfig)
    activation = DENSE_ACTIVATIONS.get(config.activation_function)
    if activation is None:
        raise ModelInvalid(
            f"{file.path}: activation_function {config.activation_function} is not supported; "
            f"supported: {', '.join(DENSE_ACTIVATIONS)}"
        )
    return DenseLayer(
        folder=entry.path,
        in_features=config.in_features,
        out_features=config.out_features,
        bias=config.bias,
        activation=activation,
        residual=config.use_residual,
    )


def read_score_layers(files: ModelFiles, entries: Sequence[ModuleEntry]) -> tuple[HeadLayer, ...]:
    """Read the layers of the modules after a Pooling module of which the last writes scores; none where none does.

    Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture.
    """
    chain = [entry for entry in entries if entry.kind in ("Dense", "LayerNorm")]
    if not chain or chain[-1].kind != "Dense" or not _writes_scores(files, chain[-1]):
        return ()
    layers: list[HeadLayer] = []
    for entry in chain:
        if entry.kind == "Dense":
            layers.append(HeadLayer.from_dense(_read_layer(files, entry)))
            continue
        own = files.enter_folder(entry.path)
        if not layers or layers[-1].norm is not None:
            raise UnsupportedArchitecture(f"{own.path}: LayerNorm is supported only after a Dense module")
        if (size := own.parse("config.json", LayerNormConfig).dimension) != layers[-1].out_features:
            raise ModelInvalid(
                f"{own.path / 'config.json'}: dimension is {size}, the step before gives {layers[-1].out_features}"
            )
        norm = Norm(NormKind.LAYER, NORM_EPSILON)
        layers[-1] = replace(layers[-1], norm=norm, norm_names=("norm",), norm_file=entry.path)
    return tuple(layers)


def _writes_scores(files: ModelFiles, entry: ModuleEntry) -> bool:
    return files.enter_folder(entry.path).parse("config.json", ModuleInputConfig).module_output_name == SCORES
