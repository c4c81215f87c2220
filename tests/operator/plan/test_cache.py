"""Models on volumes: one fetch, one conversion, and pods only when both are there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from embedserve_operator.api.status import ConversionStatus, FetchStatus
from embedserve_operator.api.times import format_moment
from embedserve_operator.kube.views.workloads import Job
from embedserve_operator.observe.pods import read_mounted_config_map
from tests.operator.builders import OTHER_REPO, REPORT, Cluster, hub_spec, resource
from tests.operator.cache_builders import (
    CONVERSION,
    VOLUME,
    cached,
    claim,
    cleared,
    failed,
    retrying,
    running,
    serving,
    started,
    succeeded,
    with_claim,
)

SHARED = {"claimName": "models"}
INT8: dict[str, Any] = {"precision": "int8"}


def fetch_of(cluster: Cluster) -> FetchStatus:
    status = cluster.status().fetch
    assert status is not None
    return status


def conversion_of(cluster: Cluster) -> ConversionStatus:
    status = cluster.status().conversion
    assert status is not None
    return status


def names(cluster: Cluster) -> list[str]:
    return sorted(job["metadata"]["name"] for job in cluster.jobs)


def test_the_claim_is_made_first_then_the_job_then_the_pods() -> None:
    empty = Cluster(resource(cached()))
    assert empty.plan().jobs_to_create == ()
    assert empty.names("Deployment") == []
    with_claim_made = empty.applied()
    assert [received["metadata"]["name"] for received in with_claim_made.claims] == ["docs-models"]
    fetching = started(with_claim_made)
    assert fetching.names("Deployment") == []
    assert running(fetching)["metadata"]["name"].startswith("docs-fetch-")
    assert len(succeeded(fetching).applied().names("Deployment")) == 1


def test_while_the_model_is_fetched_the_service_says_so() -> None:
    conditions = started(Cluster(resource(cached()))).conditions()
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "PreparingModel")
    assert conditions["Reconciling"].reason == "PreparingModel"
    assert "is fetching the model" in conditions["Reconciling"].message


def test_what_the_job_found_is_published_before_any_pod_says_it() -> None:
    status = succeeded(started(Cluster(resource(cached())))).status()
    assert status.fetch is not None
    assert (status.fetch.state, status.fetch.revision) == ("Succeeded", REPORT["revision"])
    assert status.vector_space is not None
    assert status.vector_space.id == REPORT["vectorSpace"]


def test_a_service_that_serves_from_its_cache_is_ready_and_at_rest() -> None:
    cluster = serving(cached())
    assert set(cluster.conditions()) == {"Ready"}
    assert cluster.applied() == cluster


def test_a_job_that_was_cleared_away_is_not_run_again() -> None:
    cluster = cleared(serving(cached()))
    assert cluster.plan().jobs_to_create == ()
    assert cluster.applied().jobs == ()
    assert fetch_of(cluster).digest == REPORT["digest"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"replicas": 3}, id="replicas"),
        pytest.param({"batching": {"maxBatchTokens": 100}}, id="batching"),
        pytest.param({"resources": {"limits": {"memory": "2Gi"}}}, id="resources"),
    ],
)
def test_what_does_not_concern_the_model_fetches_nothing(change: dict[str, Any]) -> None:
    changed = cleared(serving(cached())).changed(cached(**change))
    assert changed.plan().jobs_to_create == ()


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(hub_spec(OTHER_REPO, cache=VOLUME), id="another model"),
        pytest.param(cached(model={"refresh": "again"}), id="a refresh"),
        pytest.param(cached(model={"onnxFile": "onnx/model.onnx"}), id="another file"),
    ],
)
def test_another_model_is_fetched_while_the_old_one_serves(spec: dict[str, Any]) -> None:
    cluster = serving(cached())
    old = cluster.names("Deployment")
    fetching = started(cluster.changed(spec))
    assert fetching.names("Deployment") == old
    assert len(names(fetching)) == 2
    assert fetching.conditions()["Ready"].reason == "PreviousRevisionServing"
    assert fetching.conditions()["Reconciling"].reason == "PreparingModel"
    assert len(started(succeeded(fetching)).names("Deployment")) == 2


def test_a_model_that_cannot_be_fetched_takes_nothing_away() -> None:
    cluster = failed(started(serving(cached()).changed(cached(model={"refresh": "again"}))))
    conditions = cluster.conditions()
    assert conditions["Ready"].status == "True"
    assert (conditions["Stalled"].reason, conditions["Stalled"].status) == ("SourceUnavailable", "True")
    assert started(cluster).names("Deployment") == serving(cached()).names("Deployment")


@pytest.mark.parametrize(
    ("reason", "retryable", "condition"),
    [("SourceUnavailable", True, "Reconciling"), ("ModelNotFound", False, "Stalled")],
)
def test_why_a_fetch_fails_is_said_while_it_is_tried_again(
    reason: str, retryable: bool, condition: str
) -> None:
    cluster = retrying(started(Cluster(resource(cached()))), reason, retryable=retryable)
    assert cluster.conditions()[condition].reason == reason
    assert cluster.plan().jobs_to_delete == ()


def test_a_fetch_that_was_given_up_stays_so_when_its_job_is_cleared_away() -> None:
    cluster = started(cleared(failed(started(Cluster(resource(cached())))).published()))
    assert cluster.jobs == ()
    stalled = cluster.conditions()["Stalled"]
    assert stalled.reason == "SourceUnavailable"
    assert "the hub does not answer; Job docs-fetch-" in stalled.message


@pytest.mark.parametrize("is_cleared", [False, True], ids=["there", "cleared away"])
def test_a_fetch_that_was_given_up_is_tried_again_when_the_resource_changes(is_cleared: bool) -> None:
    cluster = started(failed(started(Cluster(resource(cached())))))
    cluster = started((cleared(cluster) if is_cleared else cluster).changed(cached(replicas=2)))
    assert running(cluster)
    assert "Stalled" not in cluster.conditions()


def test_a_job_without_a_word_at_its_end_is_run_again() -> None:
    cluster = succeeded(started(Cluster(resource(cached()))))
    silent = replace(cluster, job_pods=())
    assert len(silent.plan().jobs_to_delete) == 1
    assert running(started(silent))


def test_a_new_volume_is_filled_anew_with_the_same_commit() -> None:
    cluster = cleared(serving(cached()))
    emptied = replace(
        cluster,
        claims=tuple(
            {**received, "metadata": {**received["metadata"], "uid": "2"}} for received in cluster.claims
        ),
    )
    job = running(started(emptied))
    pin = f"docs-{cluster.revision()}-pin"
    assert pin in str(job)
    assert next(c for c in emptied.applied().children if c["metadata"]["name"] == pin)["data"] == {
        "commit": REPORT["revision"]
    }


def test_a_pin_that_somebody_deleted_comes_back() -> None:
    cluster = serving(cached())
    name = f"docs-{cluster.revision()}-pin"
    without = replace(cluster, children=tuple(c for c in cluster.children if c["metadata"]["name"] != name))
    assert name in without.applied().names("ConfigMap")


def test_a_commit_needs_no_pin() -> None:
    source = {"huggingFace": {"repo": "a/b", "revision": REPORT["revision"]}}
    cluster = serving({"model": {"source": source}, "cache": VOLUME})
    assert [name for name in cluster.names("ConfigMap") if name.endswith("-pin")] == []


def test_a_claim_outlives_the_cache_that_it_was_made_for() -> None:
    cluster = serving(cached())
    assert "ownerReferences" not in cluster.claims[0]["metadata"]
    assert [child.ref.kind for child in started(cluster.changed(hub_spec())).plan().prune] == []


def test_a_claim_that_is_to_go_goes_with_the_cache() -> None:
    cluster = serving(cached({"volume": {"size": "1Gi", "whenDeleted": "Delete"}}))
    assert "ownerReferences" in cluster.claims[0]["metadata"]
    plan = cluster.changed(hub_spec()).plan()
    assert "PersistentVolumeClaim" in {child.ref.kind for child in plan.prune}


def test_a_claim_that_is_not_there_is_named_and_waited_for() -> None:
    condition = started(with_claim(cached(SHARED))).conditions()["Reconciling"]
    assert (condition.reason, "models" in condition.message) == ("VolumeClaimMissing", True)


def test_a_filled_claim_needs_no_job() -> None:
    cluster = with_claim(cached({**SHARED, "readOnly": True}), claim("ReadOnlyMany"))
    assert cluster.plan().jobs_to_create == ()
    assert len(cluster.applied().names("Deployment")) == 1


class TestConversion:
    """The second Job."""

    def test_it_runs_after_the_fetch_and_before_the_pods(self) -> None:
        fetched = started(succeeded(started(Cluster(resource(cached(onnx=INT8))))))
        assert running(fetched)["metadata"]["name"].startswith("docs-convert-")
        assert fetched.names("Deployment") == []
        assert "is converting the model" in fetched.conditions()["Reconciling"].message
        assert len(started(succeeded(fetched)).names("Deployment")) == 1

    def test_its_measurements_are_published_and_stay(self) -> None:
        cluster = cleared(serving(cached(onnx=INT8)))
        status = conversion_of(cluster)
        assert (status.state, status.chosen, status.fallback) == ("Succeeded", "int8", None)
        assert [variant.mean_cosine for variant in status.variants] == [None, 0.9991]
        assert cluster.plan().jobs_to_create == ()

    def test_a_variant_below_the_floor_is_said_to_be_replaced(self) -> None:
        report = {
            **CONVERSION,
            "chosen": "float32",
            "variants": [
                {
                    "precision": "int8",
                    "published": False,
                    "reason": "least cosine 0.98 is below 0.99",
                    "minCosine": 0.98,
                }
            ],
        }
        fetched = started(succeeded(started(Cluster(resource(cached(onnx=INT8))))))
        cluster = started(succeeded(fetched, {"conversion": report}))
        fallback = conversion_of(cluster).fallback
        assert fallback == "float32 is served, not int8: least cosine 0.98 is below 0.99"
        assert len(cluster.names("Deployment")) == 1

    @pytest.mark.parametrize(
        ("spec", "fallback"),
        [
            pytest.param({"onnx": INT8}, None, id="the fastest that passed"),
            pytest.param({"onnx": INT8, "model": {"precision": "int8"}}, None, id="that one by name"),
            pytest.param(
                {"onnx": INT8, "model": {"precision": "float16"}},
                "float32 is served, not float16: it was not tried on this processor by onnx.precision: int8",
                id="one that was not tried",
            ),
            pytest.param(
                {"onnx": {"precision": "float16"}, "model": {"precision": "int8"}},
                "int8 is served, not float16: it was not tried on this processor by onnx.precision: float16",
                id="one of the two that are named",
            ),
        ],
    )
    def test_a_precision_that_is_named_and_not_served_is_said_with_the_cause(
        self, spec: dict[str, Any], fallback: str | None
    ) -> None:
        assert conversion_of(serving(cached(**spec))).fallback == fallback

    def test_it_is_said_of_a_precision_that_is_named_later_when_the_job_is_gone(self) -> None:
        cluster = cleared(serving(cached(onnx=INT8)))
        later = cluster.changed(cached(onnx=INT8, model={"precision": "float16"}))
        assert str(conversion_of(later).fallback).startswith("float32 is served, not float16: ")

    def test_where_it_is_not_insisted_upon_a_failure_keeps_nobody_from_serving(self) -> None:
        fetched = started(succeeded(started(Cluster(resource(cached(onnx=INT8))))))
        cluster = started(failed(fetched, "ModelInvalid", retryable=False))
        assert len(cluster.names("Deployment")) == 1
        assert (conversion_of(cluster).state, conversion_of(cluster).reason) == ("Failed", "ModelInvalid")

    def test_where_it_is_insisted_upon_a_failure_is_told(self) -> None:
        spec = cached(onnx={"convert": "Always"})
        fetched = started(succeeded(started(Cluster(resource(spec)))))
        cluster = started(failed(fetched, "ModelInvalid", retryable=False))
        assert cluster.names("Deployment") == []
        assert cluster.conditions()["Stalled"].reason == "ModelInvalid"

    def test_files_for_other_programs_are_another_conversion_of_the_same_pods(self) -> None:
        cluster = serving(cached(onnx=INT8))
        again = started(cluster.changed(cached(onnx={**INT8, "outputs": ["last_hidden_state"]})))
        job = running(again)
        assert job["metadata"]["name"] not in names(cluster)
        (config,) = [
            child["data"]["runtime.yaml"]
            for child in again.children
            if child["metadata"]["name"] == read_mounted_config_map(Job.parse(job).spec.template.spec)
        ]
        assert yaml.safe_load(config)["onnx"]["outputs"] == ["last_hidden_state"]
        assert again.names("Deployment") == cluster.names("Deployment")

    @pytest.mark.parametrize("serves", [False, True], ids=["before the first pod", "while it serves"])
    def test_an_output_that_the_model_does_not_give_is_refused_with_what_it_gives(self, serves: bool) -> None:
        spec = cached(onnx={"outputs": ["last_hidden_state", "logits"]})
        cluster = serving(cached(onnx={})).changed(spec) if serves else Cluster(resource(spec))
        cluster = started(cluster)
        if not serves:
            cluster = started(succeeded(cluster))
        stalled = cluster.conditions()["Stalled"]
        assert stalled.reason == "OnnxOutputsMissing"
        assert "logits are not available from" in stalled.message
        assert "which can give last_hidden_state, sentence_embedding" in stalled.message
        assert not [job for job in cluster.jobs if "status" not in job]
        assert len(cluster.names("Deployment")) == serves
        assert (cluster.conditions()["Ready"].status == "True") == serves

    def test_where_it_is_not_known_what_a_model_gives_the_conversion_says_it(self) -> None:
        old = {key: value for key, value in REPORT.items() if key != "onnxOutputs"}
        spec = cached(onnx={"outputs": ["logits"]})
        fetched = started(succeeded(started(Cluster(resource(spec))), {"model": old}))
        cluster = started(failed(fetched, "ConfigInvalid", retryable=False))
        assert cluster.conditions()["Stalled"].reason == "ConfigInvalid"
        assert cluster.names("Deployment") == []

    @pytest.mark.parametrize(
        "spec",
        [
            pytest.param(cached(), id="not asked for"),
            pytest.param(cached(onnx={"convert": "Never"}), id="switched off"),
            pytest.param(cached(onnx={}, engine="torch"), id="another engine"),
            pytest.param(cached(onnx={}, hardware={"class": "hopper"}), id="a class with another engine"),
        ],
    )
    def test_it_is_not_made_for_nothing(self, spec: dict[str, Any]) -> None:
        fetched = started(succeeded(started(Cluster(resource(spec)))))
        assert len(fetched.names("Deployment")) == 1
        assert fetched.status().conversion is None

    def test_pods_go_on_with_what_they_have_while_it_is_made_anew(self) -> None:
        cluster = serving(cached(onnx=INT8))
        before = [child for child in cluster.children if child["kind"] == "Deployment"]
        floors = {"parity": {"minCosine": 0.999}}
        again = started(cluster.changed(cached(onnx={**INT8, **floors})))
        assert running(again)["metadata"]["name"].startswith("docs-convert-")
        assert [child for child in again.children if child["kind"] == "Deployment"] == before
        assert again.conditions()["Ready"].status == "True"
        assert again.conditions()["Reconciling"].reason == "PreparingModel"

    def test_pods_go_on_being_scaled_while_it_is_made_anew(self) -> None:
        scaling: dict[str, Any] = {"autoscaling": {"maxReplicas": 4}}
        cluster = serving(cached(onnx=INT8, **scaling))
        floors = {"parity": {"minCosine": 0.999}}
        again = started(cluster.changed(cached(onnx={**INT8, **floors}, **scaling)))
        assert running(again)
        assert again.names("HorizontalPodAutoscaler") == again.names("Deployment")


class TestSharedClaim:
    """Two services, one claim."""

    CLAIM = claim("ReadWriteMany")

    def share_claim(self, cluster: Cluster, **more: Any) -> Cluster:
        """A second service that sees what is around the claim."""
        received = resource(cached(SHARED, onnx=INT8, **more), name="other")
        received["metadata"]["uid"] = "22222222-2222-2222-2222-222222222222"
        return replace(Cluster(received), claims=cluster.claims, jobs=cluster.jobs, job_pods=cluster.job_pods)

    def first(self) -> Cluster:
        return started(with_claim(cached(SHARED, onnx=INT8), self.CLAIM))

    def test_the_second_waits_for_the_job_of_the_first(self) -> None:
        first = self.first()
        second = started(self.share_claim(first))
        assert names(second) == names(first)
        assert second.plan().jobs_to_create == ()
        assert "models-fetch-" in second.conditions()["Reconciling"].message

    def test_both_take_the_result_of_one_conversion(self) -> None:
        first = started(succeeded(started(succeeded(self.first()))))
        second = started(self.share_claim(first))
        assert names(second) == names(first)
        assert len(second.names("Deployment")) == 1
        assert conversion_of(second).artifact == CONVERSION["artifact"]

    def test_if_the_first_goes_the_second_takes_over(self) -> None:
        second = started(self.share_claim(self.first()))
        orphaned = replace(second, jobs=(), job_pods=())
        assert names(started(orphaned)) == names(second)

    def test_the_first_job_is_not_pulled_away_because_the_second_is_made_otherwise(self) -> None:
        second = self.share_claim(self.first(), pod={"nodeSelector": {"disk": "fast"}})
        assert second.plan().jobs_to_delete == ()

    def test_a_second_with_another_token_tries_what_the_first_could_not_and_both_come_to_rest(self) -> None:
        first = started(failed(self.first(), "ModelAccessDenied", retryable=False))
        token = {
            "source": {
                "huggingFace": {
                    "repo": "sentence-transformers/all-MiniLM-L6-v2",
                    "tokenSecretRef": {"name": "hub", "key": "t"},
                }
            }
        }
        second = started(self.share_claim(first, model=token))
        again = started(failed(second, "ModelAccessDenied", retryable=False))
        for cluster in (again, started(replace(first, jobs=again.jobs, job_pods=again.job_pods))):
            assert cluster.conditions()["Stalled"].reason == "ModelAccessDenied"
            assert (cluster.plan().jobs_to_create, cluster.plan().jobs_to_delete) == ((), ())

    def test_vectors_that_are_made_otherwise_are_asked_for_by_themselves(self) -> None:
        first = self.first()
        second = started(self.share_claim(first, model={"pooling": "cls"}))
        assert len(names(second)) == 2


def lost(cluster: Cluster, at: str) -> Cluster:
    """After a restarted pod did not find the whole model on the volume."""
    message = json.dumps(
        {"reason": "ModelNotStored", "message": "model.safetensors is missing", "retryable": True}
    )
    ended = {"terminated": {"exitCode": 1, "message": message, "finishedAt": at}}
    crashed = {"name": "runtime", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    return cluster.started(containerStatuses=[crashed])


@pytest.mark.parametrize("is_cleared", [False, True], ids=["there", "cleared away"])
def test_what_is_gone_from_the_volume_is_fetched_and_converted_again(is_cleared: bool) -> None:
    cluster = serving(cached(onnx=INT8))
    deployments = cluster.names("Deployment")
    cluster = lost(cleared(cluster) if is_cleared else cluster, "2026-01-02T12:30:00Z")
    again = started(cluster)
    assert again.conditions()["Reconciling"].reason == "PreparingModel"
    assert running(again)["metadata"]["labels"]["app.kubernetes.io/component"] == "fetch"
    assert again.names("Deployment") == deployments
    fetched = succeeded(again, finished="2026-01-02T12:40:00Z")
    converting = started(fetched)
    assert running(converting)["metadata"]["labels"]["app.kubernetes.io/component"] == "convert"
    converted = started(succeeded(converting, finished="2026-01-02T12:41:00Z"))
    assert all("status" in job for job in converted.jobs), (
        "what was lost before the fetch is not a reason for another"
    )
    assert converted.names("Deployment") == deployments


def test_a_look_from_before_the_fetch_fetches_nothing_again() -> None:
    cluster = lost(serving(cached()), "2026-01-02T11:59:00Z")
    plan = cluster.plan()
    assert (plan.jobs_to_create, plan.jobs_to_delete) == ((), ())
    assert cluster.conditions()["Reconciling"].reason == "ModelNotStored"


def test_a_filled_volume_without_the_model_is_named_and_not_written() -> None:
    filled = started(with_claim(cached({"claimName": "models", "readOnly": True}), claim("ReadOnlyMany")))
    lacking = lost(filled.rolled_out(), "2026-01-02T12:30:00Z")
    assert lacking.plan().jobs_to_create == ()
    assert lacking.conditions()["Ready"].reason == "ModelNotStored"


def deleted(cluster: Cluster) -> Cluster:
    """After somebody deleted the claim, which stays as long as a pod mounts it."""
    stamp = {"deletionTimestamp": "2026-01-02T12:30:00Z"}
    going = tuple({**received, "metadata": {**received["metadata"], **stamp}} for received in cluster.claims)
    return replace(cluster, claims=going)


def test_nothing_of_a_finished_job_keeps_a_claim_that_was_deleted() -> None:
    cluster = deleted(serving(cached()))
    assert cluster.plan().jobs_to_delete == cluster.observed().jobs
    assert len(cluster.plan().jobs_to_delete) == 1
    assert len(cluster.applied().names("Deployment")) == 1, "what runs goes on"


def test_a_running_job_goes_with_its_claim_unless_it_is_another_service_s() -> None:
    fetching = started(Cluster(resource(cached())))
    assert [job.name for job in deleted(fetching).plan().jobs_to_delete] == names(fetching)
    jobs_of_others = [
        {**job, "metadata": {**job["metadata"], "ownerReferences": [{"uid": "2", "controller": True}]}}
        for job in fetching.jobs
    ]
    assert deleted(replace(fetching, jobs=tuple(jobs_of_others))).plan().jobs_to_delete == ()


@pytest.mark.parametrize(("available", "ready"), [(True, "True"), (False, "False")])
def test_that_the_claim_is_going_is_said_whether_pods_still_run_or_not(available: bool, ready: str) -> None:
    cluster = deleted(serving(cached()))
    conditions = (cluster if available else cluster.started()).conditions()
    assert conditions["Ready"].status == ready
    assert conditions["Reconciling"].reason == "VolumeClaimTerminating"
    assert "docs-models is being deleted" in conditions["Reconciling"].message


def test_no_job_is_started_on_a_claim_that_is_going() -> None:
    cluster = deleted(cleared(serving(cached()))).changed(cached(model={"refresh": "again"}))
    assert cluster.plan().jobs_to_create == ()


def enlarged(cluster: Cluster, size: str) -> Cluster:
    """After an administrator enlarged the claim, and the API server spelt that in its own way."""
    requests = {"requests": {"storage": size}}
    claims = tuple(
        {**received, "spec": {**received["spec"], "resources": requests}} for received in cluster.claims
    )
    return replace(cluster, claims=claims)


@pytest.mark.parametrize(
    ("live", "desired", "sent"),
    [
        ("50Gi", "20Gi", "50Gi"),
        ("50Gi", "60Gi", "60Gi"),
        ("20Gi", "20480Mi", "20480Mi"),
        ("20Gi", "1", "20Gi"),
    ],
)
def test_a_claim_that_is_larger_than_the_manifest_asks_for_is_left_so(
    live: str, desired: str, sent: str
) -> None:
    cluster = enlarged(serving(cached()), live).changed(cached({"volume": {"size": desired}}))
    (claim_sent,) = [child for child in cluster.plan().children if child["kind"] == "PersistentVolumeClaim"]
    assert claim_sent["spec"]["resources"]["requests"]["storage"] == sent


QUOTA = (
    'Error creating: pods "{job}-x7k2p" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: '
    "pods=4"
)


def without_pods(cluster: Cluster, seconds: int) -> Cluster:
    """After the Job has been there for so many seconds and has got no pod."""
    stamp = {"creationTimestamp": format_moment(cluster.now - seconds)}
    jobs = tuple({**job, "metadata": {**job["metadata"], **stamp}} for job in cluster.jobs)
    return replace(cluster, jobs=jobs)


@pytest.mark.parametrize(("seconds", "num_jobs", "wake_after"), [(3, 0, 7), (10, 1, None), (900, 1, None)])
def test_the_events_of_a_job_that_stays_without_pods_are_read(
    seconds: int, num_jobs: int, wake_after: int | None
) -> None:
    plan = without_pods(started(Cluster(resource(cached()))), seconds).plan()
    assert (len(plan.unstarted_jobs), plan.wake_after) == (num_jobs, wake_after)


def test_a_job_that_has_had_a_pod_is_not_asked_about() -> None:
    cluster = without_pods(started(Cluster(resource(cached()))), 900)
    assert retrying(cluster, "SourceUnavailable", retryable=True).plan().unstarted_jobs == ()
    counted = replace(cluster, jobs=tuple({**job, "status": {"active": 1}} for job in cluster.jobs))
    assert counted.plan().unstarted_jobs == ()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(QUOTA, "QuotaExceeded", id="a quota"),
        pytest.param(
            'Error creating: admission webhook "x" denied the request', "PodsNotCreated", id="a webhook"
        ),
    ],
)
def test_why_a_job_gets_no_pod_is_said_in_the_same_words_at_each_attempt(message: str, reason: str) -> None:
    cluster = without_pods(started(Cluster(resource(cached()))), 900)
    job = running(cluster)["metadata"]
    without_quota = replace(cluster, creation_problems={job["uid"]: message.format(job=job["name"])})
    condition = without_quota.conditions()["Reconciling"]
    assert condition.reason == reason
    assert f"Job {job['name']}: Error creating" in condition.message
    assert "x7k2p" not in condition.message


def test_what_kept_a_job_from_its_pod_is_past_when_it_has_one() -> None:
    cluster = without_pods(started(Cluster(resource(cached()))), 900)
    job = running(cluster)["metadata"]
    without_quota = replace(cluster, creation_problems={job["uid"]: QUOTA.format(job=job["name"])})
    assert retrying(without_quota, "SourceUnavailable", retryable=True).conditions()[
        "Reconciling"
    ].reason == ("SourceUnavailable")


def lingering(cluster: Cluster) -> Cluster:
    """After the task of the Job that runs has ended well, while a sidecar keeps its pod running."""
    before = succeeded(cluster)
    (job,) = [job for job in before.jobs if "status" in job]
    running_job = {key: value for key, value in job.items() if key != "status"}
    (task_pod,) = before.job_pods
    status = {**task_pod["status"], "phase": "Running"}
    status["containerStatuses"].append({"name": "istio-proxy", "state": {"running": {}}})
    status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "2026-01-02T12:00:00Z"
    return replace(before, jobs=(running_job,), job_pods=({**task_pod, "status": status},))


def test_the_end_of_its_task_counts_where_a_sidecar_keeps_a_job_from_ending() -> None:
    cluster = lingering(started(Cluster(resource(cached()))))
    assert fetch_of(cluster).state == "Succeeded"
    assert fetch_of(cluster).finished_at == "2026-01-02T12:00:00Z"
    assert cluster.plan().jobs_to_delete == (), "its result is not published yet"
    published = cluster.published()
    assert [job.name for job in published.plan().jobs_to_delete] == names(cluster)
    assert len(started(published).names("Deployment")) == 1
