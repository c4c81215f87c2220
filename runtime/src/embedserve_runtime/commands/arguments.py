"""Defines the arguments of the command line."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from embedserve_runtime import __version__
from embedserve_runtime.config.model import DEFAULT_STORE

N = TypeVar("N", int, float)


class Flag(NamedTuple):
    """A command-line flag for one setting.

    setting: its group and its name.
    """

    name: str
    setting: tuple[str, str]
    type: type
    help: str


# The settings that are worth a flag; all others come from the file and the environment.
MODEL_FLAGS = (
    Flag("--model", ("model", "source"), str, "model folder, or repository of the hub (owner/name)"),
    Flag("--revision", ("model", "revision"), str, "branch, tag or commit of the repository (default: main)"),
    Flag("--store", ("model", "store"), Path, "folder of the model store (default: ~/.cache/embedserve)"),
    Flag(
        "--task",
        ("model", "task"),
        str,
        "embed, rerank, classify or sparse (default: what the folder is for)",
    ),
    Flag(
        "--onnx-file",
        ("model", "onnx_file"),
        str,
        "ONNX file of the repository to run (default: its weights)",
    ),
    Flag("--max-length", ("model", "max_length"), int, "tokens an input may have (default: the model's own)"),
    Flag("--dimensions", ("model", "dimensions"), int, "Matryoshka cut of the vectors (default: none)"),
)
MAX_BATCH_TOKENS = Flag(
    "--max-batch-tokens", ("batching", "max_batch_tokens"), int, "tokens of one forward (default: measured)"
)
THREADS = Flag("--threads", ("engine", "threads"), int, "compute threads (default: the CPU quota)")
SERVE_FLAGS = (
    *MODEL_FLAGS,
    Flag("--host", ("server", "host"), str, "address to listen on (default: 127.0.0.1)"),
    Flag("--port", ("server", "port"), int, "port to listen on; 0 takes a free one (default: 8080)"),
    Flag(
        "--management-port",
        ("server", "management_port"),
        int,
        "own port for probes and metrics (default: none)",
    ),
    Flag(
        "--http-workers",
        ("server", "http_workers"),
        str,
        "processes that parse and tokenise, or auto: measured (default: 1, the engine's own)",
    ),
    Flag("--served-model-name", ("server", "served_model_name"), str, "the model's name in answers"),
    Flag(
        "--openai-token-ids",
        ("server", "openai_token_ids"),
        str,
        "true takes arrays of token ids on /v1/embeddings (default: false)",
    ),
    MAX_BATCH_TOKENS,
    THREADS,
)
# The settings that decide how much memory a model needs.
INSPECT_FLAGS = (
    *MODEL_FLAGS,
    MAX_BATCH_TOKENS,
    Flag("--engine", ("engine", "kind"), str, "auto, onnx, torch or static (default: auto)"),
    Flag(
        "--precision",
        ("engine", "precision"),
        str,
        "auto, float32, bfloat16, float16 or int8 (default: auto)",
    ),
)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the `embedserve` command; a setting's destination is `group.setting`."""
    parser = argparse.ArgumentParser(prog="embedserve", description="Serve embedding models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary, flags in (
        ("serve", "serve a model over HTTP", SERVE_FLAGS),
        ("fetch", "bring a model into the store and print what it is", MODEL_FLAGS),
        (
            "convert",
            "write a model as ONNX into the store, in precisions that are tried first",
            (*MODEL_FLAGS, THREADS),
        ),
        (
            "inspect",
            "print what a model is, what it gives, what runs it and how much it needs",
            INSPECT_FLAGS,
        ),
        (
            "bench",
            "measure a model on this machine, without HTTP, and suggest settings",
            (*MODEL_FLAGS, MAX_BATCH_TOKENS, THREADS),
        ),
    ):
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.add_argument(
            "--config", type=Path, help="YAML file with any setting; flags and environment win"
        )
        for flag in flags:
            command.add_argument(
                flag.name,
                dest=".".join(flag.setting),
                type=flag.type,
                help=flag.help,
                default=argparse.SUPPRESS,
            )
        if name == "inspect":
            command.add_argument(
                "model.source", nargs="?", default=argparse.SUPPRESS, metavar="DIR_OR_REPO", help="as --model"
            )
        if name in ("inspect", "bench"):
            command.add_argument("--json", action="store_true", help="print JSON instead of a table")
        if name == "bench":
            _add_bench_flags(command)
    _add_store_actions(commands.add_parser("store", help="list, check or clean the model store"))
    commands.add_parser(
        "self-test", help="run a small random model on every engine and GPU; says what could not be checked"
    )
    return parser


def _add_bench_flags(command: argparse.ArgumentParser) -> None:
    for name, kind, default, text in (
        ("texts", Path, None, "file with one text a line (default: a built-in mix of 4 to 200 words)"),
        ("clients", _positive_number(int), 64, "requests in flight (default: 64)"),
        ("batch", _positive_number(int), 1, "texts of a request (default: 1)"),
        ("seconds", _positive_number(float), 10.0, "how long to measure (default: 10)"),
        ("picture", Path, None, "SVG file to draw the result into"),
    ):
        command.add_argument(f"--{name}", type=kind, default=default, help=text)


def _positive_number(kind: Callable[[str], N]) -> Callable[[str], N]:
    def read(text: str) -> N:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return read


def _add_store_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in (
        ("list", "print the models and artifacts of the store"),
        ("verify", "read every file and compare it with its SHA-256; exits with 1 where one differs"),
        ("gc", "remove what nothing refers to"),
    ):
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        action.add_argument(
            "--store",
            type=Path,
            default=None,
            help=f"folder of the store (default: EMBEDSERVE_MODEL__STORE, else {DEFAULT_STORE})",
        )
        match name:
            case "list":
                action.add_argument("--json", action="store_true", help="print JSON instead of a table")
            case "verify":
                action.add_argument(
                    "--remove",
                    action="store_true",
                    help="remove what is damaged, so that it is fetched again",
                )
            case _:
                _add_gc_flags(action)


def _add_gc_flags(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help="in use: a digest, an artifact's name, a commit, or a source with or without @revision; may be repeated",
    )
    action.add_argument(
        "--keep-from",
        type=Path,
        default=None,
        metavar="FILE",
        help="names in use as of --keep, one a line",
    )
    action.add_argument(
        "--only-keep",
        action="store_true",
        help="keep nothing but what --keep names and what is young; else all that was fetched by name is kept too",
    )
    action.add_argument(
        "--older-than",
        type=parse_duration,
        default="24h",
        metavar="AGE",
        help="remove only what nobody has fetched for so long: 90s, 30m, 24h, 7d (default: 24h)",
    )
    action.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, and remove nothing"
    )


def parse_duration(text: str) -> float:
    """Return the seconds of `90s`, `30m`, `24h` or `7d`. Raises ValueError."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise ValueError(text)
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def split_settings(arguments: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Split parsed arguments into settings by group, and the options of the command itself."""
    settings: dict[str, dict[str, Any]] = {}
    options: dict[str, Any] = {}
    for name, value in arguments.items():
        group, dot, setting = name.partition(".")
        if dot:
            settings.setdefault(group, {})[setting] = value
        else:
            options[name] = value
    return settings, options
