"""`spec.pod`: what a user may add to the pods, and what stays the operator's."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from embedserve_operator.api.base import (
    QUALIFIED_KEYS,
    LabelKey,
    LabelName,
    LabelValue,
    Model,
    ObjectName,
    Quantity,
    RawObject,
)
from embedserve_operator.api.peers import LabelSelector
from embedserve_operator.api.rules import ListMap, Rule, between, exactly_one, matches, no_key

_OWN_VARIABLE = "^(EMBEDSERVE_.*|HOME)$"
_OWN_VOLUMES = ("config", "embedserve-keys", "models", "source", "tmp")
_OWN_PATHS = ("/etc/embedserve", "/etc/embedserve-keys", "/models", "/tmp", "/volume")
_OWN_LABEL = "^(embedserve[.]dev/|app[.]kubernetes[.]io/(name|instance|component|managed-by)$)"
_OWN_ANNOTATION = "^(embedserve[.]dev/|kubectl[.]kubernetes[.]io/default-container$)"


class Toleration(Model):
    """A taint that the pods may be placed in spite of."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            message="a toleration without key needs operator: Exists, and then tolerates every taint",
            check=lambda t: t.key is not None or t.operator == "Exists",
        ),
        Rule(
            cel="!has(self.value) || self.value == '' || !has(self.operator) || self.operator != 'Exists'",
            message="operator: Exists takes no value; remove the value, or take Equal",
            check=lambda t: not t.value or t.operator != "Exists",
        ),
        Rule(
            cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="tolerationSeconds needs effect: NoExecute",
            check=lambda t: t.toleration_seconds is None or t.effect == "NoExecute",
        ),
    )

    key: LabelKey | None = None
    """Key of the taint; without it every taint is tolerated (with operator Exists)."""
    operator: Literal["Exists", "Equal"] | None = None
    """Equal (the default) compares the value as well."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; without it every effect."""
    toleration_seconds: int | None = None
    """Seconds for which a NoExecute taint is tolerated; without it for ever."""


class SpreadConstraint(Model):
    """Spread of the pods over zones, nodes or other parts of the cluster."""

    max_skew: Annotated[int, between(1, 1000, "1 spreads evenly")]
    """Most pods that one part may have more than another."""
    topology_key: LabelKey
    """Label of the nodes whose values are the parts."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Decides whether a pod that would violate the constraint waits, or is scheduled anyway."""
    label_selector: LabelSelector | None = None
    """Pods that are counted."""
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=16)] | None = None
    """Labels of the pod whose values the counted pods must share."""
    min_domains: Annotated[int, between(1, 10_000, "leave it out for any number")] | None = None
    """Fewest parts that there must be."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Decides whether nodes count that the pod's affinity excludes."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Decides whether nodes count whose taints the pod does not tolerate."""


class KeyRef(Model):
    """One key of a Secret or ConfigMap."""

    name: ObjectName
    """Name of the object, in the namespace of the resource."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key inside the object."""
    optional: bool | None = None
    """True if the pod starts without it."""


class FieldRef(Model):
    """A field of the pod itself."""

    field_path: Annotated[str, Field(min_length=1, max_length=253)]
    """Path, for example metadata.name."""


class EnvSource(Model):
    """Source of a variable's value: exactly one of the fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            ("secretKeyRef", "configMapKeyRef", "fieldRef"),
            ("secret_key_ref", "config_map_key_ref", "field_ref"),
            "valueFrom takes exactly one of secretKeyRef, configMapKeyRef and fieldRef",
        ),
    )

    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""
    field_ref: FieldRef | None = None
    """A field of the pod."""


class EnvVar(Model):
    """An environment variable of the runtime and of what fetches the model."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.value) && has(self.valueFrom))",
            message="give value or valueFrom, not both",
            check=lambda env: env.value is None or env.value_from is None,
        ),
        Rule(
            cel=f"!self.name.matches('{_OWN_VARIABLE}')",
            message=(
                "the operator sets HOME and every EMBEDSERVE_ variable itself: use the fields of spec "
                "(for example spec.batching or spec.auth) instead"
            ),
            check=lambda env: not (env.name.startswith("EMBEDSERVE_") or env.name == "HOME"),
        ),
    )

    name: Annotated[
        str,
        Field(max_length=253),
        matches(
            r"^[A-Za-z_][A-Za-z0-9_.-]*$", "must be a variable's name: letters, digits, '_', '.' and '-'"
        ),
    ]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=8192)] | None = None
    """Value of the variable."""
    value_from: EnvSource | None = None
    """Source of the value, instead of `value`."""


class ConfigMapVolume(Model):
    """The keys of a ConfigMap as files."""

    name: ObjectName
    """Name of the ConfigMap."""


class SecretVolume(Model):
    """The keys of a Secret as files."""

    secret_name: ObjectName
    """Name of the Secret."""


class ClaimVolume(Model):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName
    """Name of the claim."""
    read_only: bool | None = None
    """True if it is mounted read-only."""


class EmptyDirVolume(Model):
    """A folder that lives as long as the pod."""

    medium: Literal["", "Memory"] | None = None
    """Memory for a file system in memory."""
    size_limit: Quantity | None = None
    """Maximum size."""


_VOLUME_KINDS = ("configMap", "secret", "persistentVolumeClaim", "emptyDir", "csi")


