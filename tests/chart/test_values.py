"""What each value of the chart changes in the objects that it renders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART
from tests.support.differences import GONE, find_differences

Template = Callable[..., str]

DEPLOYMENT = "Deployment embedserve-operator"
POD = f"{DEPLOYMENT}.spec.template.spec"
OPERATOR = f"{POD}.containers[operator]"
PREFLIGHT = "Pod embedserve-preflight.spec"
HARDWARE = {
    "hopper": {"maxSurge": 1},
    "l40s-pool": {
        "description": "Our L40S nodes",
        "computeCapabilities": ["8.9"],
        "nodeLabels": {"pool": "l40s"},
        "resourceName": "nvidia.com/gpu",
        "image": "cuda",
    },
}
TOLERATION = {"operator": "Exists"}
ELSEWHERE = frozenset({"crds", "fullnameOverride", "keda", "metricsAdapter", "prometheusAdapter", "storeGc"})
"""Values that other tests are about."""


def flags(place: str, *names: str) -> dict[str, Any]:
    """Flags that a container gets."""
    return {f"{place}.args[{flag}]": flag for flag in names}


def no_flags(place: str, *usual: str) -> dict[str, Any]:
    """Flags that a container has by default and gets no longer."""
    return {f"{place}.args[{flag}]": GONE for flag in usual}


def subjects(account: str) -> dict[str, Any]:
    """Another account that the rights are given to, and that is held to one label of pods."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "system"}
    bindings = ("ClusterRoleBinding embedserve-operator", "ClusterRoleBinding embedserve-operator-nodes")
    policy = "ValidatingAdmissionPolicy embedserve-operator-pods.spec.matchConditions[by-the-operator]"
    values = {
        f"{binding}.subjects[{name}]": value
        for binding in (*bindings, "RoleBinding embedserve-operator")
        for name, value in (("embedserve-operator", GONE), (account, subject))
    }
    condition = f"request.userInfo.username == 'system:serviceaccount:system:{account}'"
    return {**values, f"{policy}.expression": condition}


