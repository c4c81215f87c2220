"""Defines the facts that `gather` finds in a cluster and that `assess` judges.

None stands for what the caller may not see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embedserve_operator.kube.permissions import Permission

Provider = Literal["auto", "adapter", "keda", "prometheus-adapter", "none"]


@dataclass(frozen=True, slots=True)
class ApiServiceFact:
    """An APIService.

    `service` is NAMESPACE/NAME of the Service that answers it; it is empty for the API server itself.
    """

    name: str
    group: str
    service: str = ""
    is_ours: bool = False
    is_available: bool = True
    message: str = ""

    def describe(self) -> str:
        server = f"Service {self.service}" if self.service else "the API server itself"
        return f"{server} (APIService {self.name})"


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the Lease, and the seconds since it was last renewed.

    `is_expired` says that this is longer than it lasts.
    """

    holder: str
    age: float
    is_expired: bool


@dataclass(frozen=True, slots=True)
class FeatureUse:
    """The numbers of services in the cluster that need what not every cluster has."""

    autoscaling: int = 0
    images: int = 0
    default_storage: int = 0


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts that one look at a cluster has found."""

    version: tuple[int, int] | None
    has_crd: bool
    """Indicates that the definition of the resource is served."""
    missing_permissions: tuple[Permission, ...]
    leader: Leader | None
    has_lease: bool | None
    apis: tuple[ApiServiceFact, ...] | None
    has_metrics_group: bool
    """Indicates that somebody answers custom.metrics.k8s.io."""
    has_keda: bool
    has_monitoring: bool
    has_image_volumes: bool | None
    default_storage: str | None
    has_storage: bool | None
    """Indicates that there is a default StorageClass."""
    feature_use: FeatureUse | None


@dataclass(frozen=True, slots=True)
class Expectations:
    """The intentions of the caller.

    `is_installed` says that the chart has been installed, so that what it brings has to be there.
    """

    provider: Provider = "auto"
    is_installed: bool = False


@dataclass(frozen=True, slots=True)
class OperatorTarget:
    """The place where the operator is or will be, and its account.

    An `account` of None asks for the rights of the caller. `namespaces` are those that are watched; empty
    stands for all.
    """

    namespace: str
    lease: str
    account: str | None
    namespaces: tuple[str, ...]
    watches_nodes: bool
