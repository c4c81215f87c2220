"""Reads a model's folder: every file that says how the model is run, each once.

Tensors are not read here: `tensors` opens their files, `onnx_file` those of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.model.files import ModelFile, ModelFiles, read_file
from embedserve_runtime.model.hf_files.colbert import METADATA_FILE
from embedserve_runtime.model.hf_files.peft import ADAPTER_CONFIG_FILE
from embedserve_runtime.model.hf_files.sentence_transformers import MODULES_FILE, SENTENCE_TRANSFORMERS_FILE
from embedserve_runtime.model.hf_files.tokenizers import (
    SPECIAL_TOKENS_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
)
from embedserve_runtime.model.hf_files.transformers import CONFIG_FILE
from embedserve_runtime.model.modules import read_entries
from embedserve_runtime.model.ranges import RANGES_FILE
from embedserve_runtime.model.readme import README_FILE
from embedserve_runtime.model.routes import ROUTER_FILES, ModuleRoutes, expand_routes, is_router
from embedserve_runtime.model.transformer_module import TRANSFORMER_FILES

# What is read of the model's folder and of that of each module.
SMALL_FILES = (
    CONFIG_FILE,
    SENTENCE_TRANSFORMERS_FILE,
    *TRANSFORMER_FILES,
    MODULES_FILE,
    *ROUTER_FILES,
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    "chat_template.jinja",
    README_FILE,
    ADAPTER_CONFIG_FILE,
    METADATA_FILE,
    RANGES_FILE,
)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder as it was read: its small files, and the modules that they name."""

    files: ModelFiles
    routes: ModuleRoutes


def read_model(path: Path) -> ModelFolder:
    """Read the small files of a model: those of its folder, and of the folders that its modules name; of adapters in
    folders of their own, what they say.

    Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture where it cannot be said which modules there are.
    """
    files = read_folder(path)
    entries = read_entries(files)
    files = _add_folders(files, (entry.path for entry in entries if is_router(entry)))
    routes = expand_routes(files, entries)
    modules = [*routes.documents, *(routes.queries or [])]
    return ModelFolder(_add_adapters(_add_folders(files, (entry.path for entry in modules))), routes)


def read_folder(path: Path) -> ModelFiles:
    """Read the small files of one folder, without those of modules that have folders of their own."""
    paths = frozenset(file for file in path.rglob("*") if file.is_file())
    return ModelFiles(path, MappingProxyType(_read_all(path)), paths)


def _add_folders(files: ModelFiles, folders: Iterable[str]) -> ModelFiles:
    small = dict(files.small)
    for path in dict.fromkeys(files.path / folder for folder in folders):
        if path != files.path:
            small |= _read_all(path)
    return replace(files, small=MappingProxyType(small))


def _add_adapters(files: ModelFiles) -> ModelFiles:
    configs = (read_file(path) for path in files.paths if path.name == ADAPTER_CONFIG_FILE)
    adapters = {file.path: file for file in configs if file is not None}
    return replace(files, small=MappingProxyType({**adapters, **files.small}))


def _read_all(path: Path) -> Mapping[Path, ModelFile]:
    files = (read_file(path / name) for name in dict.fromkeys(SMALL_FILES))
    return {file.path: file for file in files if file is not None}
