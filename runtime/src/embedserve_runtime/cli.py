"""The `embedserve` command: serve, fetch, convert, inspect, bench, store, self-test.

Results go to standard output, logs and errors to standard error. Exit code 0, 1 (could not be done, with the reason),
2 (wrong usage) or 78 (wrong settings: trying again changes nothing).
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from embedserve_runtime import __version__
from embedserve_runtime.config import ModelSettings, RuntimeConfig, load_config
from embedserve_runtime.errors import ConfigError, EmbedserveError
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.exports import needs_export
from embedserve_runtime.model.folder import read_model
from embedserve_runtime.model.onnx_outputs import onnx_outputs
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.sources import LocatedModel, fetch_model, note_identity, open_model
from embedserve_runtime.model.store.kernel_cache import make_kernel_folder
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import redactor_for
from embedserve_runtime.telemetry.termination import write_termination_message, write_termination_result

N = TypeVar("N", int, float)

# Flag, the setting it sets, its type, its help: the settings that are worth a flag. All others have the file and
# the environment.
FLAGS: tuple[tuple[str, tuple[str, str], type, str], ...] = (
    ("--model", ("model", "source"), str, "model folder, or repository of the hub (owner/name)"),
    ("--revision", ("model", "revision"), str, "branch, tag or commit of the repository (default: main)"),
    ("--store", ("model", "store"), Path, "folder of the model store (default: ~/.cache/embedserve)"),
    ("--task", ("model", "task"), str, "embed, rerank, classify or sparse (default: what the folder is for)"),
    ("--onnx-file", ("model", "onnx_file"), str, "ONNX file of the repository to run (default: its weights)"),
    ("--max-length", ("model", "max_length"), int, "tokens an input may have (default: the model's own)"),
    ("--dimensions", ("model", "dimensions"), int, "Matryoshka cut of the vectors (default: none)"),
)
SERVE_FLAGS: tuple[tuple[str, tuple[str, str], type, str], ...] = (
    ("--host", ("server", "host"), str, "address to listen on (default: 127.0.0.1)"),
    ("--port", ("server", "port"), int, "port to listen on; 0 takes a free one (default: 8080)"),
    (
        "--management-port",
        ("server", "management_port"),
        int,
        "own port for probes and metrics (default: none)",
    ),
    (
        "--http-workers",
        ("server", "http_workers"),
        str,
        "processes that parse and tokenise, or auto: measured (default: 1, the engine's own)",
    ),
    ("--served-model-name", ("server", "served_model_name"), str, "the model's name in answers"),
    (
        "--max-batch-tokens",
        ("batching", "max_batch_tokens"),
        int,
        "tokens of one forward (default: measured)",
    ),
    ("--threads", ("engine", "threads"), int, "compute threads (default: the CPU quota)"),
)
CONVERT_FLAGS = (*FLAGS, *(flag for flag in SERVE_FLAGS if flag[0] == "--threads"))
# What the memory that is needed depends on, besides the model.
INSPECT_FLAGS = (
    *FLAGS,
    *(flag for flag in SERVE_FLAGS if flag[0] == "--max-batch-tokens"),
    ("--engine", ("engine", "kind"), str, "auto, onnx, torch or static (default: auto)"),
    (
        "--precision",
        ("engine", "precision"),
        str,
        "auto, float32, bfloat16, float16 or int8 (default: auto)",
    ),
)
BENCH_FLAGS = (*FLAGS, *(flag for flag in SERVE_FLAGS if flag[0] in ("--max-batch-tokens", "--threads")))
BENCH_DEFAULTS = {"texts": None, "clients": 64, "batch": 1, "seconds": 10.0, "picture": None}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command; returns the exit code."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    if command == "store":
        return _store(arguments)
    if command == "self-test":
        # Imported here, as for `serve`.
        from embedserve_runtime.commands import self_test

        return self_test.run(sys.stdout)
    file = arguments.pop("config")
    as_json = arguments.pop("json", False)
    load = {name: arguments.pop(name) for name in BENCH_DEFAULTS if name in arguments}
    termination_log = RuntimeConfig.model_fields["termination_log"].default
    redactor = redactor_for(())
    try:
        config = load_config(file, _nested(arguments))
        termination_log = config.termination_log
        redactor = redactor_for(config.secrets)
        configure_logs(config.log_level, redactor)
        commands: Mapping[str, Callable[[RuntimeConfig], int]] = {
            "serve": _serve,
            "fetch": _fetch,
            "convert": _convert,
            "bench": partial(_bench, load=load, as_json=as_json),
            "inspect": partial(_inspect, as_json=as_json),
        }
        return commands[command](config)
    except EmbedserveError as error:
        write_termination_message(termination_log, error, redactor)
        print(redactor.redact(f"embedserve: {error.reason}: {error.message}"), file=sys.stderr)
        return error.exit_code


def _serve(config: RuntimeConfig) -> int:
    # What a start makes stays. Looking through it again and again takes a tenth of the start; the loaded model ends
    # this.
    gc.disable()
    # Imported here, since the server's libraries would double the start-up time of the other commands.
    from embedserve_runtime.serving import process

    return process.run(config)


def _fetch(config: RuntimeConfig) -> int:
    # Imported here, as for the server.
    from embedserve_runtime.model.sources.progress import Progress

    progress = Progress()
    with (
        _ended_by_sigterm(),
        progress.log_periodically(),
        progress.serve(config.server.host, config.server.management_port),
    ):
        located = fetch_model(config.model, progress)
        make_kernel_folder(config.model.store.expanduser())
        progress.enter("reading")
        needs_export_here = config.model.export_elsewhere and needs_export(
            read_model(located.folder), config.model.onnx_file
        )
        card = None if needs_export_here else read_card(located.folder, located.revision, config.model)
    if card is not None:
        note_identity(config.model, located, card.vector_space)
    result = {"model": fetched(card, located, config.model)}
    write_termination_result(config.termination_log, result)
    print(json.dumps(result, indent=2))
    return 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """The first process of a container is not ended by the signal otherwise; ended so, a fetch leaves its staging
    folder to the next one at once."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _convert(config: RuntimeConfig) -> int:
    # Imported here, since the engine's libraries would double the start-up time of the other commands.
    from embedserve_runtime.conversion.converting import convert

    with _ended_by_sigterm():
        result = {"conversion": convert(config)}
    write_termination_result(config.termination_log, result)
    print(json.dumps(result, indent=2))
    return 0


