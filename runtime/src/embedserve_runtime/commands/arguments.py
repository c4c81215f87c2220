"""Defines the command line: its commands, and the options that are not settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from embedserve_runtime import __version__
from embedserve_runtime.commands.completion import COMPLETE_VARIABLE, PROGRAM, SHELLS, render_script
from embedserve_runtime.commands.options import OnceOption, SettingsCommand
from embedserve_runtime.commands.param_types import Duration
from embedserve_runtime.config.catalog import SettingPath
from embedserve_runtime.config.model import DEFAULT_STORE


class Invocation(NamedTuple):
    """A command as it was called. settings: by group and name, as flags name them. options: the command's own."""

    command: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]


def _list_paths(group: str, *names: str) -> tuple[SettingPath, ...]:
    return tuple((group, name) for name in names)


_MODEL: Final = _list_paths(
    "model",
    "source",
    "revision",
    "store",
    "offline",
    "task",
    "pooling",
    "onnx_file",
    "max_length",
    "dimensions",
    "default_prompt",
)
_ENGINE: Final = _list_paths("engine", "kind", "precision", "device", "devices", "threads")
_BATCH: Final = _list_paths("batching", "max_batch_tokens")
_LOGS: Final[tuple[SettingPath, ...]] = (("log_level",), ("log_format",))
_SERVER: Final = _list_paths(
    "server",
    "host",
    "port",
    "management_port",
    "grpc_port",
    "http_workers",
    "served_model_name",
    "api_keys_file",
    "openai_token_ids",
    "access_log",
)
_SERVING_BATCHES: Final = _list_paths(
    "batching", "max_batch_tokens", "max_client_batch_size", "auto_truncate"
)
_CONVERSION: Final = _list_paths("onnx", "convert", "precision", "outputs")
_THREADS: Final = _list_paths("engine", "threads")