class Volume(Model):
    """A volume beside those of the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            _VOLUME_KINDS,
            ("config_map", "secret", "persistent_volume_claim", "empty_dir", "csi"),
            f"a volume is exactly one of {', '.join(_VOLUME_KINDS)}: the pods run under the restricted "
            "profile, which allows no others",
        ),
        Rule(
            cel=f"!(self.name in {list(_OWN_VOLUMES)})",
            message=f"volumes named {', '.join(_OWN_VOLUMES)} are the operator's: choose another name",
            check=lambda volume: volume.name not in _OWN_VOLUMES,
        ),
    )

    name: LabelName
    """Name by which volumeMounts refers to it."""
    config_map: ConfigMapVolume | None = None
    """The keys of a ConfigMap as files."""
    secret: SecretVolume | None = None
    """The keys of a Secret as files."""
    persistent_volume_claim: ClaimVolume | None = None
    """A PersistentVolumeClaim."""
    empty_dir: EmptyDirVolume | None = None
    """A folder that lives as long as the pod."""
    csi: RawObject | None = None
    """A volume of a storage driver, as in `kubectl explain pod.spec.volumes.csi`."""


def _is_free_path(mount: VolumeMount) -> bool:
    path = mount.mount_path.rstrip("/")
    return not any(path == reserved or path.startswith(f"{reserved}/") for reserved in _OWN_PATHS)


class VolumeMount(Model):
    """Path at which a volume is mounted in the containers."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.mountPath.startsWith('/') && size(self.mountPath) > 1",
            message="mountPath must be an absolute path below /",
            check=lambda mount: mount.mount_path.startswith("/") and len(mount.mount_path) > 1,
        ),
        Rule(
            cel=f"!{list(_OWN_PATHS)}.exists(own, self.mountPath == own || self.mountPath.startsWith(own + '/'))",
            message=f"the operator mounts its own volumes at {', '.join(_OWN_PATHS)}: choose another mountPath",
            check=_is_free_path,
        ),
    )

    name: LabelName
    """Name of the volume, as in volumes."""
    mount_path: Annotated[str, Field(max_length=512)]
    """Absolute path in the containers."""
    sub_path: Annotated[str, Field(max_length=512)] | None = None
    """Folder inside the volume."""
    read_only: bool | None = None
    """True if it is mounted read-only."""


class SecretName(Model):
    """A Secret of the same namespace."""

    name: ObjectName
    """Name of the Secret."""


PodLabels = Annotated[
    dict[str, LabelValue],
    Field(max_length=32),
    QUALIFIED_KEYS,
    no_key(
        _OWN_LABEL,
        "labels of embedserve.dev/ and app.kubernetes.io/name, instance, component and managed-by are "
        "the operator's: choose another key",
    ),
]
PodAnnotations = Annotated[
    dict[str, Annotated[str, Field(max_length=4096)]],
    Field(max_length=32),
    QUALIFIED_KEYS,
    no_key(
        _OWN_ANNOTATION,
        "annotations of embedserve.dev/ and kubectl.kubernetes.io/default-container are the operator's: "
        "choose another key",
    ),
]


def _every_mount_has_its_volume(pod: PodSettings) -> bool:
    return {mount.name for mount in pod.volume_mounts or ()} <= {volume.name for volume in pod.volumes or ()}


class PodSettings(Model):
    """Additions to the pods that the operator makes."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=(
                "!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes) && "
                "self.volumes.exists(volume, volume.name == mount.name))"
            ),
            message="every name in volumeMounts must be the name of one of volumes: add the volume",
            check=_every_mount_has_its_volume,
        ),
    )

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32), QUALIFIED_KEYS] | None = None
    """Labels that a node must carry, beside what the hardware class asks for."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = None
    """Taints that the pods may be placed in spite of, beside those of the hardware class."""
    affinity: RawObject | None = None
    """Affinity as in `kubectl explain pod.spec.affinity`; what the hardware class asks for holds as well."""
    topology_spread_constraints: (
        Annotated[
            tuple[SpreadConstraint, ...],
            Field(max_length=8),
            ListMap(("topologyKey", "whenUnsatisfiable")),
        ]
        | None
    ) = None
    """Replaces the operator's own spread over zones and nodes; as in
    `kubectl explain pod.spec.topologySpreadConstraints`."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass, instead of that of the hardware class."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods."""
    image_pull_secrets: Annotated[tuple[SecretName, ...], Field(max_length=16), ListMap(("name",))] | None = (
        None
    )
    """Secrets with the credentials of image registries."""
    service_account_name: ObjectName | None = None
    """ServiceAccount of the pods. Its token is not mounted."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), ListMap(("name",))] | None = None
    """Environment variables, for example HTTPS_PROXY. Those of the operator cannot be set."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16), ListMap(("name",))] | None = None
    """Volumes beside those of the operator, for example a ConfigMap with certificates."""
    volume_mounts: (
        Annotated[tuple[VolumeMount, ...], Field(max_length=32), ListMap(("mountPath",))] | None
    ) = None
    """Mounts of those volumes in the containers."""
    labels: PodLabels | None = None
    """Further labels of the pods."""
    annotations: PodAnnotations | None = None
    """Further annotations of the pods."""


class JobSettings(Model):
    """Values for the pods of Jobs (fetch, convert) that replace those of `pod`."""

    labels: PodLabels | None = None
    """Labels beside those of `pod`, for example `sidecar.istio.io/inject: "true"`: Jobs get no sidecar otherwise."""
    annotations: PodAnnotations | None = None
    """Annotations beside those of `pod`, for example `linkerd.io/inject: enabled`: Jobs get no sidecar otherwise."""
