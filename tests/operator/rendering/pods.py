"""How many pods there are, and what the user adds to them."""

from __future__ import annotations

from tests.operator.builders import hub_spec
from tests.operator.rendering.case import BUDGET, DEPLOYMENT, FETCH, POD, RUNTIME, Case
from tests.support.differences import GONE

CASES = (
    Case(
        "two pods have a disruption budget",
        hub_spec(replicas=2),
        {f"{DEPLOYMENT}.spec.replicas": 2, "PodDisruptionBudget docs": BUDGET},
    ),
    Case(
        "pods run the image that the manifest names",
        hub_spec(runtimeImage="embedserve-runtime:pinned-cpu"),
        {
            f"{FETCH}.image": "embedserve-runtime:pinned-cpu",
            f"{RUNTIME}.image": "embedserve-runtime:pinned-cpu",
        },
    ),
    Case("a service may ask for no pods", hub_spec(replicas=0), {f"{DEPLOYMENT}.spec.replicas": 0}),
    Case(
        "a suspended service has no pods, however many it asks for",
        hub_spec(replicas=4, suspend=True),
        {f"{DEPLOYMENT}.spec.replicas": 0},
    ),
    Case(
        "no monitor is made where nobody knows whether the cluster has the kind",
        hub_spec(monitoring={"serviceMonitor": {"interval": "15s", "labels": {"release": "prometheus"}}}),
        {},
    ),
    Case(
        "pods have the user's account, pull secrets, labels and annotations",
        hub_spec(
            pod={
                "serviceAccountName": "embedder",
                "imagePullSecrets": [{"name": "registry"}],
                "labels": {"team": "search"},
                "annotations": {"example.com/owner": "search"},
            }
        ),
        {
            f"{DEPLOYMENT}.spec.template.metadata.labels.team": "search",
            f"{DEPLOYMENT}.spec.template.metadata.annotations.example.com/owner": "search",
            f"{POD}.serviceAccountName": "embedder",
            f"{POD}.imagePullSecrets": [{"name": "registry"}],
        },
    ),
    Case(
        "pods have the user's placement",
        hub_spec(
            pod={
                "nodeSelector": {"pool": "cheap"},
                "tolerations": [
                    {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
                ],
                "priorityClassName": "batch",
                "schedulerName": "packer",
                "runtimeClassName": "gvisor",
                "topologySpreadConstraints": [],
            }
        ),
        {
            f"{POD}.topologySpreadConstraints[0]": GONE,
            f"{POD}.topologySpreadConstraints[1]": GONE,
            f"{POD}.nodeSelector": {"pool": "cheap"},
            f"{POD}.tolerations": [
                {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
            ],
            f"{POD}.runtimeClassName": "gvisor",
            f"{POD}.priorityClassName": "batch",
            f"{POD}.schedulerName": "packer",
        },
    ),
    Case(
        "the user's volumes are mounted, and his variables are set, in every container",
        hub_spec(
            pod={
                "volumes": [
                    {"name": "ca", "configMap": {"name": "company-ca"}},
                    {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
                ],
                "volumeMounts": [
                    {"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True},
                    {"name": "scratch", "mountPath": "/scratch"},
                ],
                "env": [
                    {"name": "SSL_CERT_FILE", "value": "/etc/ssl/company/ca.crt"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
            }
        ),
        {
            f"{FETCH}.env[SSL_CERT_FILE]": {"name": "SSL_CERT_FILE", "value": "/etc/ssl/company/ca.crt"},
            f"{FETCH}.env[NODE]": {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            f"{FETCH}.volumeMounts[/etc/ssl/company]": {
                "name": "ca",
                "mountPath": "/etc/ssl/company",
                "readOnly": True,
            },
            f"{FETCH}.volumeMounts[/scratch]": {"name": "scratch", "mountPath": "/scratch"},
            f"{RUNTIME}.env[SSL_CERT_FILE]": {"name": "SSL_CERT_FILE", "value": "/etc/ssl/company/ca.crt"},
            f"{RUNTIME}.env[NODE]": {
                "name": "NODE",
                "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
            },
            f"{RUNTIME}.volumeMounts[/etc/ssl/company]": {
                "name": "ca",
                "mountPath": "/etc/ssl/company",
                "readOnly": True,
            },
            f"{RUNTIME}.volumeMounts[/scratch]": {"name": "scratch", "mountPath": "/scratch"},
            f"{POD}.volumes[ca]": {"name": "ca", "configMap": {"name": "company-ca"}},
            f"{POD}.volumes[scratch]": {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        },
    ),
)
