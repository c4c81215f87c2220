"""Reads the type of a request's inputs, such as query or document, by the names of all dialects, and chooses their
prompt."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, cast

from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.service import InferenceService, Role

InputTypeName = Literal[
    "query",
    "document",
    "passage",
    "search_query",
    "search_document",
    "retrieval.query",
    "retrieval.passage",
    "classification",
    "clustering",
    "separation",
    "text-matching",
]
"""Names a type of inputs, as Cohere, Jina, NIM, Nomic and Voyage do."""


MIN_SIMILARITY = 0.65
"""The least similarity of a misspelled word to a type: `queries` is like `query`, `large` and `base` are like none."""
MAX_MISSPELLED = 24
"""The most characters that such a word has."""


class InputType(NamedTuple):
    """A type of inputs. prompts: the names that models give to its prompt; the first that the model has is taken."""

    role: Role | None
    prompts: tuple[str, ...]


_QUERY = InputType("query", ("search_query", "query", "retrieval.query"))
_DOCUMENT = InputType("document", ("search_document", "document", "passage", "retrieval.passage"))
_CLUSTERING = InputType(None, ("clustering", "separation", "Clustering"))
INPUT_TYPES: Mapping[InputTypeName, InputType] = {
    "query": _QUERY,
    "search_query": _QUERY,
    "retrieval.query": _QUERY,
    "document": _DOCUMENT,
    "passage": _DOCUMENT,
    "search_document": _DOCUMENT,
    "retrieval.passage": _DOCUMENT,
    "classification": InputType(None, ("classification", "Classification")),
    "clustering": _CLUSTERING,
    "separation": _CLUSTERING,
    "text-matching": InputType(None, ("text-matching", "STS")),
}
# Types that are a task, for which a model may have an adapter, with the names of that task. The others are a role.
TASKS: Mapping[InputTypeName, tuple[str, ...]] = {
    **dict.fromkeys(("retrieval.query", "retrieval.passage"), ("retrieval",)),
    **dict.fromkeys(("search_query", "search_document"), ("retrieval",)),
    **dict.fromkeys(("clustering", "separation"), ("clustering", "separation")),
    "classification": ("classification",),
    "text-matching": ("text-matching",),
}
_PROMPTS_OF_OTHER_ROLE: Mapping[Role, tuple[str, ...]] = {
    "query": _DOCUMENT.prompts,
    "document": _QUERY.prompts,
}
_PROMPTS_OF_TYPES = frozenset(name for kind in INPUT_TYPES.values() for name in kind.prompts)


class TypedRequest(Protocol):
    """The fields of a body that say what its inputs are."""

    @property
    def input_type(self) -> InputTypeName | None: ...
    @property
    def task(self) -> InputTypeName | None: ...
    @property
    def prompt_name(self) -> str | None: ...
    @property
    def prompt(self) -> str | None: ...


class TypedFields(NamedTuple):
    """The same fields, of a request that is not a body of these names."""

    input_type: InputTypeName | None = None
    task: InputTypeName | None = None
    prompt_name: str | None = None
    prompt: str | None = None


class InputPrompt(NamedTuple):
    """The role of a request's inputs, and the prompt before them by its name or its text.

    None: what the model does where a request says nothing.
    """

    role: Role | None
    name: str | None
    text: str | None


def read_input_prompt(
    card: ModelCard, body: TypedRequest, model_suffix: InputTypeName | None = None
) -> InputPrompt:
    """Read the role and the prompt that a body asks for.

    model_suffix: the type in the model's name, such as `docs:query`. Raises InvalidInput where the request says two
    different things.
    """
    text = body.prompt
    type_name = body.input_type or body.task or model_suffix
    if type_name is None:
        return InputPrompt(None, body.prompt_name, text)
    types = {"input_type": body.input_type, "task": body.task, "model": model_suffix}
    for field, field_type in types.items():
        if field_type is not None and INPUT_TYPES[field_type] != INPUT_TYPES[type_name]:
            raise InvalidInput(
                f"`{field}` says {field_type} where another field says {type_name}; leave one out"
            )
    if text is not None and not _chooses_more_than_prompt(card):
        field = next(field for field, field_type in types.items() if field_type is not None)
        raise InvalidInput(
            f"`prompt` and `{field}` exclude each other: both choose the prompt; leave one out"
        )
    return choose_prompt(card, type_name, body.prompt_name, text)


def _chooses_more_than_prompt(card: ModelCard) -> bool:
    """Return whether the type of inputs chooses the weights or the markers that they are read with, too."""
    return card.query is not None or card.late_interaction is not None or card.adapter_task is not None


def choose_prompt(
    card: ModelCard, type_name: InputTypeName | None, name: str | None = None, text: str | None = None
) -> InputPrompt:
    """Choose the prompt: the one requested by name or text, otherwise that of the inputs' type.

    Without a prompt for the type the default one applies, unless that is the prompt of another type: a query's prompt
    before a document would be worse than none.
    """
    if type_name is None:
        return InputPrompt(None, name, text)
    _check_task(card, type_name)
    role, names = INPUT_TYPES[type_name]
    if role is not None and name in _PROMPTS_OF_OTHER_ROLE[role]:
        # With an adapter for each role it would be a query read by the weights for documents, or the reverse.
        raise InvalidInput(f"`prompt_name` says {name} where another field says {type_name}; leave one out")
    if name is not None or text is not None:
        return InputPrompt(role, name, text)
    prompt = next((candidate for candidate in names if candidate in card.prompts), None)
    has_prompt_of_another = prompt is None and card.default_prompt in _PROMPTS_OF_TYPES
    return InputPrompt(role, prompt, "" if has_prompt_of_another else None)


def _check_task(card: ModelCard, type_name: InputTypeName) -> None:
    """Raise InvalidInput for a task that the model has another adapter for than the one that is served."""
    names = set(TASKS.get(type_name, ()))
    if names & set(card.adapter_tasks) and card.adapter_task not in names:
        raise InvalidInput(
            f"{type_name!r} is a task with an adapter of its own, which this service has not loaded (it has "
            f"{', '.join(card.task_spaces) or 'none'}; the model has {', '.join(card.adapter_tasks)}); set "
            "model.adapters to serve it"
        )


def select_service(
    service: InferenceService, body: TypedRequest, model_suffix: InputTypeName | None = None
) -> InferenceService:
    """Return the service of the task that a body names, by the type of its inputs or the name of a prompt; else the one
    that is given. model_suffix: the type in the model's name."""
    if not service.other_tasks:
        return service
    services = (service, *service.other_tasks)
    type_name = body.input_type or body.task or model_suffix
    names = () if type_name is None else TASKS.get(type_name, ())
    task_service = next((each for each in services if each.card.adapter_task in names), None)
    if task_service is not None:
        return task_service
    # A role, such as `query`, names no task: the first task that tells the role from others by a prompt.
    prompts = () if type_name is None or names else INPUT_TYPES[type_name].prompts
    prompt_names = prompts if body.prompt_name is None else (body.prompt_name,)
    return next((each for each in services if not each.card.prompts.keys().isdisjoint(prompt_names)), service)


