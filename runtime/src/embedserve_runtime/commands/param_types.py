"""Types of values on the command line that Click does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click


class WordOr(click.ParamType[Any]):
    """A value of another type, or one of some words that stand in its place, such as `auto`."""

    def __init__(self, base: click.ParamType[Any], words: Sequence[str]) -> None:
        self.name = base.name
        self._base = base
        self._words = tuple(words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "|".join([self.name.upper(), *self._words])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self._words:
            return value
        try:
            return self._base.convert(value, param, ctx)
        except click.BadParameter as error:
            words = " or ".join(map(repr, self._words))
            self.fail(f"{error.message.removesuffix('.')}, nor {words}.", param, ctx)


class NamedText(click.ParamType[tuple[str, str]]):
    """A name and a text, written as NAME=TEXT."""

    name = "NAME=TEXT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, sign, text = value.partition("=")
        if not (name and sign):
            self.fail(f"{value!r} is not written as NAME=TEXT.", param, ctx)
        return name, text


class Duration(click.ParamType[float]):
    """Seconds, written as `90s`, `30m`, `24h` or `7d`."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+)([smhd])", value)
        if match is None:
            self.fail(f"{value!r} is not an age such as 90s, 30m, 24h or 7d.", param, ctx)
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