CASES = [
    pytest.param(
        {"image": {"repository": "registry.example/operator", "tag": "1.2.3", "pullPolicy": "Always"}},
        {
            f"{OPERATOR}.image": "registry.example/operator:1.2.3",
            f"{OPERATOR}.imagePullPolicy": "Always",
            f"{PREFLIGHT}.containers[preflight].image": "registry.example/operator:1.2.3",
            f"{PREFLIGHT}.containers[preflight].imagePullPolicy": "Always",
        },
        id="the operator and the preflight run the image",
    ),
    pytest.param(
        {"imagePullSecrets": [{"name": "registry"}]},
        {
            f"{POD}.imagePullSecrets": [{"name": "registry"}],
            f"{PREFLIGHT}.imagePullSecrets": [{"name": "registry"}],
        },
        id="the operator and the preflight pull their image with the Secret",
    ),
    pytest.param(
        {
            "runtime": {
                "image": {
                    "repository": "runtime",
                    "tag": "1-cpu",
                    "pullPolicy": "Always",
                    "architectures": ["amd64"],
                }
            }
        },
        no_flags(
            OPERATOR,
            "--runtime-image=embedserve-runtime:0.1.0-cpu",
            "--runtime-image-pull-policy=IfNotPresent",
            "--runtime-image-architectures=amd64,arm64",
        )
        | flags(
            OPERATOR,
            "--runtime-image=runtime:1-cpu",
            "--runtime-image-pull-policy=Always",
            "--runtime-image-architectures=amd64",
        ),
        id="services run the image for CPUs",
    ),
    pytest.param(
        {
            "runtime": {
                "cudaImage": {
                    "repository": "runtime",
                    "tag": "1-cuda",
                    "pullPolicy": "Always",
                    "architectures": ["arm64"],
                }
            }
        },
        no_flags(
            OPERATOR,
            "--cuda-image=embedserve-runtime:0.1.0-cuda",
            "--cuda-image-pull-policy=IfNotPresent",
            "--cuda-image-architectures=amd64,arm64",
        )
        | flags(
            OPERATOR,
            "--cuda-image=runtime:1-cuda",
            "--cuda-image-pull-policy=Always",
            "--cuda-image-architectures=arm64",
        ),
        id="services run the image for accelerators",
    ),
    pytest.param(
        {"runtime": {"hfEndpoint": "https://hub.example"}},
        flags(OPERATOR, "--hf-endpoint=https://hub.example"),
        id="models come from the hub",
    ),
    pytest.param(
        {"hardwareClasses": HARDWARE},
        {
            "ConfigMap of Deployment embedserve-operator": {"data": {"hardware-classes.yaml": HARDWARE}},
            f"{POD}.volumes[hardware]": {
                "name": "hardware",
                "configMap": {"name": "embedserve-operator-hardware"},
            },
            f"{OPERATOR}.volumeMounts[/etc/embedserve]": {
                "name": "hardware",
                "mountPath": "/etc/embedserve",
                "readOnly": True,
            },
            **flags(OPERATOR, "--hardware-classes=/etc/embedserve/hardware-classes.yaml"),
        },
        id="hardware classes are mounted where the operator is told to look",
    ),
    pytest.param(
        {"watch": {"nodes": False}},
        {
            "ClusterRole embedserve-operator-nodes": GONE,
            "ClusterRoleBinding embedserve-operator-nodes": GONE,
            **flags(OPERATOR, "--no-nodes"),
            **flags(f"{PREFLIGHT}.containers[preflight]", "--no-nodes"),
        },
        id="nobody may read nodes where nobody is to watch them",
    ),
    pytest.param(
        {"allowedEndpoints": ["*", "https://*.models.example"]},
        flags(OPERATOR, "--allowed-endpoint=*", "--allowed-endpoint=https://*.models.example"),
        id="the operator is told of the servers that Secrets may be sent to",
    ),
    pytest.param(
        {"runtime": {"allowedImages": ["registry.example/runtime"]}},
        flags(OPERATOR, "--allowed-image=registry.example/runtime"),
        id="the operator is told of the repositories that services may take images from",
    ),
    pytest.param(
        {"upgrade": {"maxConcurrent": 2}},
        no_flags(OPERATOR, "--max-concurrent-upgrades=5") | flags(OPERATOR, "--max-concurrent-upgrades=2"),
        id="the operator is told how many services roll at a time",
    ),
    pytest.param(
        {"planModels": True}, flags(OPERATOR, "--plan-models"), id="the operator has the size of models read"
    ),
    pytest.param(
        {"mesh": "linkerd"}, flags(OPERATOR, "--mesh=linkerd"), id="the operator is told of the mesh"
    ),
    pytest.param(
        {"runAs": 1000650000},
        {
            **flags(OPERATOR, "--run-as=1000650000"),
            **no_flags(OPERATOR, "--run-as=65532"),
            **{
                f"{pod}.securityContext.{field}": 1000650000
                for pod in (POD, PREFLIGHT)
                for field in ("runAsUser", "runAsGroup")
            },
        },
        id="all pods run as the user that is named",
    ),
    pytest.param(
        {"runAs": "platform"},
        {
            **flags(OPERATOR, "--run-as=platform"),
            **no_flags(OPERATOR, "--run-as=65532"),
            **{
                f"{pod}.securityContext.{field}": GONE
                for pod in (POD, PREFLIGHT)
                for field in ("runAsUser", "runAsGroup")
            },
        },
        id="the platform chooses the user of all pods",
    ),
    pytest.param(
        {"watch": {"operatorClass": "gpu-team"}},
        {
            **flags(OPERATOR, "--operator-class=gpu-team"),
            "ClusterRole embedserve-operator.metadata.labels.embedserve.dev/operator-class": "gpu-team",
        },
        id="one of several releases serves the resources of its class, and says so to the others",
    ),
    pytest.param(
        {"monitoring": {"namespaces": ["observability"]}},
        no_flags(OPERATOR, "--management-client=monitoring")
        | flags(OPERATOR, "--management-client=observability"),
        id="the monitoring comes from its namespaces",
    ),
    pytest.param({"replicas": 3}, {f"{DEPLOYMENT}.spec.replicas": 3}, id="there are as many operators"),
    pytest.param(
        {"logFormat": "json"},
        {**flags(OPERATOR, "--log-format=json"), **no_flags(OPERATOR, "--log-format=text")},
        id="the log is for programs",
    ),
    pytest.param(
        {"logLevel": "debug"},
        no_flags(OPERATOR, "--log-level=info") | flags(OPERATOR, "--log-level=debug"),
        id="the operator logs at the level",
    ),
    pytest.param(
        {"serviceAccount": {"name": "embedder"}},
        {
            "ServiceAccount embedserve-operator": GONE,
            "ServiceAccount embedder": {},
            f"{POD}.serviceAccountName": "embedder",
            f"{PREFLIGHT}.serviceAccountName": "embedder",
            **subjects("embedder"),
        },
        id="the rights are those of the named account",
    ),
    pytest.param(
        {"serviceAccount": {"create": False, "name": "embedder"}},
        {
            "ServiceAccount embedserve-operator": GONE,
            f"{POD}.serviceAccountName": "embedder",
            f"{PREFLIGHT}.serviceAccountName": "embedder",
            **subjects("embedder"),
        },
        id="an account of somebody else is not made",
    ),
    pytest.param(
        {"serviceAccount": {"annotations": {"example.com/role": "embedder"}}},
        {"ServiceAccount embedserve-operator.metadata.annotations": {"example.com/role": "embedder"}},
        id="the account has the annotations",
    ),
    pytest.param(
        {"resources": {"limits": {"memory": "512Mi"}}},
        {f"{OPERATOR}.resources.limits.memory": "512Mi"},
        id="the operator has the resources",
    ),
    pytest.param(
        {"nodeSelector": {"pool": "a"}, "tolerations": [TOLERATION], "affinity": {"nodeAffinity": {}}},
        {
            f"{POD}.nodeSelector.pool": "a",
            f"{POD}.tolerations": [TOLERATION],
            f"{POD}.affinity": {"nodeAffinity": {}},
        },
        id="the operator is placed where it is to be",
    ),
    pytest.param(
        {"podAnnotations": {"example.com/note": "here"}, "podLabels": {"example.com/team": "search"}},
        {
            f"{DEPLOYMENT}.spec.template.metadata.annotations": {"example.com/note": "here"},
            f"{DEPLOYMENT}.spec.template.metadata.labels.example.com/team": "search",
        },
        id="the pods of the operator have the labels and annotations",
    ),
]


