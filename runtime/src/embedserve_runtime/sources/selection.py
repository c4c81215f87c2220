"""Selects the files of a source that a model needs, by their names and by the small ones among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from embedserve_runtime.errors import ModelFileMissing
from embedserve_runtime.model.heads.bge_m3 import FILES as BGE_M3_FILES
from embedserve_runtime.model.hf_files.colbert import METADATA_FILE
from embedserve_runtime.model.onnx_file import read_declaration
from embedserve_runtime.model.pickles import ADVICE, can_read
from embedserve_runtime.model.readme import README_FILE

# What a model folder needs; weights in other formats, exports and documents stay where they are.
SMALL = ("*.json", "*.txt", "*.model", "chat_template.jinja", METADATA_FILE, README_FILE, *BGE_M3_FILES)
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
MODULE_WEIGHTS = ("*/model.safetensors",)
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
UNWANTED = ("onnx/*", "openvino/*")


def is_safe(path: str) -> bool:
    """Return whether a path of a source stays inside of the folder that it is written to."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and not path.startswith("/")
        and "\\" not in path
        and "\0" not in path
        and ".." not in parts
    )


def select_description_files(names: Iterable[str]) -> list[str]:
    """Select the files that describe how a model is run, and weights that belong to modules of their own. A README
    alone is not a model."""
    selected = [
        name
        for name in names
        if any(fnmatch(name, pattern) for pattern in (*SMALL, *MODULE_WEIGHTS))
        and not any(fnmatch(name, pattern) for pattern in UNWANTED)
    ]
    return [] if selected == [README_FILE] else selected


def select_weight_files(names: Sequence[str]) -> list[str]:
    """Select safetensors, pickles that none stands in for, and LoRA adapters next to either or in folders of tasks.

    Raises ModelFileMissing where pickles are needed and cannot be read.
    """
    weights = [
        name for name in names if any(fnmatch(name, pattern) for pattern in WEIGHTS)
    ] + _select_pickles(names)
    folders = {PurePosixPath(name).parent for name in names if _is_weight(name)}
    adapters = [name for name in names if PurePosixPath(name).name in ADAPTERS]
    return weights + [name for name in adapters if folders & _list_homes(PurePosixPath(name).parent)]


def list_external_files(folder: Path, graph: str) -> list[str]:
    """List the files that hold weights of an ONNX file, by their paths in the source. Raises ModelInvalid."""
    return [str(PurePosixPath(graph).parent / name) for name in read_declaration(folder / graph).external]


def _list_homes(folder: PurePosixPath) -> set[PurePosixPath]:
    """List the folders beside whose weights an adapter in `folder` is looked for: itself and, unless a trainer has left
    it there, those around it."""
    left = fnmatch(folder.name, "checkpoint-*")
    return {folder} if left else {folder, *folder.parents}


def _is_weight(name: str) -> bool:
    return name.endswith((".safetensors", ".bin")) and PurePosixPath(name).name not in ADAPTERS


def _select_pickles(names: Sequence[str]) -> list[str]:
    folders = {PurePosixPath(name).parent for name in names if _is_weight(name) and not name.endswith(".bin")}
    needed = [
        name
        for name in names
        if fnmatch(PurePosixPath(name).name, "pytorch_model*.bin")
        and PurePosixPath(name).parent not in folders
        and not any(fnmatch(name, pattern) for pattern in UNWANTED)
    ]
    if needed and not can_read():
        raise ModelFileMissing(f"the repository has {', '.join(needed)} and no safetensors for it: {ADVICE}")
    return needed
