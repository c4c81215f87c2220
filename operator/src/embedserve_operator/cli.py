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
from embedserve_operator.errors import ApiError, ManifestError, SettingsError
from embedserve_operator.kinds import RESOURCE
from embedserve_operator.nodes import UNKNOWN_CLUSTER
from embedserve_operator.observe import read_resource
from embedserve_operator.options import (
    adapter_settings,
    add_adapter_options,
    add_in_use_options,
    add_preflight_options,
    add_render_options,
    add_run_options,
    preflight_place,
    preflight_wanted,
    render_settings,
    run_settings,
)
from embedserve_operator.origin import described
from embedserve_operator.preflight.facts import Facts
from embedserve_operator.preflight.judge import exit_status, judge, report
from embedserve_operator.render import explained, read_cluster, render
from embedserve_operator.spaces import table
from embedserve_operator.world import ChildRef, Key

_REQUEST_SECONDS = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return _main(parser(), arguments)


def plugin(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the kubectl plugin: the commands that are for users."""
    return _main(parser("kubectl embedserve"), arguments)


def parser(program: str = "embedserve-operator") -> argparse.ArgumentParser:
    """All commands; the plugin has neither `run` nor `adapter`."""
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
    for name, what in (
        ("render", "print the children of the resources in a file, without a cluster"),
        ("explain", "say why the plan for the resources in a file is as it is, without a cluster"),
    ):
        show = commands.add_parser(name, help=what)
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
    for name, what in (
        ("spaces", "list the vector spaces of a service in the cluster"),
        ("model", "say which model a service in the cluster serves, and where it came from"),
    ):
        about = commands.add_parser(name, help=what)
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


def _main(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    options = parser.parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
    except (ApiError, ManifestError, SettingsError, OSError) as error:
        sys.stderr.write(f"{parser.prog} {options.command}: {error}\n")
        return 1


def _crds(options: argparse.Namespace) -> int:
    sys.stdout.write(crd.as_chart_template() if options.chart_template else crd.as_yaml())
    return 0


def _show(options: argparse.Namespace) -> int:
    sys.stdout.write(_shown(options))
    return 0


def _shown(options: argparse.Namespace) -> str:
    content, settings = _read(options.file), render_settings(options)
    cluster = read_cluster(_read(options.nodes)) if options.nodes is not None else UNKNOWN_CLUSTER
    show = render if options.command == "render" else explained
    return show(content, settings, cluster)


def _read(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _run(options: argparse.Namespace) -> int:
    # Here and not above: kopf and the API client take a second to import, the other commands need neither.
    from embedserve_operator.run import run

    settings = run_settings(options)
    _log(options.log_level)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    return asyncio.run(run(settings))


def _adapter(options: argparse.Namespace) -> int:
    # As above.
    from embedserve_operator.adapter.serve import serve

    settings = adapter_settings(options)
    _log(options.log_level)
    return asyncio.run(serve(settings))


def _spaces(options: argparse.Namespace) -> int:
    sys.stdout.write(table(asyncio.run(_status(options)), int(time.time())))
    return 0


def _model(options: argparse.Namespace) -> int:
    sys.stdout.write(described(asyncio.run(_status(options))))
    return 0


async def _status(options: argparse.Namespace) -> EmbeddingServiceStatus:
    # As above.
    from embedserve_operator.kube import Kube, current_namespace

    key = Key(options.namespace or current_namespace(), options.name)
    async with Kube(request_timeout=_REQUEST_SECONDS) as kube:
        found = await kube.get(key.namespace, ChildRef(RESOURCE, key.name))
    if found is None:
        raise ManifestError(f"there is no EmbeddingService {key}")
    return read_resource(found).status


def _preflight(options: argparse.Namespace) -> int:
    findings = judge(asyncio.run(_facts(options)), preflight_wanted(options))
    sys.stdout.write(report(findings))
    return exit_status(findings)


async def _facts(options: argparse.Namespace) -> Facts:
    # As above.
    from embedserve_operator.kube import Kube
    from embedserve_operator.preflight.look import look

    async with Kube(request_timeout=options.request_timeout) as kube:
        return await look(kube, preflight_place(options), datetime.now(UTC))


def _in_use(options: argparse.Namespace) -> int:
    # As above.
    from embedserve_operator.in_use import list_in_use

    names = asyncio.run(list_in_use(options.namespace, options.claim, options.request_timeout))
    content = "".join(f"{name}\n" for name in names)
    if options.output is None:
        sys.stdout.write(content)
    else:
        options.output.write_text(content, encoding="utf-8")
    return 0


def _log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


_COMMANDS = {
    "adapter": _adapter,
    "crds": _crds,
    "explain": _show,
    "in-use": _in_use,
    "model": _model,
    "preflight": _preflight,
    "render": _show,
    "run": _run,
    "spaces": _spaces,
}


if __name__ == "__main__":
    sys.exit(main())
