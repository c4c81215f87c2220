"""Runs one command by its arguments: reads the settings, runs the command and reports its error."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from embedserve_runtime.commands.arguments import Invocation, parse_arguments
from embedserve_runtime.commands.output import write_error
from embedserve_runtime.commands.progress_bars import show_progress_bars
from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import build_redactor
from embedserve_runtime.telemetry.termination import write_termination_message


def execute(argv: Sequence[str] | None) -> int:
    """Run one command and return its exit code. argv: its arguments, by default those of the process."""
    parsed = parse_arguments(argv)
    return parsed if isinstance(parsed, int) else _run(parsed)


def _run(invocation: Invocation) -> int:
    match invocation.command:
        case "store":
            return _run_store(invocation.options)
        case "self-test":
            from embedserve_runtime.commands import self_test

            return self_test.run(sys.stdout)
    termination_log = RuntimeConfig.model_fields["termination_log"].default
    redactor = build_redactor(())
    try:
        config = load_config(invocation.options["config"], invocation.settings)
        termination_log = config.termination_log
        redactor = build_redactor(config.secrets)
        configure_logs(config.log_level, redactor, config.log_format)
        with show_progress_bars(config.log_format):
            return _run_configured(invocation.command, config, invocation.options)
    except EmbedserveError as error:
        write_termination_message(termination_log, error, redactor)
        write_error(redactor.redact(f"{error.reason}: {error.message}"))
        return error.exit_code


def _run_configured(command: str, config: RuntimeConfig, options: Mapping[str, Any]) -> int:
    """Run a command that takes settings. Each is imported here: the libraries of one would double the start-up time of
    the others."""
    match command:
        case "serve":
            from embedserve_runtime.commands import serve

            return serve.run(config)
        case "fetch":
            from embedserve_runtime.commands import fetch

            return fetch.run(config, sys.stdout)
        case "plan":
            from embedserve_runtime.commands import plan

            return plan.run(config, sys.stdout)
        case "convert":
            from embedserve_runtime.commands import convert

            return convert.run(config, sys.stdout)
        case "bench":
            from embedserve_runtime.commands import bench

            return bench.run(config, options, sys.stdout)
        case _:
            from embedserve_runtime.commands import inspect_model

            return inspect_model.run(config, sys.stdout, as_json=options["json"])


def _run_store(arguments: Mapping[str, Any]) -> int:
    from embedserve_runtime.commands import store

    try:
        return store.run(arguments, sys.stdout)
    except EmbedserveError as error:
        write_error(f"{error.reason}: {error.message}")
        return error.exit_code
