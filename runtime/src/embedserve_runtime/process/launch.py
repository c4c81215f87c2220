"""Launches the process of a server: opens its ports, starts to load the model, and then runs the server.

The server's own libraries are imported while the model is read: building the routes takes about as long as a small
model, of which most is done outside of the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import threading

import uvloop

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu.nodes import bind_to_one_node
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.frontends.interpreter import tune_interpreter
from embedserve_runtime.process.exit_codes import EXIT_CODES_BEFORE_READINESS
from embedserve_runtime.process.loader import ModelLoader
from embedserve_runtime.server.sockets import Ports, bind, bind_ports, format_address
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import Redactor, build_redactor
from embedserve_runtime.telemetry.termination import write_termination_message

log = logging.getLogger(__name__)


def run(config: RuntimeConfig) -> int:
    """Serve until a signal comes; return the exit code."""
    redactor = build_redactor(config.secrets)
    configure_logs(config.log_level, redactor, config.log_format)
    tune_interpreter()
    if config.engine.one_node and config.engine.kind != "torch":
        bind_to_one_node(config.engine.threads or count_usable_cpus())
    code = _run(config, redactor)
    if any(thread.daemon for thread in threading.enumerate()):
        # The loader or the engine is still inside a library: the process was stopped while loading, or the grace period
        # was too short for a batch. Finalising the interpreter under native code would abort the process.
        logging.shutdown()
        os._exit(code)
    return code


def _run(config: RuntimeConfig, redactor: Redactor) -> int:
    try:
        with contextlib.ExitStack() as stack:
            server = config.server
            if server.api_keys_file is not None:
                # A server that knows no key would refuse everybody; the reason is said before the model is loaded.
                from embedserve_runtime.api.key_file import read_key_file

                read_key_file(server.api_keys_file)
            ports = bind_ports(server)
            management = None
            stack.callback(_close_all, ports)
            if server.management_port is not None:
                (management,) = bind(server.host, server.management_port)
                stack.enter_context(contextlib.closing(management))
            _end_at_once_on_signals()
            name = server.served_model_name or config.model.source_name
            log.info(
                "listening, loading the model",
                extra={"address": format_address(ports[0].service), "model": name},
            )
            loader = ModelLoader(config)
            loader.start()
            # Imported here: see above.
            from embedserve_runtime.process.life_cycle import ServerProcess

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
                return loop.run(ServerProcess(config, ports, management, loader).run())
    except EmbedserveError as error:
        log.error(
            "cannot serve: %s", error.message, extra={"reason": error.reason, "retryable": error.retryable}
        )
        write_termination_message(config.termination_log, error, redactor)
        return error.exit_code


def _end_at_once_on_signals() -> None:
    """End the process on a signal until the server handles signals itself: nothing was served, and nothing is lost.
    The loader may be inside a library, under which the interpreter cannot be finalised."""

    def end(number: int, _: object) -> None:
        log.info("stopped while the model is loaded")
        logging.shutdown()
        os._exit(EXIT_CODES_BEFORE_READINESS[signal.Signals(number)])

    for number in EXIT_CODES_BEFORE_READINESS:
        signal.signal(number, end)


def _close_all(ports: list[Ports]) -> None:
    """Close all ports, including those that were added later."""
    for sock in filter(None, itertools.chain.from_iterable(ports)):
        sock.close()
