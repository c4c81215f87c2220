"""Lists the kinds of object that the operator watches or makes, and where the API serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from embedserve_operator.api.types import GROUP, KIND, PLURAL, VERSION


@dataclass(frozen=True, slots=True)
class ApiKind:
    """The API path of a kind."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` that objects of the kind carry."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the path of a collection (of one namespace or of all), or that of one object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return "/".join(parts)


def _build_review_kind(plural: str) -> ApiKind:
    return ApiKind("authorization.k8s.io", "v1", plural, namespaced=False)


RESOURCE = KIND
POD = "Pod"
JOB = "Job"
CLAIM = "PersistentVolumeClaim"
NODE = "Node"
RUNTIME_CLASS = "RuntimeClass"
SERVICE_MONITOR = "ServiceMonitor"
SCALED_OBJECT = "ScaledObject"
AUTOSCALER = "HorizontalPodAutoscaler"
STORAGE_CLASS = "StorageClass"
SECRET = "Secret"

API_KINDS: Mapping[str, ApiKind] = MappingProxyType(
    {
        RESOURCE: ApiKind(GROUP, VERSION, PLURAL),
        "APIService": ApiKind("apiregistration.k8s.io", "v1", "apiservices", namespaced=False),
        "ClusterRole": ApiKind("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False),
        "ConfigMap": ApiKind("", "v1", "configmaps"),
        "Deployment": ApiKind("apps", "v1", "deployments"),
        "Event": ApiKind("", "v1", "events"),
        AUTOSCALER: ApiKind("autoscaling", "v2", "horizontalpodautoscalers"),
        JOB: ApiKind("batch", "v1", "jobs"),
        "Lease": ApiKind("coordination.k8s.io", "v1", "leases"),
        "NetworkPolicy": ApiKind("networking.k8s.io", "v1", "networkpolicies"),
        CLAIM: ApiKind("", "v1", "persistentvolumeclaims"),
        "PodDisruptionBudget": ApiKind("policy", "v1", "poddisruptionbudgets"),
        SECRET: ApiKind("", "v1", "secrets"),
        "Service": ApiKind("", "v1", "services"),
        POD: ApiKind("", "v1", "pods"),
        NODE: ApiKind("", "v1", "nodes", namespaced=False),
        RUNTIME_CLASS: ApiKind("node.k8s.io", "v1", "runtimeclasses", namespaced=False),
        STORAGE_CLASS: ApiKind("storage.k8s.io", "v1", "storageclasses", namespaced=False),
        "SelfSubjectAccessReview": _build_review_kind("selfsubjectaccessreviews"),
        "SubjectAccessReview": _build_review_kind("subjectaccessreviews"),
        SERVICE_MONITOR: ApiKind("monitoring.coreos.com", "v1", "servicemonitors"),
        SCALED_OBJECT: ApiKind("keda.sh", "v1alpha1", "scaledobjects"),
    }
)
WATCHED_CHILDREN = (
    "ConfigMap",
    "Deployment",
    AUTOSCALER,
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Service",
)
OPTIONAL_KINDS = (SERVICE_MONITOR, SCALED_OBJECT)
"""The kinds that are not watched, since their definitions may be absent; they are listed from time to time."""
CHILD_KINDS = (*WATCHED_CHILDREN, *OPTIONAL_KINDS)
SCALER_KINDS = frozenset({AUTOSCALER, SCALED_OBJECT})
"""Objects of these kinds decide the number of pods of a Deployment, of which there may be one."""
CLAIM_KINDS = (JOB, CLAIM)
"""The kinds that belong to a volume of models; an object of them may concern several resources."""
LABELLED_KINDS = (*WATCHED_CHILDREN, POD, JOB)
"""Objects of these kinds are watched only where they carry a service's label. Claims may be anybody's."""
CLUSTER_KINDS = (NODE, RUNTIME_CLASS)


def build_crd_name(kind: str) -> str:
    """Return the name of the CustomResourceDefinition of a kind that is not one of the API server's own."""
    api = API_KINDS[kind]
    return f"{api.plural}.{api.group}"
