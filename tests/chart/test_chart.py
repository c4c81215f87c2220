"""The chart as helm renders it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from embedserve_operator.adapter.registration import API_PORT, API_SERVICE
from embedserve_operator.api.crd import build_crd
from embedserve_operator.api.hardware import HardwareClass, merge_classes
from embedserve_operator.commands.cli import build_parser
from embedserve_operator.commands.options import (
    build_adapter_settings,
    build_preflight_expectations,
    build_preflight_target,
    build_render_settings,
    build_run_settings,
)
from embedserve_operator.commands.preflight.facts import Expectations, OperatorTarget, Provider
from embedserve_operator.kube.kinds import (
    API_KINDS,
    CHILD_KINDS,
    CLUSTER_KINDS,
    OPTIONAL_KINDS,
    POD,
    RESOURCE,
)
from embedserve_operator.kube.permissions import CLUSTER_PERMISSIONS, SERVICE_PERMISSIONS, Permission
from embedserve_operator.manifests.autoscaler import METRICS
from embedserve_operator.manifests.metadata import CLAIM_LABEL, hash_claim_name
from embedserve_operator.settings import KedaSettings, LeaseSettings
from embedserve_runtime.commands.arguments import Invocation, parse_arguments
from tests.chart.conftest import CHART, Helm
from tests.operator.expected import assert_golden

HERE = Path(__file__).parent
ALL_VALUES = HERE / "all-values.yaml"

Template = Callable[..., str]


def objects(rendered: str, kind: str) -> list[Any]:
    return [
        document
        for document in yaml.load_all(rendered, Loader=yaml.CSafeLoader)
        if document and document["kind"] == kind
    ]


def cluster_roles(rendered: str) -> list[dict[str, Any]]:
    """The ClusterRoles that are given to somebody, without those that add to the cluster's own for users."""
    return [role for role in objects(rendered, "ClusterRole") if not _aggregates_to(role)]


def _aggregates_to(role: dict[str, Any]) -> set[str]:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    return {label.removeprefix(prefix) for label in role["metadata"]["labels"] if label.startswith(prefix)}


def test_default_values_give_exactly_the_reviewed_objects(template: Template) -> None:
    assert_golden(HERE / "golden" / "default.yaml", template("--set", "crds.enabled=false"))


def test_what_cleans_a_claim_is_exactly_the_reviewed_objects(template: Template) -> None:
    claim = {
        "namespace": "chat",
        "claimName": "models",
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"operator": "Exists"}],
    }
    values = {
        "claims": [claim],
        "schedule": "0 4 * * 0",
        "olderThan": "30d",
        "resources": {"limits": {"memory": "1Gi"}},
    }
    rendered = template(
        "--set-json", f"storeGc={json.dumps(values)}", "--show-only", "templates/store-gc.yaml"
    )
    assert_golden(HERE / "golden" / "store-gc.yaml", rendered)


def test_each_claim_is_cleaned_in_its_namespace(template: Template) -> None:
    cron_jobs = objects(template("--values", str(ALL_VALUES)), "CronJob")
    assert [(cron_job["metadata"]["namespace"], cron_job["metadata"]["name"]) for cron_job in cron_jobs] == [
        ("search", "vectors-gc-models"),
        ("chat", "vectors-gc-docs-models"),
    ]


def test_the_definition_is_installed_as_it_is_and_kept_on_uninstall(template: Template) -> None:
    (definition,) = objects(template(), "CustomResourceDefinition")
    assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert definition == build_crd()


