"""What the watches have seen."""

from __future__ import annotations

from typing import Any

from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.manifests.metadata import hash_claim_name

KEY = ObjectKey("search", "docs")


def deployment(version: str, uid: str = "u1", **more: Any) -> dict[str, Any]:
    labels = {"embedserve.dev/service": "docs"}
    meta = {"namespace": "search", "name": "d", "uid": uid, "resourceVersion": version, "labels": labels}
    return {"metadata": meta, **more}


def children(store: ObjectCache) -> list[Any]:
    return [child["metadata"]["resourceVersion"] for child in store.list_children(KEY)]


def test_an_event_that_is_older_than_our_own_write_does_not_take_it_back() -> None:
    store = ObjectCache()
    store.put("Deployment", deployment("12"))
    store.put("Deployment", deployment("9"))
    assert children(store) == ["12"]


def test_an_object_that_was_made_anew_under_its_name_is_another_one() -> None:
    store = ObjectCache()
    store.put("Deployment", deployment("5", uid="old"))
    store.put("Deployment", deployment("7", uid="new"))
    store.drop("Deployment", deployment("6", uid="old"))
    assert children(store) == ["7"]


def test_a_deletion_that_no_event_told_of_is_found() -> None:
    store = ObjectCache()
    store.put("Deployment", deployment("1", uid="gone"))
    known_before = store.list_uids("Deployment")
    store.put("Deployment", deployment("2", uid="made after the list was asked for"))
    assert store.forget_missing("Deployment", frozenset(), known_before) == [KEY]
    assert children(store) == ["2"]


def test_objects_know_their_kind_although_items_of_a_list_do_not() -> None:
    store = ObjectCache()
    store.put("Deployment", deployment("1"))
    assert [child["kind"] for child in store.list_children(KEY)] == ["Deployment"]


def around(name: str, uid: str, **labels: str) -> dict[str, Any]:
    meta = {"namespace": "search", "name": name, "uid": uid, "resourceVersion": "1", "labels": labels}
    return {"metadata": meta}


def service(name: str, cache: dict[str, Any], namespace: str = "search") -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}", "resourceVersion": "1"}
    return {"metadata": meta, "spec": {"cache": cache}}


def test_what_is_around_a_claim_concerns_all_that_use_it() -> None:
    store, shared, own = ObjectCache(), {"claimName": "models"}, {"volume": {"size": "1Gi"}}
    for received in (
        service("first", shared),
        service("second", shared),
        service("docs", own),
        service("far", shared, namespace="chat"),
    ):
        store.put("EmbeddingService", received)
    job = around("models-fetch-1", "j", **{"embedserve.dev/claim": hash_claim_name("models")})
    pod = around(
        "models-fetch-1-x",
        "p",
        **{
            "embedserve.dev/claim": hash_claim_name("models"),
            "embedserve.dev/service": "first",
            "batch.kubernetes.io/job-name": "models-fetch-1",
        },
    )
    users = [ObjectKey("search", "first"), ObjectKey("search", "second")]
    for kind, received in (("Job", job), ("Pod", pod), ("PersistentVolumeClaim", around("models", "c"))):
        assert store.find_concerned(kind, received) == users
        store.put(kind, received)
    assert store.find_concerned("PersistentVolumeClaim", around("docs-models", "d")) == [
        ObjectKey("search", "docs")
    ]
    for key in users:
        volume_objects = store.get_volume_objects(key)
        assert [
            len(list(objects))
            for objects in (volume_objects.jobs, volume_objects.pods, volume_objects.claims)
        ] == [1, 1, 1]
        assert list(store.list_pods(key)) == [], "pods of Jobs serve nobody"
    assert [
        list(volume_objects)
        for volume_objects in (store.get_volume_objects(ObjectKey("search", "docs")).jobs,)
    ] == [[]]


def test_a_job_without_a_claim_concerns_the_resource_that_it_is_labelled_with() -> None:
    store = ObjectCache()
    for name in ("docs", "other"):
        store.put("EmbeddingService", {**service(name, {}), "spec": {}})
    labels = {"embedserve.dev/service": "docs"}
    job = around("docs-plan-1", "j", **labels)
    pod = around("docs-plan-1-x", "p", **labels, **{"batch.kubernetes.io/job-name": "docs-plan-1"})
    for kind, received in (("Job", job), ("Pod", pod)):
        assert store.find_concerned(kind, received) == [KEY]
        store.put(kind, received)
    own = store.get_volume_objects(KEY)
    assert [len(list(objects)) for objects in (own.jobs, own.pods, own.claims)] == [1, 1, 0]
    assert list(store.list_pods(KEY)) == [], "pods of Jobs serve nobody"
    assert list(store.get_volume_objects(ObjectKey("search", "other")).jobs) == []
    store.drop("Job", job)
    assert list(store.get_volume_objects(KEY).jobs) == []


def test_a_job_that_was_deleted_is_forgotten_before_its_event_comes() -> None:
    store = ObjectCache()
    store.put("EmbeddingService", service("first", {"claimName": "models"}))
    store.put("Job", around("models-fetch-1", "j", **{"embedserve.dev/claim": hash_claim_name("models")}))
    store.drop_uid("Job", "j")
    assert list(store.get_volume_objects(ObjectKey("search", "first")).jobs) == []


def test_nothing_is_kept_of_a_resource_that_is_gone() -> None:
    store = ObjectCache()
    received = {"metadata": {"namespace": "search", "name": "docs", "uid": "u", "resourceVersion": "1"}}
    assert store.put("EmbeddingService", received) == KEY
    assert store.list_keys() == [KEY]
    store.drop("EmbeddingService", received)
    assert (store.list_keys(), store.get_resource(KEY)) == ([], None)


def test_of_a_pod_only_what_is_read_is_kept() -> None:
    store = ObjectCache()
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    container = {
        "name": "runtime",
        "image": "x",
        "resources": {"limits": {"memory": "1Gi"}},
        "env": [{"name": "HOME", "value": "/tmp"}, token],
    }
    volumes = [{"name": "config", "configMap": {"name": "c", "defaultMode": 420}}]
    meta = {"namespace": "search", "name": "p", "uid": "u", "resourceVersion": "1"}
    labels = {"embedserve.dev/service": "docs"}
    received = {
        "metadata": {**meta, "labels": labels, "managedFields": [{"a": 1}]},
        "spec": {"containers": [container], "volumes": volumes},
    }
    store.put("Pod", received)
    (pod,) = store.list_pods(KEY)
    assert pod == Pod.parse(received)
    cached = pod.as_json().decode()
    assert "hub" in cached
    for unread in ("managedFields", "image", "HOME", "defaultMode"):
        assert unread not in cached


def test_of_a_child_all_but_the_managers_of_its_fields_is_kept() -> None:
    store = ObjectCache()
    received = deployment("1", spec={"strategy": {"type": "Recreate"}})
    store.put("Deployment", {**received, "metadata": {**received["metadata"], "managedFields": [{"a": 1}]}})
    assert list(store.list_children(KEY)) == [{**received, "apiVersion": "apps/v1", "kind": "Deployment"}]


def test_a_version_that_is_known_needs_no_look_and_a_newer_one_does() -> None:
    store = ObjectCache()
    store.put("Deployment", deployment("5"))
    assert [store.has_seen("Deployment", deployment(version)) for version in ("4", "5", "6")] == [
        True,
        True,
        False,
    ]
    assert not store.has_seen("Deployment", deployment("5", "another"))
