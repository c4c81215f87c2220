"""Completion of the command line in bash, zsh and fish."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

PROGRAM: Final = "embedserve"
COMPLETE_VARIABLE: Final = "_EMBEDSERVE_COMPLETE"
"""The environment variable by which a shell asks the program for completions."""
SHELLS: Final = ("bash", "zsh", "fish")


class _BashComplete(BashComplete):
    """bash makes three words of `--flag=value`; Click knows those with a value that is empty or joined."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words, incomplete = super().get_completion_args()
        return (words[:-1] if words[-1:] == ["="] else words), incomplete


add_completion_class(_BashComplete)


def render_script(command: click.Command, shell: str) -> str:
    """Return the script that makes a shell ask `command` for completions. shell: one of `SHELLS`."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    return kind(command, {}, PROGRAM, COMPLETE_VARIABLE).source()


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a model by the folders here and the models in the store of the environment."""
    # Imported here: a command that runs needs none of it.
    from embedserve_runtime.config import StoreLocation
    from embedserve_runtime.store.manifest import read_reference

    references = map(read_reference, (StoreLocation().store.expanduser() / "refs").glob("*.json"))
    names = {reference.name.source for reference in references if reference is not None}
    stored = [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="dir"), *stored]
