"""Reads a model's folder: every file that says how the model is run, each once.

Tensors are not read here: `tensors` opens their files, `onnx_file` those of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.model.files import ModelFile, ModelFiles, read_file
from embedserve_runtime.model.heads.late_interaction import METADATA_FILE
from embedserve_runtime.model.lora import ADAPTER_FILE
from embedserve_runtime.model.modules import MODULES_FILE, read_entries
from embedserve_runtime.model.ranges import RANGES_FILE
from embedserve_runtime.model.readme import README_FILE
from embedserve_runtime.model.routes import ROUTER_FILES, expand_routes, is_router
from embedserve_runtime.model.transformer_module import TRANSFORMER_FILES

# What is read of the model's folder and of that of each module.
SMALL_FILES = (
    "config.json",
    "config_sentence_transformers.json",
    *TRANSFORMER_FILES,
    MODULES_FILE,
    *ROUTER_FILES,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    README_FILE,
    ADAPTER_FILE,
    METADATA_FILE,
    RANGES_FILE,
)


def read_model(path: Path) -> ModelFiles:
    """Read the small files of a model: those of its folder, and of the folders that its modules name; of adapters in
    folders of their own, what they say.

    Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture where it cannot be said which modules there are.
    """
    files = read_folder(path)
    entries = read_entries(files)
    files = _add_folders(files, (entry.path for entry in entries if is_router(entry)))
    routes = expand_routes(files, entries)
    modules = [*routes.documents, *(routes.queries or [])]
    return _add_adapters(_add_folders(files, (entry.path for entry in modules)))


def read_folder(path: Path) -> ModelFiles:
    """Read the small files of one folder, without those of modules that have folders of their own."""
    paths = frozenset(found for found in path.rglob("*") if found.is_file())
    return ModelFiles(path, MappingProxyType(_read_all(path)), paths)


def _add_folders(files: ModelFiles, folders: Iterable[str]) -> ModelFiles:
    small = dict(files.small)
    for path in dict.fromkeys(files.path / folder for folder in folders):
        if path != files.path:
            small |= _read_all(path)
    return replace(files, small=MappingProxyType(small))


def _add_adapters(files: ModelFiles) -> ModelFiles:
    found = (read_file(path) for path in files.paths if path.name == ADAPTER_FILE)
    adapters = {file.path: file for file in found if file is not None}
    return replace(files, small=MappingProxyType({**adapters, **files.small}))


def _read_all(path: Path) -> Mapping[Path, ModelFile]:
    found = (read_file(path / name) for name in dict.fromkeys(SMALL_FILES))
    return {file.path: file for file in found if file is not None}
