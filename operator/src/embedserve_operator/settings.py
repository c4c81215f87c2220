"""What the operator is told once, at its start. Everything else comes from the resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embedserve_operator.errors import SettingsError
from embedserve_operator.hardware import CLASSES, HardwareClass

ARCHITECTURES = ("amd64", "arm64")
IMAGES = ("cpu", "cuda")
"""What hardware classes call the images of the runtime."""
EXPORTER = "cuda"
"""The image with torch, which exports models of no family."""


@dataclass(frozen=True, slots=True)
class RuntimeImage:
    """One image of the runtime."""

    reference: str
    """With tag or digest."""
    pull_policy: str = "IfNotPresent"
    """`Always`, `IfNotPresent` or `Never`."""
    architectures: tuple[str, ...] = ARCHITECTURES
    """Architectures that the image has; its pods are placed on no others."""


@dataclass(frozen=True, slots=True)
class KedaSettings:
    """KEDA decides the number of pods of autoscaled services."""

    prometheus: str | None = None
    """Base URL of the Prometheus that it reads them from; None: from the pods themselves."""


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """What decides the children beside the resource itself."""

    images: Mapping[str, RuntimeImage]
    """Images of the runtime by what hardware classes call them: those of IMAGES that there are."""
    classes: Mapping[str, HardwareClass] = field(default_factory=lambda: CLASSES)
    """Hardware classes by name."""
    hf_endpoint: str | None = None
    """Base URL of the Hub that all services fetch from; None leaves the choice to the runtime."""
    management_clients: tuple[str, ...] = ()
    """Namespaces whose pods may reach the management port (metrics): the operator's own and the monitoring's."""

    keda: KedaSettings | None = None
    """None: HorizontalPodAutoscalers of our own."""

    def __post_init__(self) -> None:
        for name, hardware in self.classes.items():
            if hardware.image not in IMAGES:
                raise SettingsError(
                    f"hardware class {name} names the image {hardware.image}; there are: {', '.join(IMAGES)}"
                )


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Who leads. Times in seconds; deadline < duration, or two processes could lead at once."""

    namespace: str
    name: str = "embedserve-operator"
    duration: float = 15.0
    """After the last renewal, others wait this long before they take over."""
    deadline: float = 10.0
    """A leader that could not renew for this long stops."""
    retry: float = 2.0
    """Pause between a leader's renewals, and the longest a single attempt may take."""
    look: float = 1.0
    """Pause between the looks of one who waits."""


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """Where the adapter is in the cluster; all of it is made by the chart."""

    namespace: str
    name: str
    """Of its Deployment, Service, ConfigMap of certificates, and ClusterRole."""

    @property
    def server_name(self) -> str:
        """What the API server expects the serving certificate to be for."""
        return f"{self.name}.{self.namespace}.svc"


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Settings of `embedserve-operator adapter`."""

    place: AdapterPlace
    identity: str
    """Name of this process among its replicas: the pod's name."""
    port: int = 8443
    """Of the API, HTTPS."""
    health_port: int = 8081
    """Of the probes, HTTP: they carry no client certificate."""
    hpa_period: float = 15.0
    """Seconds between two looks of the autoscaler; what a pod said is kept for nine tenths of that."""
    scrape_timeout: float = 5.0
    """Longest time that a pod may take to answer, seconds: one that is overloaded is slow, and counts most."""
    request_timeout: float = 10.0
    """Longest time of one API request, seconds."""
    certificate_days: float = 30.0
    """Life of a serving certificate; a new one takes over after two thirds of it."""
    check_interval: float = 10.0
    """Seconds between looks at certificates, and at what the cluster says of them."""
    drain: float = 5.0
    """Seconds to go on answering when told to stop, until requests come no longer."""


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """How the operator keeps the adapter registered."""

    place: AdapterPlace
    interval: float = 5.0
    """Seconds between looks."""
    grace: float = 30.0
    """Seconds for which the API may be registered with nobody to answer: meanwhile no namespace can be deleted."""
    retry_limit: float = 600.0
    """Longest pause before an API is registered again that pods stood behind and nobody could reach, seconds."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of `embedserve-operator run`."""

    render: RenderSettings
    lease: LeaseSettings
    identity: str
    """Name of this process in the Lease: the pod's name."""
    namespaces: tuple[str, ...] = ()
    """Namespaces that are watched; none: all."""
    watch_nodes: bool = True
    """Whether nodes and RuntimeClasses are watched, which needs rights on the whole cluster."""
    adapter: AdapterPlace | None = None
    """The metrics adapter that is to be registered; None: none."""
    health_port: int = 8081
    """Port of `/healthz`."""
    workers: int = 8
    """Resources that are worked on at the same time."""
    request_timeout: float = 20.0
    """Longest time of one API request, seconds."""
    tell_timeout: float = 5.0
    """Longest time that a pod may take to hear what the service's name stands for, seconds."""
    check_timeout: float = 60.0
    """Longest time that a pod may take to prove its vectors, seconds."""
    backoff_first: float = 1.0
    """Pause after the first failed pass over a resource; doubled by each further failure, seconds."""
    backoff_limit: float = 60.0
    """Longest pause between passes over a failing resource, seconds."""
    audit_interval: float = 120.0
    """Seconds between checks that what the caches hold still exists (a watch that was cut can miss
    deletions)."""
