"""Certificates: who is let in, what is published, and when a new one takes over."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from embedserve_operator.adapter.certificates import (
    create_serving_certificate,
    find_valid_certificates,
    select_freshest,
)
from embedserve_operator.adapter.trust import (
    build_published_certificates,
    choose_rotation_step,
    is_trusted,
    read_common_name,
    read_request_header_config,
)
from embedserve_operator.kube.views.objects import ConfigMap

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def test_who_speaks_for_the_api_server_is_what_its_config_map_says() -> None:
    data = {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": json.dumps(["proxy"])}
    config = read_request_header_config(ConfigMap.parse({"data": data}))
    assert config is not None
    assert config.allows("proxy")
    assert not config.allows("somebody")
    assert not config.allows(None)
    anyone = read_request_header_config(
        ConfigMap.parse({"data": {**data, "requestheader-allowed-names": "[]"}})
    )
    assert anyone is not None
    assert anyone.allows("somebody")
    assert read_request_header_config(ConfigMap.parse(None)) is None
    assert (
        read_request_header_config(
            ConfigMap.parse({"data": {**data, "requestheader-allowed-names": "proxy"}})
        )
        is None
    )


def test_the_common_name_is_found_among_the_parts_of_a_subject() -> None:
    assert (
        read_common_name({"subject": ((("organizationName", "x"),), (("commonName", "proxy"),))}) == "proxy"
    )
    assert read_common_name({"subject": ()}) is None
    assert read_common_name(None) is None


def test_a_new_certificate_is_served_only_once_the_api_server_trusts_it() -> None:
    assert choose_rotation_step(due=False, waiting=None, trusted=frozenset()) == "keep"
    assert choose_rotation_step(due=True, waiting=None, trusted=frozenset()) == "issue"
    assert choose_rotation_step(due=True, waiting="new", trusted=frozenset({"old"})) == "keep"
    assert choose_rotation_step(due=True, waiting="new", trusted=frozenset({"old", "new"})) == "switch"
    assert choose_rotation_step(due=True, waiting="new", trusted=None) == "switch", "nobody connects yet"


def test_a_replica_is_ready_before_anything_is_registered_and_else_when_it_is_trusted() -> None:
    assert is_trusted("a", published=True, trusted=None)
    assert is_trusted("a", published=True, trusted=frozenset({"a", "b"}))
    assert not is_trusted("a", published=True, trusted=frozenset({"b"}))
    assert not is_trusted("a", published=False, trusted=None)


def test_publishing_keeps_what_is_valid_of_others_and_writes_nothing_twice() -> None:
    living = create_serving_certificate("x.y.svc", NOW, 30 * DAY).certificate
    expired = create_serving_certificate("x.y.svc", NOW - 40 * DAY, 30 * DAY).certificate
    published = {"one": living, "gone": expired, "odd": "no certificate"}
    fresh = select_freshest(published, NOW)
    data = build_published_certificates(published, "two", "mine", fresh)
    assert data == {"one": living, "two": "mine"}
    assert build_published_certificates(data, "two", "mine", fresh) is None


def test_the_bundle_holds_every_valid_certificate_once() -> None:
    first, second = (create_serving_certificate("x.y.svc", NOW, 30 * DAY).certificate for _ in range(2))
    expired = create_serving_certificate("x.y.svc", NOW - 40 * DAY, 30 * DAY).certificate
    assert find_valid_certificates([second + first, first, expired, "nonsense"], NOW) == tuple(
        sorted((first, second))
    )


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_and_its_key_is_not_shown() -> None:
    identity = create_serving_certificate("x.y.svc", NOW, 30 * DAY)
    assert identity.renew_at == NOW + 20 * DAY
    assert "PRIVATE" not in repr(identity)
