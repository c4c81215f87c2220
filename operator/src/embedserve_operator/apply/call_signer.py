"""Signs calls to pods, so that a pod takes them from the operator that leads and from nobody else.

A signature is a JSON Web Token (RFC 7519). It names the pod, the method, the path and the digest of the body, ends
after a minute, and says since when this operator leads: a pod that has heard of a later leader refuses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from embedserve_operator.apply.call_keys import compute_key_id
from embedserve_operator.clock import EPOCH, Clock

_LIFETIME = timedelta(seconds=60)
"""The time for which a signature is good, beside the difference of the clocks that a pod allows for."""


class CallSigner:
    """Signs calls with the operator's key.

    `get_generation` returns a number that is greater for each later leader.
    """

    def __init__(self, key: Ed25519PrivateKey, get_generation: Callable[[], int], clock: Clock) -> None:
        self._key = key
        self._headers = {"kid": compute_key_id(key)}
        self._get_generation = get_generation
        self._now = clock.now
        self._sequence = 0

    def sign(self, method: str, path: str, *, pod: str, body: bytes) -> str:
        """Return the value of the header `Authorization` of one call; `pod` is the pod's name."""
        now = self._now()
        # Later calls have greater numbers, those of a restarted process too.
        self._sequence = max(self._sequence + 1, (now - EPOCH) // timedelta(microseconds=1))
        claims = {
            "aud": pod,
            "iat": now,
            "exp": now + _LIFETIME,
            "method": method,
            "path": path,
            "body_sha256": hashlib.sha256(body).hexdigest(),
            "generation": self._get_generation(),
            "sequence": self._sequence,
        }
        return f"Bearer {jwt.encode(claims, self._key, 'EdDSA', headers=self._headers)}"
