"""Turns command-line options into settings."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import yaml

from embedserve_operator import __version__
from embedserve_operator.api.hardware import CLASSES, HardwareClass, merge_classes
from embedserve_operator.api.types import OPERATOR_CLASS
from embedserve_operator.commands.logs import LogFormat
from embedserve_operator.commands.preflight.facts import Expectations, OperatorTarget, Provider
from embedserve_operator.errors import SettingsError
from embedserve_operator.settings import (
    ARCHITECTURES,
    USER,
    AdapterReference,
    AdapterSettings,
    KedaSettings,
    LeaseSettings,
    Mesh,
    RenderSettings,
    RunSettings,
    RuntimeImage,
)


def add_render_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide the children besides the resource."""
    for name, classes, note in (("runtime", "CPU", ""), ("cuda", "CUDA", "; empty: there is none")):
        flavour = "cpu" if name == "runtime" else "cuda"
        parser.add_argument(
            f"--{name}-image",
            default=f"embedserve-runtime:{__version__}-{flavour}",
            help=f"image of the runtime for {classes} classes{note} (default: %(default)s)",
        )
        parser.add_argument(
            f"--{name}-image-pull-policy",
            default="IfNotPresent",
            choices=["Always", "IfNotPresent", "Never"],
        )
        parser.add_argument(
            f"--{name}-image-architectures",
            default=",".join(ARCHITECTURES),
            help="architectures that this image has, separated by commas (default: %(default)s)",
        )
    parser.add_argument("--hf-endpoint", default=None, help="base URL of the Hub that services fetch from")
    parser.add_argument(
        "--hardware-classes", default=None, metavar="FILE", help="YAML with further or changed classes"
    )
    parser.add_argument(
        "--management-client",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="namespace whose pods may read the services' metrics; may be repeated",
    )
    _add_cluster_options(parser)


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say in what cluster the children are, and what the platform allows."""
    parser.add_argument(
        "--allowed-endpoint",
        action="append",
        default=[],
        metavar="URL",
        help="server that a manifest may choose and have Secrets sent to, such as https://*.example.com; * for all; "
        "may be repeated",
    )
    parser.add_argument(
        "--allowed-image",
        action="append",
        default=[],
        metavar="REPOSITORY",
        help="repository that a manifest may take the image of its pods from; * for all; may be repeated",
    )
    parser.add_argument(
        "--run-as",
        default=str(USER),
        metavar="UID",
        help="user and group of the services' pods, or 'platform' to leave them to that (default: %(default)s)",
    )
    parser.add_argument(
        "--mesh",
        default=None,
        choices=get_args(Mesh),
        help="service mesh whose sidecars pods may get: its annotations leave the management port alone",
    )
    parser.add_argument(
        "--plan-models",
        action="store_true",
        help="have a Job read how large a model is before its first pods, where no cache is filled before them",
    )
    parser.add_argument(
        "--keda",
        action="store_true",
        help="make ScaledObjects instead of HorizontalPodAutoscalers: KEDA is installed",
    )
    parser.add_argument(
        "--keda-prometheus",
        default=None,
        metavar="URL",
        help="Prometheus that KEDA reads the services' metrics from (default: it asks the pods)",
    )


def add_in_use_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say whose models are meant, and where the result is written."""
    parser.add_argument("--namespace", required=True, help="namespace of the claim")
    parser.add_argument("--claim", required=True, help="name of the PersistentVolumeClaim")
    parser.add_argument(
        "--output", type=Path, default=None, metavar="FILE", help="without it standard output"
    )
    parser.add_argument("--request-timeout", type=float, default=20.0, metavar="SECONDS")


def add_preflight_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the operator is or will be, and what is expected of the cluster."""
    parser.add_argument(
        "-n",
        "--namespace",
        default=os.environ.get("POD_NAMESPACE", "embedserve-system"),
        help="namespace of the operator (default: %(default)s)",
    )
    parser.add_argument("--lease-name", default="embedserve-operator", help="name of the operator's Lease")
    parser.add_argument(
        "--service-account",
        default=None,
        metavar="NAME",
        help="ask for the rights of this account of that namespace (default: those of the caller)",
    )
    parser.add_argument(
        "--watch-namespace",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="the operator watches only this namespace; may be repeated (default: all)",
    )
    parser.add_argument("--no-nodes", action="store_true", help="the operator does not watch nodes")
    parser.add_argument(
        "--metrics",
        default="auto",
        choices=get_args(Provider),
        help="who is to answer autoscalers; auto: anybody, if a service has one (default: %(default)s)",
    )
    parser.add_argument(
        "--installed", action="store_true", help="the chart is installed: what it brings has to be there"
    )
    parser.add_argument("--request-timeout", type=float, default=20.0, metavar="SECONDS")


def build_preflight_target(options: argparse.Namespace) -> OperatorTarget:
    return OperatorTarget(
        namespace=options.namespace,
        lease=options.lease_name,
        account=options.service_account,
        namespaces=tuple(options.watch_namespace),
        watches_nodes=not options.no_nodes,
    )


def build_preflight_expectations(options: argparse.Namespace) -> Expectations:
    return Expectations(provider=options.metrics, is_installed=options.installed)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the operator process."""
    parser.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE", "default"),
        help="namespace of the Lease (default: $POD_NAMESPACE)",
    )
    parser.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME", f"{socket.gethostname()}-{os.getpid()}"),
        help="name of this process in the Lease; no two that live may share it (default: $POD_NAME)",
    )
    parser.add_argument("--lease-name", default="embedserve-operator", help="name of the Lease")
    parser.add_argument(
        "--watch-namespace",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="watch only this namespace; may be repeated (default: all)",
    )
    parser.add_argument(
        "--no-nodes",
        action="store_true",
        help="do not watch nodes and RuntimeClasses, which needs rights on the whole cluster",
    )
    parser.add_argument(
        "--metrics-adapter",
        default=None,
        metavar="NAME",
        help="register the metrics adapter of that name in the namespace of the Lease",
    )
    parser.add_argument(
        "--operator-class",
        default="",
        metavar="CLASS",
        help=f"work only on resources whose label {OPERATOR_CLASS} has this value (default: on those without it)",
    )
    parser.add_argument(
        "--max-concurrent-upgrades",
        type=int,
        default=5,
        metavar="COUNT",
        help="services whose pods another release or setting of the operator replaces at a time (default: %(default)s)",
    )
    parser.add_argument("--health-port", type=int, default=8081, help="port of /healthz")
    _add_log_level(parser)


