"""Requests of web pages (CORS), over real sockets against a real process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_connection import Answer, build_post, build_request
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

PAGE = "https://a.example"
OTHERS = (
    "https://b.example",
    "http://a.example",
    "https://a.example:8443",
    "https://a.example.b.example",
    "null",
)
KEY = "correct-horse"
JSON = "content-type: application/json"
ALLOW_ORIGIN = "access-control-allow-origin"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_minilm(tmp_path_factory.mktemp("cors") / "model")


@pytest.fixture(scope="module")
def closed(model: Path) -> Iterator[MonitoredServer]:
    with start_monitored_server(model, model.parent / "closed") as started:
        yield started


@pytest.fixture(scope="module")
def opened(model: Path) -> Iterator[MonitoredServer]:
    settings = {"server": {"cors_origins": [PAGE], "api_keys": [KEY], "max_body_bytes": 4096}}
    with start_monitored_server(model, model.parent / "opened", settings) as started:
        yield started


def preflight(origin: str, path: str = "/embed", method: str = "POST") -> bytes:
    return build_request(
        "OPTIONS",
        path,
        f"origin: {origin}",
        f"access-control-request-method: {method}",
        "access-control-request-headers: authorization, content-type",
    )


def cors_headers(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith("access-control-")}


def test_without_the_setting_pages_are_told_nothing(closed: MonitoredServer) -> None:
    preflight_answer = closed.send_request(preflight(PAGE), "OPTIONS")
    assert (preflight_answer.status, preflight_answer.get("allow"), cors_headers(preflight_answer)) == (
        405,
        "POST",
        {},
    ), preflight_answer
    answer = closed.send_request(build_post("/embed", {"inputs": "a"}, f"origin: {PAGE}"))
    assert (answer.status, cors_headers(answer)) == (200, {}), answer


@pytest.mark.parametrize(
    ("path", "method"), [("/embed", "POST"), ("/v1/embeddings", "POST"), ("/info", "GET")]
)
def test_a_page_may_ask_first_without_a_key(opened: MonitoredServer, path: str, method: str) -> None:
    answer = opened.send_request(preflight(PAGE, path, method), "OPTIONS")
    assert answer.status in {200, 204}, answer
    headers = cors_headers(answer)
    assert headers[ALLOW_ORIGIN] == PAGE
    assert method in headers["access-control-allow-methods"]
    allowed = headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed
    assert "content-type" in allowed
    assert headers.get("access-control-allow-credentials") is None


@pytest.mark.parametrize("origin", OTHERS)
def test_another_page_is_not_let_in(opened: MonitoredServer, origin: str) -> None:
    assert ALLOW_ORIGIN not in cors_headers(opened.send_request(preflight(origin), "OPTIONS"))
    headers = (f"origin: {origin}", f"authorization: Bearer {KEY}")
    answer = opened.send_request(build_post("/embed", {"inputs": "a"}, *headers))
    assert (answer.status, cors_headers(answer).get(ALLOW_ORIGIN)) == (200, None), answer


GOOD = json.dumps({"inputs": "a"}).encode()
WITH_KEY = (JSON, f"authorization: Bearer {KEY}")
ANSWERS = {
    "a good one": (200, build_request("POST", "/embed", *WITH_KEY, f"origin: {PAGE}", body=GOOD)),
    "no key": (401, build_request("POST", "/embed", JSON, f"origin: {PAGE}", body=GOOD)),
    "no such path": (404, build_request("POST", "/nowhere", *WITH_KEY, f"origin: {PAGE}", body=GOOD)),
    "a wrong method": (405, build_request("GET", "/embed", *WITH_KEY, f"origin: {PAGE}")),
    "no JSON": (400, build_request("POST", "/embed", *WITH_KEY, f"origin: {PAGE}", body=b"{")),
    "a wrong shape": (
        422,
        build_request("POST", "/embed", *WITH_KEY, f"origin: {PAGE}", body=b'{"inputs": {}}'),
    ),
    "too large": (413, build_request("POST", "/embed", *WITH_KEY, f"origin: {PAGE}", body=b" " * 8192)),
    "another type": (
        415,
        build_request(
            "POST", "/embed", "content-type: text/plain", WITH_KEY[1], f"origin: {PAGE}", body=GOOD
        ),
    ),
}


@pytest.mark.parametrize("name", [*ANSWERS])
def test_a_page_can_read_every_answer(opened: MonitoredServer, name: str) -> None:
    status, request = ANSWERS[name]
    answer = opened.send_request(request)
    assert answer.status == status, answer
    assert cors_headers(answer).get(ALLOW_ORIGIN) == PAGE, answer
    assert "origin" in (answer.get("vary") or "").lower(), "a cache would give this answer to other pages"


def test_who_is_no_page_is_answered_as_ever(opened: MonitoredServer) -> None:
    answer = opened.send_request(build_request("POST", "/embed", *WITH_KEY, body=GOOD))
    assert answer.status == 200, answer
    assert not opened.list_new_errors()
