"""The usual kopf operator, to compare with: create and update handlers that write the same children.

Run by `benchmarks.operator_scale`; the children are those of our plan, so that only the loop differs.
"""

from __future__ import annotations

import logging
from typing import Any

import kopf
from kubernetes import client, config

from embedserve_operator.api.types import GROUP, PLURAL, VERSION
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.observe.state import ReceivedObjects, observe
from embedserve_operator.plan import make_plan
from embedserve_operator.settings import RenderSettings, RuntimeImage

SETTINGS = RenderSettings(images={"cpu": RuntimeImage("bench:cpu"), "cuda": RuntimeImage("bench:cuda")})


def children(body: Any) -> tuple[Manifest, ...]:
    received = ReceivedObjects(EmbeddingServiceObject.parse(dict(body)))
    return make_plan(observe(received), SETTINGS).children


def apis() -> dict[str, tuple[Any, str]]:
    core, apps, network = client.CoreV1Api(), client.AppsV1Api(), client.NetworkingV1Api()
    return {
        "ConfigMap": (core, "config_map"),
        "Service": (core, "service"),
        "Deployment": (apps, "deployment"),
        "NetworkPolicy": (network, "network_policy"),
    }


@kopf.on.startup()  # type: ignore[untyped-decorator]
def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    config.load_kube_config()
    settings.posting.level = logging.WARNING
    settings.scanning.disabled = True


@kopf.on.create(GROUP, VERSION, PLURAL)  # type: ignore[untyped-decorator]
def create(body: kopf.Body, namespace: str, **_: Any) -> None:
    for child in children(body):
        api, noun = apis()[child["kind"]]
        getattr(api, f"create_namespaced_{noun}")(namespace, child)


@kopf.on.update(GROUP, VERSION, PLURAL)  # type: ignore[untyped-decorator]
def update(body: kopf.Body, namespace: str, **_: Any) -> None:
    for child in children(body):
        api, noun = apis()[child["kind"]]
        getattr(api, f"patch_namespaced_{noun}")(child["metadata"]["name"], namespace, child)