def test_the_definition_goes_with_the_release_only_when_that_is_asked_for(template: Template) -> None:
    (definition,) = objects(template("--set", "crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in definition["metadata"]


def test_the_operator_understands_every_flag_that_the_chart_gives(template: Template) -> None:
    for values in (("--set", "logLevel=info"), ("--values", str(ALL_VALUES))):
        (deployment,) = objects(template(*values), "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        options = build_parser().parse_args(container["args"])
        assert options.command == "run"
        assert options.lease_name == deployment["metadata"]["name"]
        options.hardware_classes = None
        assert build_render_settings(options).images["cpu"].reference == options.runtime_image


def test_what_cleans_a_claim_is_started_as_it_understands_and_where_the_claim_is(template: Template) -> None:
    (cron, *_) = objects(template("--values", str(ALL_VALUES)), "CronJob")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]
    (in_use,), (clean,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    options = build_parser().parse_args(in_use["args"])
    assert (options.namespace, options.claim) == (cron["metadata"]["namespace"], "models")
    understood = parse_arguments(clean["args"])
    assert isinstance(understood, Invocation)
    assert (understood.command, understood.options["action"]) == ("store", "gc")
    assert understood.options["keep_from"] == Path(options.output)
    assert understood.options["only_keep"] is True
    assert understood.options["older_than"] == 30 * 86400
    mark = {CLAIM_LABEL: hash_claim_name("models")}
    assert mark.items() <= pod["metadata"]["labels"].items()
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == mark


def test_rights_are_the_least_that_work(template: Template) -> None:
    rendered = template()
    rules = [
        rule for role in (*cluster_roles(rendered), *objects(rendered, "Role")) for rule in role["rules"]
    ]
    for rule in rules:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert not {"serviceaccounts", "roles", "clusterroles"} & set(rule["resources"])
    on_secrets = [rule for rule in rules if "secrets" in rule["resources"]]
    (role,) = [role for role in objects(rendered, "Role") if role["metadata"]["namespace"] == "system"]
    assert all(rule in role["rules"] for rule in on_secrets), "in the operator's own namespace only"
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in on_secrets] == [
        (["create"], None),
        (["get"], ["embedserve-operator-pod-calls"]),
    ]
    on_resource = [rule for rule in rules if "embedserve.dev" in rule["apiGroups"]]
    assert [(rule["resources"], rule["verbs"]) for rule in on_resource] == [
        (["embeddingservices"], ["list", "watch"]),
        (["embeddingservices/status"], ["patch"]),
    ], "the user's resource can be read, and its status written, nothing else"


def test_the_operator_may_lead_by_the_lease_that_it_is_told_of(template: Template) -> None:
    (role,) = [role for role in objects(template(), "Role") if role["metadata"]["namespace"] == "system"]
    named = [rule for rule in role["rules"] if "resourceNames" in rule]
    (deployment,) = objects(template(), "Deployment")
    settings = LeaseSettings("system", deployment["metadata"]["name"])
    assert [rule["resourceNames"] for rule in named] == [[settings.name], [settings.call_key_secret]]


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        pytest.param(("--set", "runtime.imagee.tag=x"), "imagee", id="a misspelt value"),
        pytest.param(("--set", "replicas=-1"), "replicas", id="a negative number of operators"),
        pytest.param(("--set", "logLevel=loud"), "logLevel", id="an unknown log level"),
        pytest.param(
            ("--set", "runtime.hfEndpoint=hub.example"), "hfEndpoint", id="an address without scheme"
        ),
        pytest.param(("--set", "hardwareClasses.x.gpu=1"), "gpu", id="a misspelt field of a class"),
        pytest.param(("--set", "hardwareClasses.X.cpus=1"), "propertyName 'X'", id="a class with a capital"),
        pytest.param(
            ("--set", "runtime.image.architectures={riscv64}"), "architectures", id="an unknown architecture"
        ),
        pytest.param(("--set", "storeGc.olderThan=week"), "olderThan", id="an age in words"),
        pytest.param(
            ("--set", "storeGc.claims[0].claimName=models"), "namespace", id="a claim in no namespace"
        ),
        pytest.param(
            ("--set", "serviceAccount.create=false"), "serviceAccount.name", id="no service account"
        ),
    ],
)
def test_wrong_values_are_refused_with_the_name_of_the_value(
    helm: Helm, flags: tuple[str, ...], want: str
) -> None:
    result = helm("template", "x", str(CHART), "--kube-version", "1.34.2", *flags)
    assert result.returncode != 0
    assert want in result.stderr


def test_every_value_is_in_the_schema_and_every_default_is_valid() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(values)


