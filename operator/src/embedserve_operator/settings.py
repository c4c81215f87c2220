"""Defines what the operator is told once, at its start.

Everything else comes from the resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from embedserve_operator.api.hardware import CLASSES, HardwareClass
from embedserve_operator.errors import SettingsError

USER = 65532
"""User and group of the images."""
Mesh = Literal["istio", "linkerd"]
ARCHITECTURES = ("amd64", "arm64")
IMAGES = ("cpu", "cuda")
"""The names that hardware classes give to the images of the runtime."""
EXPORTER = "cuda"
"""The image with torch, which exports models that belong to no family."""


@dataclass(frozen=True, slots=True)
class RuntimeImage:
    """One image of the runtime."""

    reference: str
    """The image with its tag or digest."""
    pull_policy: str = "IfNotPresent"
    """`Always`, `IfNotPresent` or `Never`."""
    architectures: tuple[str, ...] = ARCHITECTURES
    """The architectures of the image; its pods are not placed on any other."""
    is_exporter: bool = False
    """Indicates that pods need this image, whatever image the manifest names."""

    @property
    def repository(self) -> str:
        """The image without its tag and digest."""
        name = self.reference.partition("@")[0]
        folder, slash, last = name.rpartition("/")
        return f"{folder}{slash}{last.partition(':')[0]}"


@dataclass(frozen=True, slots=True)
class KedaSettings:
    """The settings for KEDA, where that decides the number of pods of autoscaled services."""

    prometheus: str | None = None
    """Base URL of the Prometheus that KEDA reads the metrics from; None reads them from the pods."""


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """The settings that decide the children besides the resource itself."""

    images: Mapping[str, RuntimeImage]
    """The configured images of the runtime, by the names in IMAGES."""
    classes: Mapping[str, HardwareClass] = field(default_factory=lambda: CLASSES)
    """Hardware classes by name."""
    hf_endpoint: str | None = None
    """Base URL of the Hub that all services fetch from; None leaves the choice to the runtime."""
    management_clients: tuple[str, ...] = ()
    """Namespaces whose pods may reach the management port (metrics): the operator's own and the monitoring's."""

    allowed_endpoints: tuple[str, ...] = ()
    """Servers that a manifest may choose and have Secrets sent to: scheme, host and port, the host perhaps with `*.`
    in front; `*` for all."""
    allowed_images: tuple[str, ...] = ()
    """Repositories that a manifest may take the image of its pods from, beside those of `images`; `*` for all."""
    max_concurrent_upgrades: int = 5
    """The number of services whose pods an upgrade of the operator replaces at a time."""
    keda: KedaSettings | None = None
    """The settings of KEDA; None makes HorizontalPodAutoscalers instead."""
    run_as: int | None = USER
    """The user and group of the pods; None leaves them to the cluster, as on OpenShift, which assigns a range of
    user IDs to each namespace.
    """
    operator_keys: str = ""
    """The public keys of the operator, as a JSON Web Key Set; empty where nothing signs calls to pods."""
    mesh: Mesh | None = None
    """The service mesh whose sidecars pods may get."""
    plans_models: bool = False
    """Indicates that a Job reads how large a model is before its first pods, where none fetches it before them."""

    def __post_init__(self) -> None:
        for name, hardware in self.classes.items():
            if hardware.image not in IMAGES:
                raise SettingsError(
                    f"hardware class {name} names the image {hardware.image}; there are: {', '.join(IMAGES)}"
                )


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The settings of the election, in seconds.

    deadline < duration, or two processes could lead at once.
    """

    namespace: str
    name: str = "embedserve-operator"
    duration: float = 15.0
    """After the last renewal, others wait this long before they take over."""
    deadline: float = 10.0
    """A leader that could not renew for this long stops."""
    retry: float = 2.0
    """The time from the beginning of one renewal by a leader to that of the next, where the API server is not slower.
    """
    poll_interval: float = 1.0
    """The pause between the looks of a process that waits."""

    @property
    def call_key_secret(self) -> str:
        """Name of the Secret with the key of calls to pods: who shares the Lease shares the key."""
        return f"{self.name}-pod-calls"

    @property
    def attempt_timeout(self) -> float:
        """The longest time that one renewal may take, so that after a dead connection a new one can be tried."""
        return self.deadline / 2


@dataclass(frozen=True, slots=True)
class AdapterReference:
    """The place of the adapter in the cluster; the chart makes all of it."""

    namespace: str
    name: str
    """The name of its Deployment, Service, ConfigMap of certificates, and ClusterRole."""

    @property
    def server_name(self) -> str:
        """The name that the API server expects in the serving certificate."""
        return f"{self.name}.{self.namespace}.svc"


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """The settings of `embedserve-operator adapter`."""

    adapter: AdapterReference
    identity: str
    """The name of this process among its replicas: the pod's name."""
    port: int = 8443
    """The port of the API, HTTPS."""
    health_port: int = 8081
    """The port of the probes, HTTP, since they carry no client certificate."""
    hpa_period: float = 15.0
    """The seconds between two looks of the autoscaler; pages are cached for nine tenths of that."""
    scrape_timeout: float = 5.0
    """The longest time that a pod may take to answer, in seconds: an overloaded one is slow, and counts most."""
    request_timeout: float = 10.0
    """The longest time of one API request, in seconds."""
    certificate_days: float = 30.0
    """The lifetime of a serving certificate; a new one takes over after two thirds of it."""
    check_interval: float = 10.0
    """The seconds between looks at the certificates and at what the cluster says about them."""
    drain: float = 5.0
    """The seconds to keep answering when told to stop, until no more requests come."""


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """The settings by which the operator keeps the adapter registered."""

    adapter: AdapterReference
    interval: float = 5.0
    """The seconds between looks."""
    grace: float = 30.0
    """The seconds for which the API may be registered while nobody answers; no namespace can be deleted meanwhile.
    """
    retry_limit: float = 600.0
    """The longest pause, in seconds, before registering again an API that had pods but that nobody could reach.
    """


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of `embedserve-operator run`."""

    render: RenderSettings
    lease: LeaseSettings
    identity: str
    """The name of this process in the Lease: the pod's name."""
    namespaces: tuple[str, ...] = ()
    """The namespaces that are watched; empty stands for all."""
    operator_class: str = ""
    """The value of the label of the resources that are worked on; empty: those without that label."""
    watch_nodes: bool = True
    """Indicates that nodes and RuntimeClasses are watched, which needs rights on the whole cluster."""
    adapter: AdapterReference | None = None
    """The metrics adapter that is to be registered, if any."""
    health_port: int = 8081
    """The port of `/healthz`."""
    workers: int = 8
    """The number of resources that are worked on at the same time."""
    request_timeout: float = 20.0
    """The longest time of one API request, in seconds."""
    message_timeout: float = 5.0
    """The longest time, in seconds, that a pod may take to receive which vector space the service has switched to."""
    check_timeout: float = 60.0
    """The longest time, in seconds, that the self-check of a pod may take."""
    backoff_base_delay: float = 1.0
    """The pause in seconds after the first failed pass over a resource; each further failure doubles it."""
    backoff_max_delay: float = 60.0
    """The longest pause, in seconds, between passes over a failing resource."""
    audit_interval: float = 120.0
    """The seconds between checks that the cached objects still exist, since an interrupted watch can miss
    deletions.
    """
