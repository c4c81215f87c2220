"""Memory and storage from the size of a model: what is asked for, and when pods are made for it."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.commands.render import format_yaml
from embedserve_operator.kube.objects import format_canonical_json
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.manifests.memory import compute_unplanned_memory
from embedserve_operator.observe.state import ReceivedObjects, observe
from embedserve_operator.plan import Plan, make_plan
from tests.operator.builders import OTHER_REPO, REPO, REPORT, SETTINGS, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached, started, succeeded
from tests.operator.rendering.case import DEPLOYMENT, FETCH, POD, RUNTIME
from tests.support.differences import find_differences

MIB = 2**20
WANT = {"memory": "448Mi", "ephemeral-storage": "704Mi"}
"""What a pod asks for with the model of `REPORT`, of 91 MB: 128 MiB for it, 448 for temporary files, 128 for logs."""
RESOURCES = {"limits": {"ephemeral-storage": "704Mi"}, "requests": WANT}
VOLUMES = {
    f"{POD}.volumes[models].emptyDir.sizeLimit": "128Mi",
    f"{POD}.volumes[tmp].emptyDir.sizeLimit": "448Mi",
    f"{FETCH}.resources.limits.ephemeral-storage": "704Mi",
    f"{FETCH}.resources.requests.ephemeral-storage": "704Mi",
}
"""What else is different in a pod that is made for the size of the model, beside its resources."""
PLANNED = {
    **REPORT,
    "memory": {
        "fixedBytes": 250 * MIB,
        "loadingBytes": 13 * MIB,
        "batchBytes": 16 * MIB,
        "tokenBytes": 20_000,
        "scoreBytes": 0,
        "longTokenBytes": 0,
        "resultNumbers": 384,
        "maxLength": 256,
    },
}
"""The same with the plan that the runtime makes of it."""
LIMIT = "640Mi"
PLANNED_STORAGE = "640Mi"
"""Storage of a pod with a claim: 512 MiB for temporary files, 128 for logs."""


def deployment(plan: Plan) -> dict[str, Any]:
    (manifest,) = [child for child in plan.children if child["kind"] == "Deployment"]
    return manifest


def template(cluster: Cluster) -> dict[str, Any]:
    pod_template: dict[str, Any] = deployment(cluster.plan())["spec"]["template"]
    return pod_template


def requests(cluster: Cluster) -> dict[str, Any]:
    resources = template(cluster)["spec"]["containers"][0].get("resources", {})
    requested: dict[str, Any] = resources.get("requests", {})
    return requested


def serving(**more: Any) -> Cluster:
    return Cluster(resource(hub_spec(REPO, **more))).applied().rolled_out().applied().published()


@pytest.mark.parametrize(
    ("size", "want"),
    [(1, 320), (91_000_000, 448), (440 * MIB, 960), (2200 * MIB, 3584)],
    ids=["a tiny one", "MiniLM", "a base model", "a large model"],
)
def test_memory_grows_with_the_files_in_steps(size: int, want: int) -> None:
    spec = EmbeddingServiceSpec.model_validate(hub_spec())
    assert compute_unplanned_memory(size, spec) == want * MIB


def test_pods_are_not_restarted_when_the_size_becomes_known() -> None:
    before = Cluster().applied()
    assert "memory" not in requests(before)
    cluster = serving()
    assert cluster.status().model is not None
    assert template(cluster) == template(before)


def test_the_next_change_of_the_template_takes_the_size_up() -> None:
    changed = serving().changed(hub_spec(REPO, batching={"maxBatchTokens": 1024}))
    assert requests(changed) == WANT
    after = changed.applied()
    assert requests(after.rolled_out().published()) == WANT
    before = Cluster(resource(hub_spec(REPO, batching={"maxBatchTokens": 1024}))).applied().plan()
    assert _changes(before, after.plan()) == {
        f"{DEPLOYMENT}.metadata.labels.embedserve.dev/vector-space": REPORT["vectorSpace"],
        f"{DEPLOYMENT}.metadata.annotations.embedserve.dev/generation": "2",
        f"{RUNTIME}.resources": RESOURCES,
        **VOLUMES,
    }


def test_another_size_of_the_same_revision_changes_nothing_by_itself() -> None:
    sized = serving().changed(hub_spec(REPO, batching={"maxBatchTokens": 1024})).applied().rolled_out()
    moved = sized.rolled_out(report={**REPORT, "sizeBytes": 10**10})
    assert template(moved) == template(sized)


def test_the_size_is_kept_while_no_pod_tells_it() -> None:
    sized = serving().changed(hub_spec(REPO, batching={"maxBatchTokens": 1024})).applied().rolled_out()
    without_reports = sized.published().started().changed(hub_spec(REPO, batching={"maxBatchTokens": 2048}))
    assert requests(without_reports) == WANT


@pytest.mark.parametrize(
    "resources",
    [{"requests": {"memory": "8Gi"}}, {"limits": {"memory": "8Gi"}}],
    ids=["a request", "a limit"],
)
def test_what_the_user_says_of_memory_counts(resources: dict[str, Any]) -> None:
    changed = serving().changed(hub_spec(REPO, resources=resources))
    amounts = template(changed)["spec"]["containers"][0]["resources"]
    named = {kind: amounts[kind]["memory"] for kind in amounts if "memory" in amounts[kind]}
    assert {kind: {"memory": amount} for kind, amount in named.items()} == resources


def test_cpus_of_the_user_and_memory_of_the_model_go_together() -> None:
    changed = serving().changed(hub_spec(REPO, resources={"requests": {"cpu": 2}}))
    assert requests(changed) == {"cpu": 2, **WANT}


def test_on_accelerators_the_size_says_nothing_of_the_memory_of_the_host() -> None:
    changed = serving(hardware={"class": "hopper"}).changed(
        hub_spec(REPO, hardware={"class": "hopper"}, batching={"maxBatchTokens": 1024})
    )
    # CPUs are the class's; kernels are kept with the model, and with temporary files.
    assert requests(changed) == {"nvidia.com/gpu": 1, "cpu": 8, "ephemeral-storage": "4608Mi"}


def test_where_a_job_has_fetched_the_first_pods_are_made_for_the_size() -> None:
    cluster = succeeded(started(Cluster(resource(cached()))), {"model": REPORT})
    want = {"memory": WANT["memory"], "ephemeral-storage": "576Mi"}
    assert requests(cluster) == want
    # What is rendered without a cluster is what there will be once everything is fetched, as far as it is known.
    rendered = make_plan(observe(ReceivedObjects(EmbeddingServiceObject.parse(resource(cached())))), SETTINGS)
    reported = {key: value for key, value in REPORT.items() if key != "onnxOutputs"}
    assert _changes(rendered, cluster.plan()) == {
        f"{DEPLOYMENT}.metadata.labels.embedserve.dev/vector-space": REPORT["vectorSpace"],
        f"{DEPLOYMENT}.spec.template.metadata.annotations.embedserve.dev/model": format_canonical_json(
            reported
        ),
        f"{RUNTIME}.resources": {"limits": {"ephemeral-storage": "576Mi"}, "requests": want},
        f"{POD}.volumes[tmp].emptyDir.sizeLimit": "448Mi",
    }


def test_where_the_runtime_has_planned_the_memory_it_is_request_and_limit() -> None:
    cluster = succeeded(started(Cluster(resource(cached()))), {"model": PLANNED})
    amounts = {"memory": LIMIT, "ephemeral-storage": PLANNED_STORAGE}
    want = {"limits": amounts, "requests": amounts}
    assert template(cluster)["spec"]["containers"][0]["resources"] == want
    later = cluster.applied().rolled_out(report=PLANNED).applied().published()
    assert template(later) == template(cluster), "what the pods report changes nothing"
    larger = later.changed(cached(batching={"maxBatchTokens": 16_384}))
    assert template(larger)["spec"]["containers"][0]["resources"]["limits"]["memory"] == "1216Mi"


def test_pods_that_were_made_without_a_plan_are_not_restarted_by_one() -> None:
    before = serving().changed(hub_spec(REPO, batching={"maxBatchTokens": 1_024})).applied()
    planned = before.rolled_out(report=PLANNED).applied().published()
    assert template(planned) == template(before)
    assert requests(planned.changed(hub_spec(REPO, batching={"maxBatchTokens": 2_048}))) == {
        "memory": LIMIT,
        "ephemeral-storage": "768Mi",
    }


def test_the_plan_is_kept_while_no_pod_tells_it() -> None:
    changed = Cluster(resource(hub_spec(REPO))).applied().rolled_out(report=PLANNED).applied().published()
    planned = changed.changed(hub_spec(REPO, batching={"maxBatchTokens": 1024})).applied()
    without_reports = planned.rolled_out(report=PLANNED).published().started()
    later = without_reports.changed(hub_spec(REPO, batching={"maxBatchTokens": 2048}))
    assert requests(later) == {"memory": LIMIT, "ephemeral-storage": "768Mi"}


@pytest.mark.parametrize("field", ["limits", "requests"])
def test_what_the_user_says_of_memory_counts_for_a_planned_model_too(field: str) -> None:
    resources = {field: {"memory": "8Gi"}}
    cluster = succeeded(started(Cluster(resource(cached(resources=resources)))), {"model": PLANNED})
    amounts = template(cluster)["spec"]["containers"][0]["resources"]
    assert {kind: amounts[kind].get("memory") for kind in amounts if "memory" in amounts[kind]} == {
        field: "8Gi"
    }


def test_a_new_model_starts_without_the_size_of_the_old_one() -> None:
    changed = serving().changed(hub_spec(OTHER_REPO))
    (new,) = [
        child
        for child in changed.plan().children
        if child["kind"] == "Deployment" and child["metadata"]["name"] == f"docs-{changed.revision()}"
    ]
    assert "memory" not in new["spec"]["template"]["spec"]["containers"][0].get("resources", {})


def _changes(before: Plan, after: Plan) -> dict[str, Any]:
    """Return what is different in a Deployment that was made for the size, beside the annotation that says so."""
    manifest = deployment(after)
    assert manifest["metadata"]["annotations"].pop("embedserve.dev/model-bytes") == str(REPORT["sizeBytes"])
    return find_differences(format_yaml([deployment(before)]), format_yaml([manifest]))
