"""Defines the view of a pod."""

from __future__ import annotations

from pydantic import Field

from embedserve_operator.kube.views.base import Count, Items, Maybe, Part, Presence, Quantities, Text, View
from embedserve_operator.kube.views.objects import Object, ObjectCondition, find_condition


class SecretReference(View):
    """A reference to a key of a Secret."""

    name: Text
    key: Text


class SecretSource(View):
    """The Secret that the value of an environment variable comes from."""

    secret_key_ref: SecretReference


class SecretVariable(View):
    """An environment variable whose value comes from a Secret; other variables are not read as one."""

    name: Text
    value_from: SecretSource


class ContainerPort(View):
    """A port of a container."""

    name: Text
    container_port: Count


class ContainerResources(View):
    """The resources that a container asks for and may use."""

    limits: Quantities
    requests: Quantities


class Container(View):
    """The fields that are read of a container in a pod's spec."""

    name: Text
    resources: Part[ContainerResources]
    env: Items[SecretVariable]
    """The variables that come from a Secret: messages of the runtime about them name it."""
    ports: Items[ContainerPort]


class ConfigMapVolumeView(View):
    """The ConfigMap that a volume holds."""

    name: Text


class SecretFile(View):
    """A key of a Secret, and the file that it becomes."""

    key: Text
    path: Text


class SecretVolumeView(View):
    """The Secret whose keys are files of a volume."""

    secret_name: Text
    items: Items[SecretFile]


class VolumeView(View):
    """The fields that are read of a pod's volume."""

    name: Text
    config_map: Maybe[ConfigMapVolumeView]
    secret: Maybe[SecretVolumeView]
    image: Maybe[Presence]


class PodSpec(View):
    """The fields that are read of the spec of a pod."""

    node_name: Text
    runtime_class_name: Text
    volumes: Items[VolumeView]
    init_containers: Items[Container]
    containers: Items[Container]

    def find_container(self, name: str) -> Container | None:
        """Return the container of that name, if there is one."""
        return next(
            (container for container in (*self.init_containers, *self.containers) if container.name == name),
            None,
        )

    @property
    def image_volumes(self) -> tuple[str, ...]:
        """The names of the volumes that hold an image."""
        return tuple(volume.name for volume in self.volumes if volume.image is not None)


class WaitingContainer(View):
    """The reason why a container does not run yet."""

    reason: Text
    message: Text


class TerminatedContainer(View):
    """The exit of a container."""

    exit_code: Count
    reason: Text
    message: Text
    finished_at: Text


class ContainerState(View):
    """The state of a container, which is one of the three."""

    waiting: Part[WaitingContainer]
    running: Maybe[Presence]
    terminated: Maybe[TerminatedContainer]


class ContainerStatus(View):
    """The fields that are read of the status of a container."""

    name: Text
    restart_count: Count
    state: Part[ContainerState]
    last_state: Part[ContainerState]

    @property
    def is_running(self) -> bool:
        """Return whether the container runs."""
        return self.state.running is not None


class PodStatus(View):
    """The fields that are read of the status of a pod."""

    phase: Text
    reason: Text
    message: Text
    pod_ip: Text = Field(alias="podIP")
    conditions: Items[ObjectCondition]
    init_container_statuses: Items[ContainerStatus]
    container_statuses: Items[ContainerStatus]

    @property
    def all_container_statuses(self) -> tuple[ContainerStatus, ...]:
        """The statuses of all containers, in the order in which they start."""
        return (*self.init_container_statuses, *self.container_statuses)


class Pod(Object):
    """The fields that are read of a pod."""

    spec: Part[PodSpec]
    status: Part[PodStatus]

    @property
    def is_ready(self) -> bool:
        """Return whether the pod is ready to serve."""
        ready = find_condition(self.status.conditions, "Ready")
        return ready is not None and ready.is_true
