"""Every change of one field of a JSON file: other values of its type, the field gone, a field that was not there."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from embedserve_runtime.model.files import FileModel

Path = tuple[str | int, ...]

# Values of a text that mean something else, beside one that means nothing.
WORDS = {
    "gelu": "relu",
    "silu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "gelu",
    "absolute": "relative_key",
    "mean": "cls",
    "default": "linear",
    "Identity": "Tanh",
    "left": "right",
    "right": "left",
    "query": "document",
    "document": "query",
    "fixed": "min",
    "max": "sum",
    "full_attention": "sliding_attention",
    "sliding_attention": "full_attention",
    "Left": "Right",
    "Right": "Left",
    "LongestFirst": "OnlySecond",
    "BatchLongest": "x",
    "Removed": "Isolated",
    "Isolated": "MergedWithNext",
    "NFC": "NFKD",
    "always": "never",
    "text-ranking": "sentence-similarity",
    "Qwen/Qwen3-Reranker-0.6B": "zeroentropy/zerank-2",
}
MAX_ITEMS = 12
# A longer object is a vocabulary, whose entries are alike.
MAX_KEYS = 150
SAMPLES: dict[object, list[object]] = {
    bool: [True, False],
    int: [2],
    float: [0.25],
    str: ["x", "relu"],
    type(None): [],
}


@dataclass(frozen=True)
class Mutation:
    """A change of the field at `path`: `value` is set there, or it is taken out."""

    path: Path
    value: object = None
    removed: bool = False

    @property
    def key(self) -> str:
        """The innermost name on the way to the field."""
        return str(next((part for part in reversed(self.path) if isinstance(part, str)), ""))

    def __str__(self) -> str:
        where = ".".join(map(str, self.path))
        return f"without {where}" if self.removed else f"{where} = {self.value!r}"

    def apply(self, content: Any) -> Any:
        """The content with the change."""
        changed = copy.deepcopy(content)
        container = changed
        for part in self.path[:-1]:
            container = container[part]
        if self.removed:
            del container[self.path[-1]]
        else:
            container[self.path[-1]] = self.value
        return changed


def mutations_of(content: Any, path: Path = ()) -> Iterator[Mutation]:
    """Each change of each field inside `content`, which lies at `path`."""
    for key, value in _choose_items(content):
        key_path = (*path, key)
        if isinstance(key, str):
            yield Mutation(key_path, removed=True)
        if isinstance(value, dict | list):
            yield from mutations_of(value, key_path)
        for changed in other_values(value):
            yield Mutation(key_path, changed)


def _choose_items(content: Any) -> list[tuple[Any, Any]]:
    if isinstance(content, dict):
        items = [*content.items()]
        return items if len(items) <= MAX_KEYS else items[:MAX_ITEMS]
    return [*enumerate(content[:MAX_ITEMS])]


def other_values(value: object) -> list[object]:
    """Other values of the same type."""
    match value:
        case bool():
            values: list[object] = [not value]
        case int():
            values = [value + 1, *({value - 1, 0} - {value})]
        case float():
            values = [value * 2 + 0.25, *({0.0, -1.0} - {value})]
        case str():
            word = next((word for word in WORDS if value.endswith(word)), None)
            values = [f"{value}x"] if word is None else [f"{value}x", value.removesuffix(word) + WORDS[word]]
        case list():
            values = [value[:-1], [*value, *value[-1:]], value[::-1]] if value else [["x"]]
        case None:
            values = [2, True, "x"]
        case _:
            values = []
    return values


def absent_fields(shape: type[FileModel], content: Mapping[str, Any], path: Path = ()) -> Iterator[Mutation]:
    """The fields that a shape reads and that `content` does not have, with values of their types."""
    for name, field in shape.model_fields.items():
        if name not in content:
            for value in samples(field.annotation):
                yield Mutation((*path, name), value)
        else:
            for nested in shapes_in(field.annotation):
                if isinstance(content[name], dict):
                    yield from absent_fields(nested, content[name], (*path, name))


def shapes_in(annotation: object) -> list[type[FileModel]]:
    """The shapes of a file's part that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, FileModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return [shape for part in get_args(annotation) for shape in shapes_in(part)]
    return []


def samples(annotation: object, within: frozenset[object] = frozenset()) -> list[object]:
    """Values of a type. within: the shapes that it is a part of, which hold none of their own kind."""
    arguments = get_args(annotation)
    match get_origin(annotation) or annotation:
        case origin if origin in (Union, types.UnionType):
            values = [value for part in arguments for value in samples(part, within)]
        case origin if origin is Literal:
            values = [*arguments]
        case origin if origin is Annotated:
            values = samples(arguments[0], within)
        case origin if origin in (list, tuple):
            values = [[value] for value in (samples(arguments[0], within) if arguments else ["x"])]
        case type() as origin if issubclass(origin, Mapping):
            values = [{"x": value} for value in samples(arguments[1], within)]
        case type() as origin if issubclass(origin, FileModel):
            fields = {} if origin in within else origin.model_fields
            values = [
                {name: value}
                for name, field in fields.items()
                for value in samples(field.annotation, within | {origin})
            ]
        case origin:
            values = SAMPLES.get(origin, [3])
    return values
