"""Keeps the key by which the operator signs its calls to pods: the private one in a Secret beside the
operator, the public one in what pods mount.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from jwt.algorithms import OKPAlgorithm

from embedserve_operator.errors import ConflictError, InvalidContentError, RefusedError, SettingsError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import SECRET
from embedserve_operator.kube.objects import Manifest, Received
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.objects import Secret

log = logging.getLogger(__name__)

PRIVATE_KEY = "private-key.pem"
"""The entry of the Secret."""


async def load_call_key(kube: KubeClient, namespace: str, name: str) -> Ed25519PrivateKey | None:
    """Return the key in a Secret, which is made where there is none; None where the operator's role has no right to it.

    Raises ApiError, SettingsError.
    """
    try:
        return await _find_or_make(kube, namespace, name)
    except InvalidContentError:
        raise
    except RefusedError as error:
        # As before calls were signed: a role that somebody wrote by hand must not stop all services.
        log.warning("calls to pods are not signed, and pods take them from anybody: %s", error)
        return None


async def _find_or_make(kube: KubeClient, namespace: str, name: str) -> Ed25519PrivateKey:
    ref = ChildRef(SECRET, name)
    secret = await kube.get(namespace, ref)
    if secret is None:
        key = Ed25519PrivateKey.generate()
        try:
            await kube.create(_build_secret(namespace, name, key))
        except ConflictError:
            secret = await kube.get(namespace, ref)
        else:
            log.info("made the key of calls to pods: Secret %s/%s", namespace, name)
            return key
    return _read_secret(secret or {}, f"{namespace}/{name}")


def _build_secret(namespace: str, name: str, key: Ed25519PrivateKey) -> Manifest:
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {
        "apiVersion": "v1",
        "kind": SECRET,
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        # Another key is another Secret, which the next operator that leads makes and reads.
        "immutable": True,
        "data": {PRIVATE_KEY: base64.b64encode(content).decode()},
    }


def _read_secret(received: Received, name: str) -> Ed25519PrivateKey:
    """Return the key in a Secret. Raises SettingsError, which does not quote it."""
    try:
        content = base64.b64decode(Secret.parse(received).data.get(PRIVATE_KEY, ""), validate=True)
        key = load_pem_private_key(content, password=None)
    except (binascii.Error, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(
            f"the Secret {name} has no Ed25519 key under {PRIVATE_KEY}; delete it, and the operator creates a new one"
        )
    return key


def compute_key_id(key: Ed25519PrivateKey) -> str:
    """Return the identity of a key: the thumbprint of RFC 7638 of the public one."""
    public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    members = {name: public[name] for name in ("crv", "kty", "x")}
    digest = hashlib.sha256(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def format_public_keys(key: Ed25519PrivateKey) -> str:
    """Return the public key as a JSON Web Key Set (RFC 7517), in the form that pods read."""
    public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return json.dumps({"keys": [{**public, "kid": compute_key_id(key), "use": "sig", "alg": "EdDSA"}]})