def rendered(template: Template, values: Mapping[str, Any]) -> str:
    words = [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    return template("--set", "crds.enabled=false", *words)


@pytest.mark.parametrize(("values", "changes"), CASES)
def test_a_value_changes_what_is_said_of_it_and_nothing_else(
    template: Template, values: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    differences = find_differences(rendered(template, {}), rendered(template, values))
    checksum = f"{DEPLOYMENT}.spec.template.metadata.annotations"
    if "hardwareClasses" in values:
        assert differences.pop(checksum).keys() == {"checksum/hardware-classes"}, (
            "another file restarts the operator"
        )
    assert differences == changes


def test_every_value_is_in_a_case_or_has_a_test_of_its_own() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")).keys()
    tried = {name for case in CASES for name in case.values[0]}  # type: ignore[union-attr]
    assert values - tried == ELSEWHERE - {"fullnameOverride"}


def test_the_release_can_have_another_name_everywhere(template: Template) -> None:
    # An image of that name, which a tag follows, is not an object.
    usual = re.sub(r"\bembedserve-(?=(operator|preflight)\b(?!:))", "vectors-", rendered(template, {}))
    assert find_differences(usual, rendered(template, {"fullnameOverride": "vectors"})) == {}


def test_named_namespaces_are_watched_and_looked_at_by_the_preflight(template: Template) -> None:
    differences = find_differences(
        rendered(template, {}), rendered(template, {"watch": {"namespaces": ["search", "chat"]}})
    )
    named = ("--watch-namespace=search", "--watch-namespace=chat")
    rights = ("ClusterRole", "Role", "ValidatingAdmissionPolicy")
    pods = {path: value for path, value in differences.items() if not path.startswith(rights)}
    assert pods == flags(OPERATOR, *named) | flags(f"{PREFLIGHT}.containers[preflight]", *named)


def test_the_dashboard_is_the_file_with_the_labels(template: Template) -> None:
    labels = {"grafana_dashboard": "yes"}
    text = rendered(template, {"monitoring": {"dashboard": {"enabled": True, "labels": labels}}})
    (config_map,) = [
        document
        for document in yaml.safe_load_all(text)
        if document and document["metadata"]["name"] == "embedserve-dashboard"
    ]
    assert labels.items() <= config_map["metadata"]["labels"].items()
    file = (CHART / "dashboards" / "embedserve.json").read_text(encoding="utf-8")
    assert json.loads(config_map["data"]["embedserve.json"]) == json.loads(file)


def test_alerts_wait_a_while_and_name_the_namespace(template: Template) -> None:
    labels = {"release": "prometheus"}
    text = rendered(template, {"monitoring": {"prometheusRule": {"enabled": True, "labels": labels}}})
    (rule_manifest,) = [
        document for document in yaml.safe_load_all(text) if document and document["kind"] == "PrometheusRule"
    ]
    assert labels.items() <= rule_manifest["metadata"]["labels"].items()
    group, _ = rule_manifest["spec"]["groups"]
    assert {
        rule["alert"]: (rule["expr"], rule["for"], rule["labels"]["severity"]) for rule in group["rules"]
    } == {
        "EmbeddingServiceNotReady": ("min by (namespace, pod) (embedserve_ready) == 0", "15m", "warning"),
        "EmbeddingServiceQueueIsLong": (
            "max by (namespace, pod) (embedserve_queue_seconds) > 10",
            "5m",
            "warning",
        ),
        "EmbeddingServiceRefusesWork": (
            'sum by (namespace, pod) (rate(embedserve_requests_total{status="429"}[5m])) > 0',
            "10m",
            "warning",
        ),
        "EmbeddingServiceEngineFails": (
            "sum by (namespace, pod) (rate(embedserve_engine_failures_total[5m])) > 0",
            "5m",
            "critical",
        ),
        "EmbeddingServiceReplicasDiffer": (
            "count by (namespace, model) (count by (namespace, model, vector_space) (embedserve_model_info)) > 1",
            "30m",
            "warning",
        ),
    }
    for rule in group["rules"]:
        assert "{{ $labels.namespace }}" in rule["annotations"]["summary"]


def test_an_upgrade_that_has_failed_raises_an_alert(template: Template) -> None:
    text = rendered(template, {"monitoring": {"prometheusRule": {"enabled": True}}})
    (rule_manifest,) = [
        document for document in yaml.safe_load_all(text) if document and document["kind"] == "PrometheusRule"
    ]
    (alert,) = [
        rule
        for group in rule_manifest["spec"]["groups"]
        for rule in group["rules"]
        if rule["alert"] == "EmbedserveUpgradeFailed"
    ]
    assert alert["expr"] == "max(embedserve_operator_upgrades_failed) > 0"
    assert (alert["for"], alert["labels"]["severity"]) == ("5m", "critical")
    assert "{{ $value }}" in alert["annotations"]["summary"]


def test_on_openshift_the_platform_chooses_the_user_of_every_pod(template: Template) -> None:
    claims = ("--set", "storeGc.claims[0].namespace=a", "--set", "storeGc.claims[0].claimName=models")
    flagged = ("--api-versions", "security.openshift.io/v1", "--set", "metricsAdapter.enabled=true", *claims)
    text = template(*flagged)
    assert "runAsUser" not in text
    assert "fsGroup:" not in text
    assert "--run-as=platform" in text
    assert text.count("runAsNonRoot: true") == template(*flagged[2:]).count("runAsUser: 65532")


def test_every_alert_links_to_what_to_do_about_it(template: Template) -> None:
    page = (CHART.parents[1] / "docs" / "alerts.md").read_text(encoding="utf-8")
    base = "https://docs.example/alerts"
    text = rendered(template, {"monitoring": {"prometheusRule": {"enabled": True, "runbooks": base}}})
    (rule_manifest,) = [
        document for document in yaml.safe_load_all(text) if document and document["kind"] == "PrometheusRule"
    ]
    alerts = [rule for group in rule_manifest["spec"]["groups"] for rule in group["rules"]]
    assert len(alerts) == page.count("\n## ")
    for alert in alerts:
        assert f"\n## {alert['alert']}\n" in page
        assert alert["annotations"]["runbook_url"] == f"{base}#{alert['alert'].lower()}"


def test_the_operator_s_metrics_are_read_where_its_pods_serve_them(template: Template) -> None:
    text = rendered(template, {"monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "x"}}}})
    documents = [document for document in yaml.safe_load_all(text) if document]
    (monitor,) = [document for document in documents if document["kind"] == "PodMonitor"]
    (deployment,) = [
        document
        for document in documents
        if document["kind"] == "Deployment" and document["metadata"]["name"] == "embedserve-operator"
    ]
    pod = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "x"