class OrderedGroup(click.Group):
    """A group whose help lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


_Row = tuple[str, str, Iterable[SettingPath], Callable[[], Sequence[click.Parameter]]]


def _no_options() -> Sequence[click.Parameter]:
    return ()


def _json_option() -> click.Option:
    return click.Option(["--json"], is_flag=True, help="Print JSON instead of a table.")


def _bench_options() -> Sequence[click.Parameter]:
    above_0 = click.FloatRange(min=0, min_open=True, max=math.inf, max_open=True)
    return (
        click.Option(
            ["--texts"],
            type=click.Path(path_type=Path),
            help="File with one text a line.  [default: a built-in mix of 4 to 200 words]",
        ),
        click.Option(
            ["--clients"],
            type=click.IntRange(min=1),
            default=64,
            show_default=True,
            help="Requests in flight.",
        ),
        click.Option(
            ["--batch"], type=click.IntRange(min=1), default=1, show_default=True, help="Texts of a request."
        ),
        click.Option(
            ["--seconds"], type=above_0, default=10.0, show_default=True, help="How long to measure."
        ),
        click.Option(
            ["--picture"], type=click.Path(path_type=Path), help="SVG file to draw the result into."
        ),
        _json_option(),
    )


_COMMANDS: Final[Sequence[_Row]] = (
    (
        "serve",
        "Serve a model over HTTP.",
        (*_MODEL, *_ENGINE, *_SERVER, *_SERVING_BATCHES, *_LOGS),
        _no_options,
    ),
    ("fetch", "Bring a model into the store and print what it is.", (*_MODEL, *_LOGS), _no_options),
    (
        "plan",
        "Print how large a model is and what memory it takes, from headers alone, before it is fetched.",
        (*_MODEL, *_LOGS),
        _no_options,
    ),
    (
        "convert",
        "Write a model as ONNX into the store, in precisions that are tried first.",
        (*_MODEL, *_THREADS, *_CONVERSION, *_LOGS),
        _no_options,
    ),
    (
        "inspect",
        "Print what a model is, what it gives, what runs it and how much it needs.",
        (*_MODEL, *_ENGINE, *_BATCH),
        lambda: (_json_option(),),
    ),
    (
        "bench",
        "Measure a model on this machine, without HTTP, and suggest settings.",
        (*_MODEL, *_ENGINE, *_BATCH),
        _bench_options,
    ),
)


def parse_arguments(argv: Sequence[str] | None = None) -> Invocation | int:
    """Parse the arguments, by default those of the process. Returns an exit code where nothing is left to be done: the
    help was shown, or the usage was wrong and a message says so."""
    command_line = build_command_line()
    try:
        parsed = command_line.main(
            argv, prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        raise KeyboardInterrupt from error
    return parsed if isinstance(parsed, Invocation) else int(parsed or 0)


def build_command_line() -> click.Group:
    """Build the `embedserve` command, whose commands return what is to be done as an `Invocation`."""
    command_line = OrderedGroup(
        PROGRAM,
        help="Serve embedding models.",
        context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
    )
    click.version_option(__version__, message="%(version)s")(command_line)
    for name, summary, common, own in _COMMANDS:
        config = OnceOption(["--config"], type=click.Path(path_type=Path), help="YAML file with any setting.")
        run = partial(Invocation, name)
        command_line.add_command(SettingsCommand(name, run, summary, common, (config, *own())))
    command_line.add_command(_build_store())
    command_line.add_command(_build_self_test())
    command_line.add_command(_build_completion(command_line))
    return command_line


def _build_self_test() -> click.Command:
    return click.Command(
        "self-test",
        callback=lambda: Invocation("self-test", {}, {}),
        help="Run a small random model on every engine and GPU, and say what could not be checked.",
        short_help="Check this installation with a small random model.",
    )


def _build_completion(command_line: click.Group) -> click.Command:
    def show(shell: str) -> int:
        click.echo(render_script(command_line, shell))
        return 0

    return click.Command(
        "completion",
        callback=show,
        params=[click.Argument(["shell"], type=click.Choice(SHELLS))],
        short_help="Print the script that completes commands in a shell.",
        help="Print the script that completes commands, flags and models in a shell.\n\n"
        "\b\n"
        "bash: embedserve completion bash > ~/.local/share/bash-completion/completions/embedserve\n"
        "zsh:  embedserve completion zsh > ~/.embedserve.zsh, which ~/.zshrc sources after compinit\n"
        "fish: embedserve completion fish > ~/.config/fish/completions/embedserve.fish",
    )


def _build_store() -> click.Group:
    store = OrderedGroup("store", help="List, check or clean the model store.")
    for name, summary, own in (
        ("list", "Print the models and artifacts of the store.", (_json_option(),)),
        (
            "verify",
            "Read every file and compare it with its SHA-256; exits with 1 where one differs.",
            (
                click.Option(
                    ["--remove"], is_flag=True, help="Remove what is damaged, so that it is fetched again."
                ),
            ),
        ),
        ("gc", "Remove what nothing refers to.", _gc_options()),
    ):
        folder = click.Option(
            ["--store"],
            type=click.Path(path_type=Path),
            help=f"Folder of the store.  [env var: EMBEDSERVE_MODEL__STORE; default: {DEFAULT_STORE}]",
        )
        run = partial(_invoke_store, name)
        store.add_command(
            click.Command(name, callback=run, help=summary, short_help=summary, params=[folder, *own])
        )
    return store


def _invoke_store(action: str, **options: Any) -> Invocation:
    return Invocation("store", {}, {"action": action, **options})


def _gc_options() -> Sequence[click.Parameter]:
    return (
        click.Option(
            ["--keep"],
            multiple=True,
            metavar="NAME",
            help="In use: a digest, an artifact's name, a commit, or a source with or without @revision; may be "
            "repeated.",
        ),
        click.Option(
            ["--keep-from"],
            type=click.Path(path_type=Path),
            help="File with names in use as of --keep, one a line.",
        ),
        click.Option(
            ["--only-keep"],
            is_flag=True,
            help="Keep nothing but what --keep names and what is young; else all that was fetched by name is kept too.",
        ),
        click.Option(
            ["--older-than"],
            type=Duration(),
            default="24h",
            show_default=True,
            help="Remove only what nobody has fetched for so long: 90s, 30m, 24h, 7d.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Print what would be removed, and remove nothing."),
    )
