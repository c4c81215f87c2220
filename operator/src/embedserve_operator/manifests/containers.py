"""Builds the two containers of a pod: one fetches the model before the start, the other serves it."""

from __future__ import annotations

from embedserve_operator.api.sources import S3_OPTIONAL_VARIABLES, S3_REQUIRED_VARIABLES, SecretKeyRef
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.pin import build_pin_variable, is_movable
from embedserve_operator.manifests.placement import find_accelerators, find_image
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.manifests.resources import build_serving_resources, build_task_resources
from embedserve_operator.manifests.runtime_config import (
    GRPC_PORT,
    KEYS_PATH,
    MANAGEMENT_PORT,
    PINNED_GRPC_PORT,
    PINNED_PORT,
    SERVING_PORT,
    STORE_PATH,
    VOLUME_PATH,
)
from embedserve_operator.manifests.volume import TMP_VOLUME, VOLUME
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.jobs import JobTask

CONFIG_VOLUME = "config"
CONFIG_PATH = "/etc/embedserve"
KEYS_VOLUME = "embedserve-keys"
PLAN: JobTask = "plan"
FETCH: JobTask = "fetch"
CONVERT: JobTask = "convert"
RUNTIME = "runtime"
KERNELS = "kernels"
"""The folder of the store that holds the kernels compiled for an accelerator."""
_MAX_START_SECONDS = 300
"""A process that opens no port for so long is restarted.

Loading a model does not count, however large it is, since the port opens before.
"""


def build_task_container(
    pods: PodInputs, task: JobTask, *, is_init: bool = False, read_only: bool = False
) -> Manifest:
    """Return the container that reads how large the model is, fills a volume with it, or adds its converted form.

    `is_init` says that its pod serves afterwards. With `read_only` it only looks for what is there.
    """
    spec, settings = pods.spec, pods.settings
    container = _build_container(task, task, spec, settings, read_only=read_only)
    if task != CONVERT and not read_only:
        container["env"] += _build_credentials(spec)
        if task == FETCH and is_movable(spec):
            container["env"].append(build_pin_variable(pods.resource, pods.revision))
    return {**container, **build_task_resources(pods, task, is_init=is_init)}


def _build_credentials(spec: EmbeddingServiceSpec) -> list[Manifest]:
    source = spec.model.source
    kind = source.hugging_face or source.http
    variables = []
    if kind is not None and kind.token_secret_ref is not None:
        variables.append(_build_secret_variable("EMBEDSERVE_MODEL__TOKEN", kind.token_secret_ref))
    if source.s3 is not None and source.s3.secret_ref is not None:
        variables += [
            _build_aws_variable(source.s3.secret_ref.name, variable) for variable in S3_REQUIRED_VARIABLES
        ]
        variables += [
            _build_aws_variable(source.s3.secret_ref.name, variable, optional=True)
            for variable in S3_OPTIONAL_VARIABLES
        ]
    return variables


def _build_aws_variable(secret: str, variable: str, *, optional: bool = False) -> Manifest:
    ref = {"name": secret, "key": variable, **({"optional": True} if optional else {})}
    return {"name": variable, "valueFrom": {"secretKeyRef": ref}}


def build_runtime_container(pods: PodInputs) -> Manifest:
    """Return the container that serves the model. A volume with a claim is read-only for it, except for the folder of
    compiled kernels where there is an accelerator to compile for and the volume is ours to fill.
    """
    spec, settings, volume = pods.spec, pods.settings, pods.volume
    container = _build_container(RUNTIME, "serve", spec, settings, read_only=volume is not None)
    keeps_kernels = volume is not None and not volume.is_filled
    if keeps_kernels and find_accelerators(spec, settings) is not None:
        mount = {"name": VOLUME, "mountPath": f"{STORE_PATH}/{KERNELS}", "subPath": KERNELS}
        container["volumeMounts"].append(mount)
    if spec.auth is not None:
        container["volumeMounts"].append({"name": KEYS_VOLUME, "mountPath": KEYS_PATH, "readOnly": True})
    return {
        **container,
        **build_serving_resources(pods),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _list_ports(spec)
        ],
        # Loading a large model takes minutes and must not get the pod killed: start-up and liveness ask
        # whether the process answers, only readiness asks whether the model does.
        "startupProbe": _build_probe("/livez", period=2, failures=_MAX_START_SECONDS // 2),
        "livenessProbe": _build_probe("/livez", period=10, failures=6),
        "readinessProbe": _build_probe("/readyz", period=2, failures=2),
    }


def _list_ports(spec: EmbeddingServiceSpec) -> list[tuple[str, int]]:
    grpc = [("grpc", GRPC_PORT), ("pinned-grpc", PINNED_GRPC_PORT)]
    return [
        ("http", SERVING_PORT),
        ("pinned", PINNED_PORT),
        *(grpc if spec.service.grpc_port is not None else ()),
        ("management", MANAGEMENT_PORT),
    ]


def _build_secret_variable(variable: str, ref: SecretKeyRef) -> Manifest:
    """Return a variable whose value the kubelet puts in; the operator never sees it."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def _build_container(
    name: str, command: str, spec: EmbeddingServiceSpec, settings: RenderSettings, *, read_only: bool
) -> Manifest:
    image = find_image(spec, settings)
    mounts: list[Manifest] = [
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": VOLUME, "mountPath": STORE_PATH, **({"readOnly": True} if read_only else {})},
        {"name": TMP_VOLUME, "mountPath": "/tmp"},
    ]
    if not spec.model.source.is_remote:
        mounts.append({"name": "source", "mountPath": VOLUME_PATH, "readOnly": True})
    return {
        "name": name,
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "args": [command, "--config", f"{CONFIG_PATH}/runtime.yaml"],
        "env": [{"name": "HOME", "value": "/tmp"}, *(variable.as_wire() for variable in spec.pod.env or ())],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [*mounts, *(mount.as_wire() for mount in spec.pod.volume_mounts or ())],
    }


def _build_probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "management", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