def add_adapter_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the metrics adapter."""
    parser.add_argument(
        "--namespace", default=os.environ.get("POD_NAMESPACE", "default"), help="namespace of the adapter"
    )
    parser.add_argument(
        "--name", required=True, help="name of its Deployment, Service and ConfigMap of certificates"
    )
    parser.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME", f"{socket.gethostname()}-{os.getpid()}"),
        help="name of this process among its replicas (default: $POD_NAME)",
    )
    parser.add_argument(
        "--port", type=int, default=8443, help="port of the API, HTTPS (default: %(default)s)"
    )
    parser.add_argument(
        "--health-port",
        type=int,
        default=8081,
        help="port of /healthz and /readyz, HTTP (default: %(default)s)",
    )
    parser.add_argument(
        "--hpa-period",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="time between two looks of the autoscaler; pods are asked once in it (default: %(default)s)",
    )
    parser.add_argument(
        "--scrape-timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="longest time that a pod may take to answer (default: %(default)s)",
    )
    parser.add_argument(
        "--certificate-days",
        type=float,
        default=30.0,
        metavar="DAYS",
        help="life of a serving certificate (default: %(default)s)",
    )
    _add_log_level(parser)


def build_adapter_settings(options: argparse.Namespace) -> AdapterSettings:
    """Return the settings of the adapter. Raises SettingsError where a number makes no sense."""
    for name in ("hpa_period", "scrape_timeout", "certificate_days"):
        if vars(options)[name] <= 0:
            raise SettingsError(f"--{name.replace('_', '-')} must be above 0")
    return AdapterSettings(
        adapter=AdapterReference(options.namespace, options.name),
        identity=options.identity,
        port=options.port,
        health_port=options.health_port,
        hpa_period=options.hpa_period,
        scrape_timeout=options.scrape_timeout,
        certificate_days=options.certificate_days,
    )


def _add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level logged",
    )
    parser.add_argument(
        "--log-format",
        default="text",
        choices=get_args(LogFormat),
        help="human-readable lines, or a JSON object a line (default: %(default)s)",
    )


def build_render_settings(options: argparse.Namespace) -> RenderSettings:
    """Return the settings that decide the children.

    Raises SettingsError where the options contradict each other.
    """
    return RenderSettings(
        images={
            "cpu": _build_image(options, "runtime"),
            **({"cuda": _build_image(options, "cuda")} if options.cuda_image else {}),
        },
        classes=_read_classes(options.hardware_classes),
        hf_endpoint=options.hf_endpoint or None,
        management_clients=tuple(options.management_client),
        keda=KedaSettings(options.keda_prometheus or None) if options.keda else None,
        allowed_endpoints=tuple(options.allowed_endpoint),
        allowed_images=tuple(options.allowed_image),
        run_as=_read_user(options.run_as),
        mesh=options.mesh,
        plans_models=options.plan_models,
    )


def _read_user(value: str) -> int | None:
    """Return the user of the pods; None where the cluster assigns one, as OpenShift does."""
    if value == "platform":
        return None
    if not value.isdecimal() or int(value) == 0:
        raise SettingsError(f"--run-as must be a user's number above 0, or platform, not {value}")
    return int(value)


def build_run_settings(options: argparse.Namespace) -> RunSettings:
    """Return the settings of the operator process.

    Raises SettingsError where the options contradict each other.
    """
    if options.max_concurrent_upgrades < 1:
        raise SettingsError("--max-concurrent-upgrades must be 1 or more")
    return RunSettings(
        render=replace(
            build_render_settings(options), max_concurrent_upgrades=options.max_concurrent_upgrades
        ),
        lease=LeaseSettings(namespace=options.namespace, name=options.lease_name),
        identity=options.identity,
        namespaces=tuple(options.watch_namespace),
        operator_class=options.operator_class,
        watch_nodes=not options.no_nodes,
        health_port=options.health_port,
        adapter=AdapterReference(options.namespace, options.metrics_adapter)
        if options.metrics_adapter
        else None,
    )


def _build_image(options: argparse.Namespace, name: str) -> RuntimeImage:
    values = vars(options)
    architectures = tuple(
        architecture for architecture in values[f"{name}_image_architectures"].split(",") if architecture
    )
    unknown = set(architectures) - set(ARCHITECTURES)
    if unknown or not architectures:
        raise SettingsError(
            f"--{name}-image-architectures must name some of {', '.join(ARCHITECTURES)}, "
            f"not {', '.join(sorted(unknown)) or 'nothing'}"
        )
    return RuntimeImage(values[f"{name}_image"], values[f"{name}_image_pull_policy"], architectures)


def _read_classes(file: str | None) -> Mapping[str, HardwareClass]:
    if file is None:
        return CLASSES
    try:
        content: Any = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"--hardware-classes {file}: {error}") from error
    if content is not None and not isinstance(content, Mapping):
        raise SettingsError(f"--hardware-classes {file}: must be a mapping of class names")
    return merge_classes(content or {})