def select_pair_service(
    service: InferenceService, task: InputTypeName | None, prompt_names: tuple[str | None, str | None]
) -> tuple[InferenceService, tuple[str | None, str | None]]:
    """Return the service of the task of a query and its documents, and the names of their prompts.

    prompt_names: of the query and of the documents, as requested. A task that is not one of queries and documents, such
    as text-matching, has one prompt for both. Raises InvalidInput for a role, which both have, and for a task that is
    not served.
    """
    if task is not None and task not in TASKS:
        raise InvalidInput(
            f"`task` or `input_type`: {task} is a role, which query and documents have; one of {', '.join(TASKS)}"
        )
    requested = next((name for name in prompt_names if name is not None), None)
    selected = select_service(service, TypedFields(task=task, prompt_name=requested))
    if task is None:
        return selected, prompt_names
    prompt = choose_prompt(selected.card, task)
    if prompt.role is not None or prompt.name is None:
        return selected, prompt_names
    of_query, of_documents = (prompt.name if name is None else name for name in prompt_names)
    return selected, (of_query, of_documents)


def split_model_name(name: str, served: str) -> tuple[str, InputTypeName | None]:
    """Split a model's name into the name and the suffix: `docs:query`, or `docs-query` as in NIM.

    served: the name under which the model is served. Any other name is taken as it is, `docs-large` too: one model is
    served. Raises InvalidInput for an unknown suffix behind the served name and a colon, and for one that is nearly a
    type behind any name and a colon, or the served name and a hyphen.
    """
    if name == served:
        return name, None
    base, colon, type_name = name.rpartition(":")
    if colon and type_name in INPUT_TYPES:
        return base, cast(InputTypeName, type_name)
    if not colon and name.startswith(f"{served}-"):
        type_name = name.removeprefix(f"{served}-")
        if type_name in INPUT_TYPES:
            return served, cast(InputTypeName, type_name)
    elif not colon:
        return name, None
    if (colon and base == served) or _is_nearly_type(type_name):
        raise InvalidInput(f"`model`: {type_name!r} behind the name is none of {', '.join(INPUT_TYPES)}")
    return name, None


@lru_cache(256)
def _is_nearly_type(text: str) -> bool:
    """Return whether a text that names no type of inputs is one of the names misspelled."""
    return len(text) <= MAX_MISSPELLED and bool(get_close_matches(text, INPUT_TYPES, 1, MIN_SIMILARITY))
