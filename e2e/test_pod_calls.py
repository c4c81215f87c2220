"""Calls to the management port of a pod: only the leading operator's have an effect, whoever reaches the port."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from e2e.calls import Call, send
from e2e.cluster.kubectl import Kubectl
from e2e.conftest import MakeService
from e2e.demo.release import OPERATOR_NAMESPACE
from e2e.load import asking
from e2e.services import OPERATOR, Object, Service, hub_spec
from embedserve_operator.apply.call_keys import PRIVATE_KEY
from embedserve_operator.apply.call_signer import CallSigner
from embedserve_operator.clock import Clock
from embedserve_operator.manifests.runtime_config import MANAGEMENT_PORT

FORBIDDEN = 403
LATEST_LEADER = 2**62
"""A generation of the Lease that no operator of the tests has: it is a time in microseconds."""
ELSEWHERE = json.dumps({"vector_space": "vs2-fedcba9876543210fedc"}).encode()


@dataclass(frozen=True)
class Target:
    """A pod that another one calls."""

    service: Service
    pod: Object

    def call(self, method: str, path: str, body: bytes = b"", authorization: str = "") -> tuple[int, str]:
        """The status and the text of the answer to the client's pod, which is in another namespace."""
        url = f"http://{self.pod['status']['podIP']}:{MANAGEMENT_PORT}{path}"
        headers = {"Authorization": authorization} if authorization else {}
        return send(self.service.client, Call(method, url, body, headers))

    def call_signed(
        self, method: str, path: str, signer: CallSigner, body: bytes = b"", *, pod: str = ""
    ) -> tuple[int, str]:
        name = pod or self.pod["metadata"]["name"]
        return self.call(method, path, body, signer.sign(method, path, pod=name, body=body))


@pytest.fixture(scope="module")
def key(kubectl: Kubectl) -> Ed25519PrivateKey:
    """The operator's own key, which only this test may look at."""
    secret = kubectl.get("secret", f"{OPERATOR}-pod-calls", "--namespace", OPERATOR_NAMESPACE)
    assert secret is not None
    private_key = load_pem_private_key(base64.b64decode(secret["data"][PRIVATE_KEY]), password=None)
    assert isinstance(private_key, Ed25519PrivateKey)
    return private_key


def sign_with(
    key: Ed25519PrivateKey, *, generation: int = LATEST_LEADER, ago: timedelta = timedelta()
) -> CallSigner:
    """Signatures of some time ago, by default of an operator that leads after all others."""
    return CallSigner(key, lambda: generation, Clock(now=lambda: datetime.now(UTC) - ago))


def forge(authorization: str) -> str:
    """The same signature by somebody who does not have the key."""
    token = authorization.removeprefix("Bearer ")
    claims = jwt.decode(token, options={"verify_signature": False})
    headers = jwt.get_unverified_header(token)
    return f"Bearer {jwt.encode(claims, Ed25519PrivateKey.generate(), 'EdDSA', headers=headers)}"


@pytest.fixture
def target(service: MakeService) -> Iterator[Target]:
    """A pod to which all of its service's requests go."""
    embsvc = service("called")
    embsvc.apply(hub_spec())
    embsvc.wait_serving()
    embsvc.embed("the way is open")
    (pod,) = embsvc.pods()
    yield Target(embsvc, pod)
    embsvc.delete()


def is_current(target: Target) -> bool:
    status, text = target.call("GET", "/current")
    assert status == 200, text
    return bool(json.loads(text)["current"])


def test_calls_that_are_not_the_leading_operators_are_refused_and_traffic_stays(
    target: Target, key: Ed25519PrivateKey
) -> None:
    stranger = sign_with(Ed25519PrivateKey.generate())
    old = sign_with(key, ago=timedelta(minutes=10))
    replaced = sign_with(key, generation=LATEST_LEADER - 1)
    name = target.pod["metadata"]["name"]
    with asking(target.service) as load:
        assert is_current(target)
        status, text = target.call_signed("GET", "/selfcheck", sign_with(key))
        assert status == 200, text
        for method, path, body in (("PUT", "/current", ELSEWHERE), ("GET", "/selfcheck", b"")):
            genuine = sign_with(key).sign(method, path, pod=name, body=body)
            refused = [
                ("is not signed", target.call(method, path, body)),
                ("is not signed", target.call(method, path, body, "Basic b3BlcmF0b3I6")),
                ("is not valid", target.call(method, path, body, "Bearer x.y.z")),
                ("has the identity", target.call_signed(method, path, stranger, body)),
                ("is not valid", target.call(method, path, body, forge(genuine))),
                ("too old", target.call_signed(method, path, old, body)),
                ("for another pod", target.call_signed(method, path, sign_with(key), body, pod="called-x")),
                ("another operator has become", target.call_signed(method, path, replaced, body)),
            ]
            for why, (status, text) in refused:
                assert (status, why in text) == (FORBIDDEN, True), (method, path, why, text)
        # A signature is good for one call: that of a self-check moves no name, that of one body no other.
        checked = sign_with(key).sign("GET", "/selfcheck", pod=name, body=b"")
        status, text = target.call("PUT", "/current", ELSEWHERE, checked)
        assert (status, "another call" in text) == (FORBIDDEN, True), text
        assert is_current(target)
    assert load.failed == []
    assert load.asked, "requests were made"
    assert len(target.service.embed("still the same")[0]) == 384
    (pod,) = target.service.pods()
    assert pod["metadata"]["uid"] == target.pod["metadata"]["uid"]


def test_a_call_with_the_operators_key_is_taken_once(target: Target, key: Ed25519PrivateKey) -> None:
    """The other side of it: the refusals above are not those of a port that refuses everything."""
    status, text = target.call_signed("GET", "/selfcheck", sign_with(key))
    assert (status, json.loads(text)["problems"]) == (200, []), text
    own = json.dumps({"vector_space": json.loads(target.call("GET", "/current")[1])["vector_space"]}).encode()
    signed = sign_with(key).sign("PUT", "/current", pod=target.pod["metadata"]["name"], body=own)
    assert target.call("PUT", "/current", own, signed)[0] == 200
    status, text = target.call("PUT", "/current", own, signed)
    assert (status, "was taken already" in text) == (FORBIDDEN, True), text
