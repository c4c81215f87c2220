"""Models with LoRA adapters for several tasks, of which a task chooses one: where they lie, and which a service merges.

Two layouts: the factors of all tasks inside the checkpoint (xlm-roberta-flash-implementation, the first files of
jina-embeddings-v3), and a folder of peft's files for each (jina-embeddings-v5-text; jina-embeddings-v3 as transformers
has it). Without an adapter the first gives the vectors of its plain weights, as upstream without a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import MappingProxyType

from pydantic import Field, PositiveFloat, PositiveInt

from embedserve_runtime.errors import ConfigError, ModelFileMissing, ModelInvalid
from embedserve_runtime.model.files import FileModel, ModelFiles
from embedserve_runtime.model.hf_files.peft import ADAPTER_CONFIG_FILE
from embedserve_runtime.model.lora import LoraAdapter, read_adapter_files
from embedserve_runtime.model.modules import ModelLayout
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.stacked_factors import StackedFactors
from embedserve_runtime.model.tensors import ModelTensors

# Ends of the names of two adapters for one task, whose vectors are made to be compared.
QUERIES, DOCUMENTS = ".query", ".passage"
# Folders whose names spell a task in another way than requests do.
TASK_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "retrieval_passage": "retrieval.passage",
        "retrieval_query": "retrieval.query",
        "text_matching": "text-matching",
    }
)


# By `model_type`: the task of a request that names none, where upstream has no vectors without an adapter.
DEFAULT_TASKS: Mapping[str, str] = MappingProxyType({"jina_embeddings_v5": "retrieval"})

# Those whose own class takes the last token, normalized.
POOLS_ITSELF = frozenset({"jina_embeddings_v5"})


class AdaptersConfig(FileModel):
    """The keys of config.json about adapters, with the defaults of xlm-roberta-flash-implementation."""

    model_type: str = ""
    task_names: list[str] | None = None
    lora_adaptations: list[str] | None = None
    lora_rank: PositiveInt = 4
    lora_alpha: PositiveFloat = 1.0
    task_instructions: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterLocation:
    """The location of an adapter.

    name: as requests have it. folder: of peft's files, relative to that of the encoder; None: in the checkpoint, with
    number `index` of `count`.
    """

    name: str
    folder: str | None
    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class AdapterTask:
    """A task that a model has adapters for: one for documents and one for queries, or the same for both."""

    name: str
    documents: AdapterLocation
    queries: AdapterLocation

    @property
    def has_query_adapter(self) -> bool:
        return self.queries != self.documents

    @property
    def adapter_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.documents.name, self.queries.name)))


def list_tasks(home: ModelFiles) -> Sequence[AdapterTask]:
    """List the tasks that a model has adapters for. home: the folder of its encoder. Raises ModelInvalid."""
    locations = {location.name: location for location in _list_locations(home)}
    tasks: dict[str, AdapterTask] = {}
    for name, location in locations.items():
        task = name.removesuffix(QUERIES).removesuffix(DOCUMENTS)
        documents, queries = locations.get(task + DOCUMENTS), locations.get(task + QUERIES)
        if documents is not None and queries is not None:
            tasks[task] = AdapterTask(task, documents, queries)
        else:
            tasks[name] = AdapterTask(name, location, location)
    return tuple(tasks.values())


def choose_task(home: ModelFiles, requested: str | None) -> AdapterTask | None:
    """Return the task that is asked for, else that of the model's authors; None for the plain weights. home: the folder
    of the encoder. Raises ConfigError, listing the tasks, ModelFileMissing or ModelInvalid."""
    tasks, default = list_tasks(home), DEFAULT_TASKS.get(read_adapters_config(home).model_type)
    name = requested or default
    task = next((candidate for candidate in tasks if candidate.name == name), None)
    if task is not None or name is None:
        return task
    if requested is None:
        raise ModelFileMissing(f"{home.path} has no folder with the adapter of the task {name!r}")
    names = ", ".join(candidate.name for candidate in tasks) or "none"
    raise ConfigError(
        f"model.adapters: {requested!r} is not a task that the model has an adapter for; known: {names}"
    )


def read_task_adapter(
    home: ModelFiles, tensors: ModelTensors, folder: str, location: AdapterLocation
) -> LoraAdapter:
    """Read the adapter of a task. home: the folder of the encoder; folder: the same in the form that `tensors` takes.

    Raises ModelFileMissing, UnsupportedArchitecture or ModelInvalid.
    """
    if location.folder is not None:
        path = (PurePosixPath(folder) / location.folder).as_posix()
        return read_adapter_files(home.enter_folder(location.folder), tensors, path)
    config = read_adapters_config(home)
    stack = (location.index, location.count)
    factors = StackedFactors(tensors.open_checkpoint(folder), *stack)
    if not factors.modules:
        raise ModelInvalid(
            f"{home.path}: lora_adaptations of config.json names {', '.join(config.lora_adaptations or [])}, and the "
            "checkpoint has no factors of any"
        )
    scale = config.lora_alpha / config.lora_rank
    scales = MappingProxyType(dict.fromkeys(factors.modules, scale))
    return LoraAdapter(location.name, scales, (), folder, stack)


def complete_modules(home: ModelFiles, layout: ModelLayout) -> ModelLayout:
    """Return the layout with the pooling that the class of a model has in itself, where no module says one."""
    modules = layout.modules
    if read_adapters_config(home).model_type not in POOLS_ITSELF or modules.pooling is not None:
        return layout
    return replace(layout, modules=replace(modules, pooling=(Pooling.LAST,), normalize=True))


def read_adapters_config(home: ModelFiles) -> AdaptersConfig:
    return home.parse_if_there("config.json", AdaptersConfig, AdaptersConfig())


def _list_locations(home: ModelFiles) -> Sequence[AdapterLocation]:
    config = read_adapters_config(home)
    names = config.lora_adaptations
    if names:
        return [AdapterLocation(name, None, index, len(names)) for index, name in enumerate(names)]
    folders = sorted(
        str(PurePosixPath(path).parent) for path in home.names if path.endswith(f"/{ADAPTER_CONFIG_FILE}")
    )
    return [
        AdapterLocation(TASK_NAMES.get(name, name), folder)
        for folder in folders
        for name in (PurePosixPath(folder).name,)
        if config.task_names is None or name in config.task_names
    ]
