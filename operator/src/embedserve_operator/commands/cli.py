"""`embedserve-operator`: run, adapter, in-use, preflight, render, explain, spaces, model, crds.

As `kubectl embedserve`: preflight, render, explain, spaces, model, crds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from embedserve_operator import __version__
from embedserve_operator.api import crd
from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.commands.logs import configure_logging
from embedserve_operator.commands.model import describe_model
from embedserve_operator.commands.options import (
    add_adapter_options,
    add_in_use_options,
    add_preflight_options,
    add_render_options,
    add_run_options,
    build_adapter_settings,
    build_preflight_expectations,
    build_preflight_target,
    build_render_settings,
    build_run_settings,
)
from embedserve_operator.commands.preflight.assess import assess_cluster, choose_exit_status, format_report
from embedserve_operator.commands.preflight.facts import ClusterFacts
from embedserve_operator.commands.render import explain_file, read_cluster, render_file
from embedserve_operator.commands.spaces import format_table
from embedserve_operator.errors import ApiError, ManifestError, SettingsError
from embedserve_operator.kube.kinds import RESOURCE
from embedserve_operator.kube.references import ChildRef, ObjectKey
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.observe.resource import read_resource
from embedserve_operator.state.nodes import UNKNOWN_CLUSTER

_REQUEST_SECONDS = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return _run_command(build_parser(), arguments)


def kubectl_plugin(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the kubectl plugin: the commands that are for users."""
    return _run_command(build_parser("kubectl embedserve"), arguments)


def build_parser(program: str = "embedserve-operator") -> argparse.ArgumentParser:
    """Return the parser of all commands; the plugin has neither `run` nor `adapter`."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    if program == "embedserve-operator":
        run = commands.add_parser("run", help="run the operator against the cluster")
        add_render_options(run)
        add_run_options(run)
        adapter = commands.add_parser("adapter", help="answer the autoscaler's questions about the pods")
        add_adapter_options(adapter)
        in_use = commands.add_parser(
            "in-use", help="print what services need of a claim's models, one name a line"
        )
        add_in_use_options(in_use)
    for name, purpose in (
        ("render", "print the children of the resources in a file, without a cluster"),
        ("explain", "say why the plan for the resources in a file is as it is, without a cluster"),
    ):
        show = commands.add_parser(name, help=purpose)
        add_render_options(show)
        show.add_argument(
            "-f", "--file", required=True, help="file with EmbeddingService resources; - reads stdin"
        )
        show.add_argument(
            "--nodes",
            default=None,
            metavar="FILE",
            help="what `kubectl get nodes,runtimeclasses -o yaml` printed; - reads stdin",
        )
    for name, purpose in (
        ("spaces", "list the vector spaces of a service in the cluster"),
        ("model", "say which model a service in the cluster serves, and where it came from"),
    ):
        about = commands.add_parser(name, help=purpose)
        about.add_argument("name", metavar="NAME", help="name of the EmbeddingService")
        about.add_argument(
            "-n",
            "--namespace",
            default=None,
            help="its namespace (default: that of the kubeconfig's context)",
        )
    preflight = commands.add_parser(
        "preflight", help="say what the cluster has and lacks; the exit status is 1 when something is missing"
    )
    add_preflight_options(preflight)
    crds = commands.add_parser("crds", help="print the CustomResourceDefinition")
    crds.add_argument("--chart-template", action="store_true", help="as the chart's template")
    return parser


def _run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    options = parser.parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
    except (ApiError, ManifestError, SettingsError, OSError) as error:
        sys.stderr.write(f"{parser.prog} {options.command}: {error}\n")
        return 1


def _run_crds(options: argparse.Namespace) -> int:
    sys.stdout.write(crd.format_chart_template() if options.chart_template else crd.format_yaml())
    return 0


def _run_render(options: argparse.Namespace) -> int:
    sys.stdout.write(_render_file(options))
    return 0


def _render_file(options: argparse.Namespace) -> str:
    content, settings = _read_file(options.file), build_render_settings(options)
    cluster = read_cluster(_read_file(options.nodes)) if options.nodes is not None else UNKNOWN_CLUSTER
    show = render_file if options.command == "render" else explain_file
    return show(content, settings, cluster)


def _read_file(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _run_operator(options: argparse.Namespace) -> int:
    # Imported here, since kopf and the API client take a second to import and other commands need neither.
    from embedserve_operator.process.operator import run_operator

    settings = build_run_settings(options)
    configure_logging(options.log_level, options.log_format)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    return asyncio.run(run_operator(settings))


def _run_adapter_command(options: argparse.Namespace) -> int:
    # Imported here, since the API client takes long to import and other commands do not need it.
    from embedserve_operator.process.adapter import run_adapter

    settings = build_adapter_settings(options)
    configure_logging(options.log_level, options.log_format)
    return asyncio.run(run_adapter(settings))


def _run_spaces(options: argparse.Namespace) -> int:
    sys.stdout.write(format_table(asyncio.run(_fetch_status(options)), int(time.time())))
    return 0


def _run_model(options: argparse.Namespace) -> int:
    sys.stdout.write(describe_model(asyncio.run(_fetch_status(options))))
    return 0


async def _fetch_status(options: argparse.Namespace) -> EmbeddingServiceStatus:
    # Imported here, since the API client takes long to import and other commands do not need it.
    from embedserve_operator.kube.client import KubeClient, read_current_namespace

    key = ObjectKey(options.namespace or read_current_namespace(), options.name)
    async with KubeClient(request_timeout=_REQUEST_SECONDS) as kube:
        received = await kube.get(key.namespace, ChildRef(RESOURCE, key.name))
    if received is None:
        raise ManifestError(f"there is no EmbeddingService {key}")
    return read_resource(EmbeddingServiceObject.parse(received)).status


def _run_preflight(options: argparse.Namespace) -> int:
    findings = assess_cluster(asyncio.run(_gather_facts(options)), build_preflight_expectations(options))
    sys.stdout.write(format_report(findings))
    return choose_exit_status(findings)


async def _gather_facts(options: argparse.Namespace) -> ClusterFacts:
    # Imported here, since the API client takes long to import and other commands do not need it.
    from embedserve_operator.commands.preflight.gather import gather_facts
    from embedserve_operator.kube.client import KubeClient

    async with KubeClient(request_timeout=options.request_timeout) as kube:
        return await gather_facts(kube, build_preflight_target(options), datetime.now(UTC))


def _run_in_use(options: argparse.Namespace) -> int:
    # Imported here, since the API client takes long to import and other commands do not need it.
    from embedserve_operator.commands.in_use import list_in_use

    names = asyncio.run(list_in_use(options.namespace, options.claim, options.request_timeout))
    content = "".join(f"{name}\n" for name in names)
    if options.output is None:
        sys.stdout.write(content)
    else:
        options.output.write_text(content, encoding="utf-8")
    return 0


_COMMANDS = {
    "adapter": _run_adapter_command,
    "crds": _run_crds,
    "explain": _run_render,
    "in-use": _run_in_use,
    "model": _run_model,
    "preflight": _run_preflight,
    "render": _run_render,
    "run": _run_operator,
    "spaces": _run_spaces,
}


if __name__ == "__main__":
    sys.exit(main())
