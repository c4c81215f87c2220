"""Only the operator that leads may tell a pod what the service's name stands for, or have it prove its vectors."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from embedserve_runtime.api.errors import CallRefused
from embedserve_runtime.api.operator_calls import MAX_CLOCK_DIFFERENCE_SECONDS, OperatorCall, OperatorCalls
from embedserve_runtime.api.watched_file import POLL_INTERVAL_SECONDS

POD = "docs-6c9f-x2x4z"
KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
BODY = b'{"vector_space": "vs2-0123456789abcdef0123"}'
TAKEN = ""


def write_keys(file: Path, *keys: Ed25519PrivateKey) -> None:
    keys_of_set = [
        {**OKPAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": name_key(key)} for key in keys
    ]
    file.write_text(json.dumps({"keys": keys_of_set}))


def name_key(key: Ed25519PrivateKey) -> str:
    return hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:16]


def sign(key: Ed25519PrivateKey = KEY, /, **changes: Any) -> bytes:
    """A signature of `PUT /current` with BODY, with other claims where `changes` says so; None leaves one out."""
    claims = {
        "aud": POD,
        "iat": int(time.time()),
        "exp": int(time.time()) + 60,
        "method": "PUT",
        "path": "/current",
        "body_sha256": hashlib.sha256(BODY).hexdigest(),
        "generation": 7,
        "sequence": 1,
    } | changes
    payload = {name: value for name, value in claims.items() if value is not None}
    return b"Bearer " + jwt.encode(payload, key, "EdDSA", headers={"kid": name_key(key)}).encode()


def ask(calls: OperatorCalls, authorization: bytes, *, body: bytes = BODY, is_change: bool = True) -> str:
    """Return why a call is refused; TAKEN where it is not."""
    try:
        calls.check(OperatorCall("PUT", "/current", body, authorization, is_change))
    except CallRefused as error:
        return error.message
    return TAKEN


@pytest.fixture(name="file")
def written_keys(tmp_path: Path) -> Path:
    write_keys(tmp_path / "keys.json", KEY)
    return tmp_path / "keys.json"


def test_a_call_of_the_operator_is_taken(file: Path) -> None:
    assert ask(OperatorCalls(file, POD), sign()) == TAKEN


LATE = MAX_CLOCK_DIFFERENCE_SECONDS + 100
# Signatures are made when they are used: they are good for a minute, and a suite runs for longer.
REFUSED = [
    pytest.param(lambda: b"", BODY, "not signed", id="no signature"),
    pytest.param(lambda: b"Basic YTpi", BODY, "not signed", id="another scheme"),
    pytest.param(lambda: b"Bearer a.b.c", BODY, "not valid", id="no token"),
    pytest.param(lambda: sign(OTHER), BODY, "no key in", id="another key"),
    pytest.param(
        lambda: b"Bearer " + jwt.encode({"aud": POD}, "", "none", headers={"kid": name_key(KEY)}).encode(),
        BODY,
        "not valid",
        id="no algorithm",
    ),
    pytest.param(lambda: sign(aud="docs-6c9f-other"), BODY, "another pod", id="another pod"),
    pytest.param(lambda: sign(aud=None), BODY, "not valid", id="no pod"),
    pytest.param(lambda: sign(exp=None), BODY, "not valid", id="no end"),
    pytest.param(lambda: sign(exp=int(time.time()) - LATE), BODY, "too old", id="an old one"),
    pytest.param(lambda: sign(iat=int(time.time()) + LATE), BODY, "clocks", id="a clock that is ahead"),
    pytest.param(lambda: sign(method="GET"), BODY, "another call", id="another method"),
    pytest.param(lambda: sign(path="/selfcheck"), BODY, "another call", id="another path"),
    pytest.param(sign, BODY.replace(b"0123", b"3210"), "another call", id="another body"),
    pytest.param(lambda: sign(generation=None), BODY, "does not say", id="no generation"),
]


@pytest.mark.parametrize(("make_authorization", "body", "want"), REFUSED)
def test_what_the_operator_did_not_sign_for_this_pod_and_call_is_refused(
    file: Path, make_authorization: Callable[[], bytes], body: bytes, want: str
) -> None:
    calls = OperatorCalls(file, POD)
    assert want in ask(calls, make_authorization(), body=body)
    assert ask(calls, sign()) == TAKEN, "a refused call leaves no trace"


def numbered(generation: int, sequence: int, *, is_change: bool = True) -> Mapping[str, Any]:
    return {"generation": generation, "sequence": sequence, "is_change": is_change}


@pytest.mark.parametrize(
    ("before", "call", "want"),
    [
        pytest.param(numbered(7, 5), numbered(7, 6), TAKEN, id="the next one"),
        pytest.param(numbered(7, 5), numbered(7, 5), "a later call", id="the same one, recorded"),
        pytest.param(numbered(7, 5), numbered(7, 4), "a later call", id="one that was overtaken"),
        pytest.param(numbered(7, 5), numbered(8, 1), TAKEN, id="the next leader"),
        pytest.param(numbered(8, 1), numbered(7, 9), "another operator", id="a leader of before"),
        pytest.param(
            numbered(8, 1, is_change=False),
            numbered(7, 9),
            "another operator",
            id="of before, after a question",
        ),
        pytest.param(
            numbered(8, 1), numbered(7, 9, is_change=False), "another operator", id="a question of before"
        ),
        pytest.param(numbered(7, 5), numbered(7, 5, is_change=False), TAKEN, id="a question of the leader"),
        pytest.param(
            numbered(7, 5, is_change=False), numbered(7, 4), TAKEN, id="after a question of the leader"
        ),
    ],
)
def test_the_latest_leader_and_its_latest_call_win(
    file: Path, before: Mapping[str, Any], call: Mapping[str, Any], want: str
) -> None:
    calls = OperatorCalls(file, POD)

    def send(is_change: bool, **numbers: int) -> str:
        return ask(calls, sign(**numbers), is_change=is_change)

    assert send(**before) == TAKEN
    answer = send(**call)
    assert want in answer
    assert bool(want) == bool(answer)


def test_keys_are_followed_without_a_restart(tmp_path: Path) -> None:
    file, now = tmp_path / "keys.json", [0.0]
    calls = OperatorCalls(file, POD, clock=lambda: now[0])

    def can_call(**signatures: bytes) -> list[str]:
        now[0] += POLL_INTERVAL_SECONDS
        return [name for name, signature in signatures.items() if ask(calls, signature) == TAKEN]

    def signed(sequence: int) -> Mapping[str, bytes]:
        return {"no": b"", "old": sign(sequence=sequence), "new": sign(OTHER, sequence=sequence + 1)}

    assert can_call(**signed(10)) == ["no", "old", "new"], "an operator of before makes no file"
    write_keys(file, KEY)
    assert can_call(**signed(20)) == ["old"]
    write_keys(file, KEY, OTHER)
    assert can_call(**signed(30)) == ["old", "new"]
    write_keys(file, OTHER)
    assert can_call(**signed(40)) == ["new"]
    file.write_text("{")
    assert can_call(**signed(50)) == ["new"], "what cannot be read changes nothing"
    file.unlink()
    assert can_call(**signed(60)) == ["no", "old", "new"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "OKP"}]}', "\N{EURO SIGN}"]
)
def test_a_file_without_a_key_admits_nobody(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    calls = OperatorCalls(file, POD)
    assert [bool(ask(calls, authorization)) for authorization in (b"", sign())] == [True, True]