def _inspect(config: RuntimeConfig, *, as_json: bool) -> int:
    # Imported here, since only this command of the short ones needs to know the engines.
    from embedserve_runtime.commands.inspect_model import describe_model, table

    located = open_model(config.model)
    facts = describe_model(read_card(located.folder, located.revision, config.model), located, config)
    print(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else table(facts))
    return 0


def _store(arguments: Mapping[str, Any]) -> int:
    from embedserve_runtime.commands import store

    try:
        return store.run(arguments, sys.stdout)
    except EmbedserveError as error:
        print(f"embedserve: {error.reason}: {error.message}", file=sys.stderr)
        return 1


def _bench(config: RuntimeConfig, *, load: Mapping[str, Any], as_json: bool) -> int:
    # Imported here, as for the server.
    from embedserve_runtime.benching.bench import BenchOptions, bench
    from embedserve_runtime.benching.report import picture, table

    report = bench(config, BenchOptions(load["texts"], load["clients"], load["batch"], load["seconds"]))
    print(json.dumps(asdict(report), indent=2) if as_json else table(report))
    if load["picture"] is not None:
        try:
            load["picture"].write_text(picture(report), encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"the picture cannot be written to {load['picture']}: {error.strerror}"
            ) from error
    return 0


def fetched(card: ModelCard | None, located: LocatedModel, settings: ModelSettings) -> Mapping[str, Any]:
    """What the operator learns from a fetch: the contract of its status fields. card: None where the model is yet to be
    exported, which says the rest."""
    found = {
        "source": settings.source,
        "revision": located.revision,
        "licence": located.licence,
        "digest": f"sha256:{located.digest}" if located.digest else None,
        "sizeBytes": located.size,
    }
    if card is None:
        return {**found, "foreign": True}
    return {
        **found,
        "dimensions": card.pipeline.dimensions,
        "vectorSpace": card.vector_space,
        "outputs": card.output_names,
        "onnxOutputs": onnx_outputs(card),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embedserve", description="Serve embedding models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary, flags in (
        ("serve", "serve a model over HTTP", FLAGS + SERVE_FLAGS),
        ("fetch", "bring a model into the store and print what it is", FLAGS),
        (
            "convert",
            "write a model as ONNX into the store, in precisions that are tried first",
            CONVERT_FLAGS,
        ),
        (
            "inspect",
            "print what a model is, what it gives, what runs it and how much it needs",
            INSPECT_FLAGS,
        ),
        ("bench", "measure a model on this machine, without HTTP, and suggest settings", BENCH_FLAGS),
    ):
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.add_argument(
            "--config", type=Path, help="YAML file with any setting; flags and environment win"
        )
        for flag, (group, setting), kind, text in flags:
            command.add_argument(
                flag, dest=f"{group}.{setting}", type=kind, help=text, default=argparse.SUPPRESS
            )
        if name == "inspect":
            command.add_argument(
                "model.source", nargs="?", default=argparse.SUPPRESS, metavar="DIR_OR_REPO", help="as --model"
            )
        if name in ("inspect", "bench"):
            command.add_argument("--json", action="store_true", help="print JSON instead of a table")
        if name == "bench":
            _add_bench_flags(command)
    _add_store(commands.add_parser("store", help="list, check or clean the model store"))
    commands.add_parser(
        "self-test", help="run a small random model on every engine and GPU; says what could not be checked"
    )
    return parser


def _add_bench_flags(command: argparse.ArgumentParser) -> None:
    for name, kind, text in (
        ("texts", Path, "file with one text a line (default: a built-in mix of 4 to 200 words)"),
        ("clients", _positive(int), "requests in flight (default: 64)"),
        ("batch", _positive(int), "texts of a request (default: 1)"),
        ("seconds", _positive(float), "how long to measure (default: 10)"),
        ("picture", Path, "SVG file to draw the result into"),
    ):
        command.add_argument(f"--{name}", type=kind, default=BENCH_DEFAULTS[name], help=text)


def _positive(kind: Callable[[str], N]) -> Callable[[str], N]:
    def read(text: str) -> N:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return read


def _add_store(parser: argparse.ArgumentParser) -> None:
    default = ModelSettings.model_fields["store"].default
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in (
        ("list", "print the models and artifacts of the store"),
        ("verify", "read every file and compare it with its SHA-256; exits with 1 where one differs"),
        ("gc", "remove what nothing refers to"),
    ):
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        action.add_argument(
            "--store", type=Path, default=default, help=f"folder of the store (default: {default})"
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
                _add_gc(action)


def _add_gc(action: argparse.ArgumentParser) -> None:
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
        type=duration_s,
        default="24h",
        metavar="AGE",
        help="remove only what nobody has fetched for so long: 90s, 30m, 24h, 7d (default: 24h)",
    )
    action.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, and remove nothing"
    )


def duration_s(text: str) -> float:
    """Seconds of `90s`, `30m`, `24h`, `7d`. Raises ValueError."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise ValueError(text)
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def _nested(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    flags: dict[str, dict[str, Any]] = {}
    for name, value in arguments.items():
        group, _, setting = name.partition(".")
        flags.setdefault(group, {})[setting] = value
    return flags
