"""Models of no family of ours, exported to ONNX by torch: how the store names them, and what they are known by.

    artifacts/<name>/model.onnx, model.onnx.data     as torch.onnx wrote it
    artifacts/<name>/report.json                     how it compared with torch

Two exports of one model are the same model, whatever bytes another version of torch writes: name and identity come from
the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from embedserve_runtime.errors import UnsupportedArchitecture, UnsupportedInputs
from embedserve_runtime.model.bundled_onnx import choose_file
from embedserve_runtime.model.checkpoint import Checkpoint
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.modules import read_layout
from embedserve_runtime.model.routes import ModuleRoutes
from embedserve_runtime.store import find_folder

KIND: Final = "artifacts"
EXPORT_FILE = "model.onnx"
# Raised with each change of what is exported.
EXPORTER_VERSION = "1"
NEEDED = ("torch", "transformers", "onnxscript")
ADVICE = (
    "`embedserve convert` can export it where torch and transformers are, as in the CUDA image, and any image then "
    "serves it from the same store; an EmbeddingService has it done by spec.cache and spec.onnx"
)


def needs_export(files: ModelFiles, routes: ModuleRoutes, onnx_file: str | None) -> bool:
    """Return whether neither a family nor an ONNX file of its own runs the model, and an export may. onnx_file: the one
    that is chosen."""
    if routes.queries is not None:
        return False  # its encoders are run by families alone
    modules = read_layout(files, routes.documents).modules
    if onnx_file is not None or modules.static is not None or modules.sparse_static is not None:
        return False
    try:
        choose_file(files.enter_folder(modules.transformer), files.names, None)
    except UnsupportedArchitecture as error:
        return not isinstance(error, UnsupportedInputs)
    return False


def can_export() -> bool:
    """Return whether the libraries that an export takes are installed."""
    return all(find_spec(name) is not None for name in NEEDED)


def describe_origin(files: ModelFiles, checkpoint: Checkpoint) -> Mapping[str, str]:
    """Describe what an export is made from, by digests of the configuration and of all tensors.

    files, checkpoint: the encoder's.

    Raises ModelFileMissing or ModelInvalid.
    """
    weights = hashlib.sha256()
    for name in sorted(checkpoint.names):
        tensor = checkpoint.read_tensor(name)
        weights.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        weights.update(tensor.tobytes())
    config = hashlib.sha256(files.require("config.json").as_bytes())
    return {"config": config.hexdigest(), "weights": weights.hexdigest(), "exporter": EXPORTER_VERSION}


def export_name(origin: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(origin.items())).encode()).hexdigest()[:32]


def find_export(root: Path, origin: Mapping[str, str]) -> Path | None:
    """Find the exported file, if it is in the store and complete.

    root: of the store.
    """
    folder = find_folder(root, KIND, export_name(origin))
    return None if folder is None else folder / EXPORT_FILE
