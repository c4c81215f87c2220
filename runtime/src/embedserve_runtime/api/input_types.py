"""Reads what the inputs of a request are, query or document, in the words of all dialects, and chooses their prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, cast

from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.service import InferenceService, Role

InputWord = Literal[
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
"""What inputs are, in the words of Cohere, Jina, NIM, Nomic and Voyage."""


class InputType(NamedTuple):
    """A type of inputs. prompts: the names that models give to its prompt; the first that the model has is taken."""

    role: Role | None
    prompts: tuple[str, ...]


_QUERY = InputType("query", ("search_query", "query", "retrieval.query"))
_DOCUMENT = InputType("document", ("search_document", "document", "passage", "retrieval.passage"))
_CLUSTERING = InputType(None, ("clustering", "separation", "Clustering"))
INPUT_TYPES: Mapping[InputWord, InputType] = {
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
# Words that name a task, for which a model may have an adapter, by the names of that task. The others name a role.
TASKS: Mapping[InputWord, tuple[str, ...]] = {
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


class TypedBody(Protocol):
    """The fields of a body that say what its inputs are."""

    @property
    def input_type(self) -> InputWord | None: ...
    @property
    def task(self) -> InputWord | None: ...
    @property
    def prompt_name(self) -> str | None: ...


class InputPrompt(NamedTuple):
    """The role of a request's inputs, and the prompt before them by its name or its text.

    None: what the model does where a request says nothing.
    """

    role: Role | None
    name: str | None
    text: str | None


def read_input_prompt(
    card: ModelCard, body: TypedBody, *, model_word: InputWord | None = None, text: str | None = None
) -> InputPrompt:
    """Read the role and the prompt that a body asks for.

    model_word: the word in the model's name, such as `docs:query`. text: a prompt by its text, where the route has one.
    Raises InvalidInput where the request says two different things.
    """
    word = body.input_type or body.task or model_word
    if word is None:
        return InputPrompt(None, body.prompt_name, text)
    said = {"input_type": body.input_type, "task": body.task, "model": model_word}
    for field, other in said.items():
        if other is not None and INPUT_TYPES[other] != INPUT_TYPES[word]:
            raise InvalidInput(f"`{field}` says {other} where another field says {word}; leave one out")
    return choose_prompt(card, word, body.prompt_name, text)


def choose_prompt(
    card: ModelCard, word: InputWord | None, name: str | None = None, text: str | None = None
) -> InputPrompt:
    """Choose the prompt: the one requested by name or text, otherwise that of the inputs' type.

    Without a prompt for the type the default one applies, unless that is the prompt of another type: a query's prompt
    before a document would be worse than none.
    """
    if word is None:
        return InputPrompt(None, name, text)
    _check_task(card, word)
    role, names = INPUT_TYPES[word]
    if role is not None and name in _PROMPTS_OF_OTHER_ROLE[role]:
        # With an adapter for each role it would be a query read by the weights for documents, or the reverse.
        raise InvalidInput(f"`prompt_name` says {name} where another field says {word}; leave one out")
    if name is not None or text is not None:
        return InputPrompt(role, name, text)
    found = next((known for known in names if known in card.prompts), None)
    has_prompt_of_another = found is None and card.default_prompt in _PROMPTS_OF_TYPES
    return InputPrompt(role, found, "" if has_prompt_of_another else None)


def _check_task(card: ModelCard, word: InputWord) -> None:
    """Raise InvalidInput for a task that the model has another adapter for than the one that is served."""
    names = set(TASKS.get(word, ()))
    if names & set(card.adapter_tasks) and card.adapter_task not in names:
        raise InvalidInput(
            f"{word!r} is a task with an adapter of its own, which this service has not loaded (it has "
            f"{', '.join(card.served_tasks) or 'none'}; the model has {', '.join(card.adapter_tasks)}); set "
            "model.adapters to serve it"
        )


def select_service(
    service: InferenceService, body: TypedBody, model_word: InputWord | None = None
) -> InferenceService:
    """Return the service of the task that a body names, by a word of its inputs or the name of a prompt; else the one
    that is given. model_word: the word in the model's name."""
    if not service.other_tasks:
        return service
    services = (service, *service.other_tasks)
    word = body.input_type or body.task or model_word
    names = () if word is None else TASKS.get(word, ())
    found = next((one for one in services if one.card.adapter_task in names), None)
    if found is not None:
        return found
    # A word of a role, such as `query`, names no task: the first task that tells the role from others by a prompt.
    prompts = () if word is None or names else INPUT_TYPES[word].prompts
    wanted = prompts if body.prompt_name is None else (body.prompt_name,)
    return next((one for one in services if not one.card.prompts.keys().isdisjoint(wanted)), service)


def split_model_name(name: str, served: str) -> tuple[str, InputWord | None]:
    """Split a model's name into the name and the suffix: `docs:query`, or `docs-query` as in NIM.

    served: the name under which the model is served. Raises InvalidInput for an unknown suffix.
    """
    if name == served:
        return name, None
    base, colon, word = name.rpartition(":")
    if colon and word in INPUT_TYPES:
        return base, cast(InputWord, word)
    if colon and base == served:
        raise InvalidInput(f"`model`: {word!r} behind the name is none of {', '.join(INPUT_TYPES)}")
    word = name.removeprefix(f"{served}-")
    if word != name and word in INPUT_TYPES:
        return served, cast(InputWord, word)
    return name, None
