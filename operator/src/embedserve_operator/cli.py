"""`embedserve-operator`: run, render, crds."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from embedserve_operator import __version__
from embedserve_operator.api import crd
from embedserve_operator.errors import ManifestError
from embedserve_operator.render import render
from embedserve_operator.settings import LeaseSettings, RenderSettings, RunSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = parser().parse_args(arguments)
    command: str = options.command
    if command == "crds":
        sys.stdout.write(crd.as_chart_template() if options.chart_template else crd.as_yaml())
        return 0
    if command == "render":
        return _render(options)
    return _run(options)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embedserve-operator", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run the operator against the cluster")
    _add_render_options(run)
    run.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE", "default"),
        help="namespace of the Lease (default: $POD_NAMESPACE)",
    )
    run.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME", f"{socket.gethostname()}-{os.getpid()}"),
        help="name of this process in the Lease; no two that live may share it (default: $POD_NAME)",
    )
    run.add_argument("--lease-name", default="embedserve-operator", help="name of the Lease")
    run.add_argument("--health-port", type=int, default=8081, help="port of /healthz")
    run.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level logged",
    )

    show = commands.add_parser(
        "render", help="print the children of the resources in a file, without a cluster"
    )
    _add_render_options(show)
    show.add_argument(
        "-f", "--file", required=True, help="file with EmbeddingService resources; - reads stdin"
    )

    crds = commands.add_parser("crds", help="print the CustomResourceDefinition")
    crds.add_argument("--chart-template", action="store_true", help="as the chart's template")
    return parser


def _add_render_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime-image",
        default=f"embedserve-runtime:{__version__}-cpu",
        help="image of the runtime (default: %(default)s)",
    )
    parser.add_argument(
        "--runtime-image-pull-policy", default="IfNotPresent", choices=["Always", "IfNotPresent", "Never"]
    )
    parser.add_argument("--hf-endpoint", default=None, help="base URL of the Hub that services fetch from")


def _render_settings(options: argparse.Namespace) -> RenderSettings:
    return RenderSettings(
        runtime_image=options.runtime_image,
        runtime_image_pull_policy=options.runtime_image_pull_policy,
        hf_endpoint=options.hf_endpoint or None,
    )


def _render(options: argparse.Namespace) -> int:
    try:
        content = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
        sys.stdout.write(render(content, _render_settings(options)))
    except (ManifestError, OSError) as error:
        sys.stderr.write(f"embedserve-operator render: {error}\n")
        return 1
    return 0


def _run(options: argparse.Namespace) -> int:
    # Here and not above: kopf and the API client take a second to import, `render` and `crds` need neither.
    from embedserve_operator.run import run

    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    settings = RunSettings(
        render=_render_settings(options),
        lease=LeaseSettings(namespace=options.namespace, name=options.lease_name),
        identity=options.identity,
        health_port=options.health_port,
    )
    return asyncio.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
