"""What the watches have seen."""

from __future__ import annotations

from typing import Any

from embedserve_operator.store import Store
from embedserve_operator.world import Key

KEY = Key("search", "docs")


def deployment(version: str, uid: str = "u1", **more: Any) -> dict[str, Any]:
    labels = {"embedserve.dev/service": "docs"}
    meta = {"namespace": "search", "name": "d", "uid": uid, "resourceVersion": version, "labels": labels}
    return {"metadata": meta, **more}


def children(store: Store) -> list[Any]:
    return [child["metadata"]["resourceVersion"] for child in store.children(KEY)]


def test_an_event_that_is_older_than_our_own_write_does_not_take_it_back() -> None:
    store = Store()
    store.put("Deployment", deployment("12"))
    store.put("Deployment", deployment("9"))
    assert children(store) == ["12"]


def test_an_object_that_was_made_anew_under_its_name_is_another_one() -> None:
    store = Store()
    store.put("Deployment", deployment("5", uid="old"))
    store.put("Deployment", deployment("7", uid="new"))
    store.drop("Deployment", deployment("6", uid="old"))
    assert children(store) == ["7"]


def test_a_deletion_that_no_event_told_of_is_found() -> None:
    store = Store()
    store.put("Deployment", deployment("1", uid="gone"))
    known = store.uids("Deployment")
    store.put("Deployment", deployment("2", uid="made after the list was asked for"))
    assert store.forget_missing("Deployment", frozenset(), known) == [KEY]
    assert children(store) == ["2"]


def test_objects_know_their_kind_although_items_of_a_list_do_not() -> None:
    store = Store()
    store.put("Deployment", deployment("1"))
    assert [child["kind"] for child in store.children(KEY)] == ["Deployment"]


def test_nothing_is_kept_of_a_resource_that_is_gone() -> None:
    store = Store()
    received = {"metadata": {"namespace": "search", "name": "docs", "uid": "u", "resourceVersion": "1"}}
    assert store.put("EmbeddingService", received) == KEY
    assert store.resources() == [KEY]
    store.drop("EmbeddingService", received)
    assert (store.resources(), store.resource(KEY)) == ([], None)