def test_the_chart_has_the_version_of_the_operator() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (CHART.parents[1] / "operator" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{chart["appVersion"]}"' in project


def test_two_namespaces_give_the_same_rights_there_and_none_elsewhere(template: Template) -> None:
    everywhere = cluster_roles(template())
    named = template("--set", "watch.namespaces={a,b}")
    (all_rules,) = [role["rules"] for role in everywhere if not role["metadata"]["name"].endswith("-nodes")]
    roles = [role for role in objects(named, "Role") if role["metadata"]["name"].endswith("-services")]
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    assert [role["rules"] for role in roles] == [all_rules, all_rules]
    (nodes,) = cluster_roles(named)
    assert {verb for rule in nodes["rules"] for verb in rule["verbs"]} == {"list", "watch"}


def test_without_nodes_and_with_namespaces_nothing_is_asked_for_on_the_whole_cluster(
    template: Template,
) -> None:
    rendered = template("--set", "watch.namespaces={a}", "--set", "watch.nodes=false")
    assert cluster_roles(rendered) == objects(rendered, "ClusterRoleBinding") == []
    (deployment,) = objects(rendered, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = build_parser().parse_args(container["args"])
    assert (options.watch_namespace, options.no_nodes) == (["a"], True)


def test_every_kind_that_the_operator_makes_or_watches_is_one_that_it_may(template: Template) -> None:
    rules = [rule for role in cluster_roles(template()) for rule in role["rules"]]
    for kind in (RESOURCE, *CHILD_KINDS, POD, *CLUSTER_KINDS):
        api = API_KINDS[kind]
        verbs = {
            verb
            for rule in rules
            if api.group in rule["apiGroups"] and api.plural in rule["resources"]
            for verb in rule["verbs"]
        }
        needed = {"list"} if kind in OPTIONAL_KINDS else {"list", "watch"}
        needed |= {"get", "create", "patch", "delete"} if kind in CHILD_KINDS else set()
        needed |= {"patch"} if kind == POD else set()  # of labels
        assert verbs == needed, kind


def test_the_classes_of_the_values_are_ones_that_the_operator_can_read(template: Template) -> None:
    (config_map,) = [
        config
        for config in objects(template("--values", str(ALL_VALUES)), "ConfigMap")
        if config["metadata"]["name"].endswith("-hardware")
    ]
    classes = merge_classes(yaml.safe_load(config_map["data"]["hardware-classes.yaml"]))
    assert (classes["hopper"].max_surge, classes["hopper"].compute_capabilities) == (1, ("9.0",))
    assert classes["l40s-pool"].node_labels == {"pool": "l40s"}


def test_the_values_know_exactly_the_fields_of_a_hardware_class() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    fields = {field.alias for field in HardwareClass.model_fields.values()}
    assert set(schema["definitions"]["hardwareClass"]["properties"]) == fields


def test_preflight_asks_for_exactly_the_rights_that_the_chart_gives(template: Template) -> None:
    def rights(name: str) -> set[Permission]:
        return {
            Permission(group, resource, verb)
            for rule in rules_of(template(), "ClusterRole", name)
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    assert set(SERVICE_PERMISSIONS) == rights("embedserve-operator")
    assert set(CLUSTER_PERMISSIONS) == rights("embedserve-operator-nodes")


@pytest.mark.parametrize(
    ("values", "provider"),
    [
        ((), "auto"),
        (("--set", "metricsAdapter.enabled=true"), "adapter"),
        (("--set", "keda.enabled=true"), "keda"),
        (("--set", "prometheusAdapter.rules=true"), "prometheus-adapter"),
    ],
)
def test_helm_test_looks_for_what_the_values_ask_for(
    template: Template, values: tuple[str, ...], provider: Provider
) -> None:
    watched = ("--set", "watch.namespaces={a,b}", "--set", "watch.nodes=false")
    (pod,) = objects(template(*values, *watched), "Pod")
    options = build_parser().parse_args(pod["spec"]["containers"][0]["args"])
    assert build_preflight_expectations(options) == Expectations(provider, is_installed=True)
    assert build_preflight_target(options) == OperatorTarget(
        "system", "embedserve-operator", None, ("a", "b"), watches_nodes=False
    )


def test_one_operator_has_no_budget_that_would_keep_its_node_from_being_drained(template: Template) -> None:
    assert objects(template("--set", "replicas=1"), "PodDisruptionBudget") == []
    assert len(objects(template(), "PodDisruptionBudget")) == 1


ADAPTER = ("--set", "metricsAdapter.enabled=true")


def rules_of(rendered: str, kind: str, name: str) -> Any:
    (role,) = [candidate for candidate in objects(rendered, kind) if candidate["metadata"]["name"] == name]
    return role["rules"]


def test_the_metrics_adapter_is_exactly_the_reviewed_objects(template: Template) -> None:
    only = ("templates/metrics-adapter.yaml", "templates/metrics-adapter-rbac.yaml")
    flags = [word for name in only for word in ("--show-only", name)]
    assert_golden(HERE / "golden" / "metrics-adapter.yaml", template(*ADAPTER, *flags))


def test_operator_and_adapter_understand_what_the_chart_tells_them_of_each_other(template: Template) -> None:
    arguments = {}
    for deployment in objects(template(*ADAPTER), "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        arguments[container["name"]] = (deployment["metadata"], build_parser().parse_args(container["args"]))
    operator, (metadata, adapter) = arguments["operator"][1], arguments["adapter"]
    settings = build_adapter_settings(adapter)
    place = build_run_settings(operator).adapter
    assert place == settings.adapter
    assert (metadata["namespace"], metadata["name"]) == (settings.adapter.namespace, settings.adapter.name)
    (service,) = objects(template(*ADAPTER), "Service")
    assert service["metadata"]["name"] == settings.adapter.name
    assert service["spec"]["ports"][0]["port"] == API_PORT


def test_the_adapter_may_read_pods_and_what_it_is_trusted_by_and_write_only_its_certificates(
    template: Template,
) -> None:
    name = "embedserve-metrics-adapter"
    rules = rules_of(template(*ADAPTER), "ClusterRole", name) + rules_of(template(*ADAPTER), "Role", name)
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["apiservices"], ["get"]),
        (["pods"], ["list"]),
        (["configmaps"], ["get", "update"]),
    ]
    named = template(*ADAPTER, "--set", "watch.namespaces={a,b}")
    assert [rule["resources"] for rule in rules_of(named, "ClusterRole", name)] == [["apiservices"]]
    pods = [role for role in objects(named, "Role") if role["metadata"]["name"] == f"{name}-pods"]
    assert [role["metadata"]["namespace"] for role in pods] == ["a", "b"]


def test_the_operator_may_write_one_api_service_and_only_with_the_adapter(template: Template) -> None:
    rules = rules_of(template(*ADAPTER), "ClusterRole", "embedserve-operator-metrics")
    writing = [rule for rule in rules if {"create", "patch", "delete"} & set(rule["verbs"])]
    assert [rule["resourceNames"] for rule in writing] == [[API_SERVICE]]
    assert "apiservices" not in template()
    assert "metrics-adapter" not in template()


def test_one_adapter_has_no_budget_that_would_keep_its_node_from_being_drained(template: Template) -> None:
    flags = (*ADAPTER, "--set", "metricsAdapter.replicas=1", "--set", "replicas=1")
    assert objects(template(*flags), "PodDisruptionBudget") == []


def test_the_rules_for_a_prometheus_adapter_tell_every_metric_that_can_be_scaled_by(
    template: Template,
) -> None:
    (config_map,) = objects(template("--set", "prometheusAdapter.rules=true"), "ConfigMap")
    rules = yaml.safe_load(config_map["data"]["config.yaml"])["rules"]
    assert {rule["seriesQuery"].partition("{")[0] for rule in rules} == set(METRICS.values())


def test_keda_takes_the_place_of_the_adapter_and_may_read_the_pods(template: Template) -> None:
    flags = ("--set", "keda.enabled=true", "--set", "keda.prometheusAddress=http://prometheus:9090")
    (deployment,) = objects(template(*flags), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = build_render_settings(build_parser().parse_args(container["args"]))
    assert settings.keda == KedaSettings("http://prometheus:9090")
    assert "keda" in settings.management_clients
    options = build_render_settings(build_parser().parse_args(["run"]))
    assert options.keda is None


def test_keda_and_the_adapter_exclude_each_other(helm: Helm) -> None:
    flags = (*ADAPTER, "--set", "keda.enabled=true")
    result = helm("template", "x", str(CHART), "--kube-version", "1.34.2", *flags)
    assert result.returncode != 0
    assert "exclude each other" in result.stderr


def test_who_may_view_edit_or_administer_a_namespace_may_do_so_with_its_services(template: Template) -> None:
    allowed: dict[str, set[tuple[str, str]]] = {}
    for role in objects(template(), "ClusterRole"):
        for target in _aggregates_to(role):
            rules = {
                (resource, verb)
                for rule in role["rules"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                if rule["apiGroups"] == ["embedserve.dev"]
            }
            allowed[target] = allowed.get(target, set()) | rules
    assert set(allowed) == {"view", "edit", "admin"}
    assert {verb for _, verb in allowed["view"]} == {"get", "list", "watch"}
    assert {
        ("embeddingservices", verb) for verb in ("get", "create", "update", "patch", "delete")
    } <= allowed["edit"]
    assert allowed["edit"] == allowed["admin"]
    assert not {
        pair
        for pair in allowed["admin"]
        if pair[0].endswith("status") and pair[1] not in ("get", "list", "watch")
    }
    assert "aggregate-to" not in template("--set", "crds.enabled=false")


def test_the_operator_is_held_to_one_label_of_pods_where_it_may_patch_those_of_all_namespaces(
    template: Template,
) -> None:
    (policy,) = objects(template(), "ValidatingAdmissionPolicy")
    (deployment,) = objects(template(), "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"'system:serviceaccount:system:{account}'" in policy["spec"]["matchConditions"][0]["expression"]
    (binding,) = objects(template(), "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert objects(template("--set", "watch.namespaces={a}"), "ValidatingAdmissionPolicy") == []
