"""What `look` finds in a cluster and `judge` judges. None stands for what the caller was not let to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embedserve_operator.rights import Right

Provider = Literal["auto", "adapter", "keda", "prometheus-adapter", "none"]


@dataclass(frozen=True, slots=True)
class Api:
    """An APIService. service: NAMESPACE/NAME of who answers it; empty for the API server itself."""

    name: str
    group: str
    service: str = ""
    is_ours: bool = False
    is_available: bool = True
    message: str = ""

    def words(self) -> str:
        who = f"Service {self.service}" if self.service else "the API server itself"
        return f"{who} (APIService {self.name})"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who holds the Lease, and for how many seconds it has not been renewed. is_expired: longer than it lasts."""

    holder: str
    age: float
    is_expired: bool


@dataclass(frozen=True, slots=True)
class Uses:
    """How many services of the cluster need what not every cluster has."""

    autoscaling: int = 0
    images: int = 0
    default_storage: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """One look at a cluster."""

    version: tuple[int, int] | None
    is_defined: bool
    """The definition of the resource is served."""
    lacking: tuple[Right, ...]
    leader: Leader | None
    has_lease: bool | None
    apis: tuple[Api, ...] | None
    has_metrics_group: bool
    """Somebody answers custom.metrics.k8s.io, whoever it is."""
    has_keda: bool
    has_monitoring: bool
    has_image_volumes: bool | None
    default_storage: str | None
    has_storage: bool | None
    """A default StorageClass."""
    uses: Uses | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller intends. is_installed: the chart has been installed, so what it brings has to be there."""

    provider: Provider = "auto"
    is_installed: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where the operator is, or will be, and who it is there. account: None asks for the rights of the caller.

    namespaces: those that are watched; empty for all.
    """

    namespace: str
    lease: str
    account: str | None
    namespaces: tuple[str, ...]
    watches_nodes: bool
