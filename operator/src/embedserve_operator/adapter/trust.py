"""Decides which clients are admitted, and when a new certificate may take over.

Each replica publishes its certificates under its name in a ConfigMap, and the operator puts all of them
into the APIService. A certificate is served only once the APIService contains it, so that no handshake
fails during a rotation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from embedserve_operator.kube.views.objects import ConfigMap

AUTHENTICATION = ("kube-system", "extension-apiserver-authentication")
"""Namespace and name of the ConfigMap in which the API server says how it authenticates itself."""


@dataclass(frozen=True, slots=True)
class RequestHeaderConfig:
    """Configuration by which requests of the API server's aggregation layer are authenticated."""

    client_ca: str
    """PEM of the certificate authority that signs the clients' certificates."""
    allowed_names: frozenset[str]
    """Common names of the clients' certificates; empty allows any name."""

    def allows(self, common_name: str | None) -> bool:
        """Return whether a client with this common name, whose certificate the authority has signed, is admitted."""
        return not self.allowed_names or common_name in self.allowed_names


def read_request_header_config(authentication: ConfigMap) -> RequestHeaderConfig | None:
    """Return the configuration from the API server's ConfigMap; None while it does not say how to recognize the API
    server.
    """
    authority = authentication.data.get("requestheader-client-ca-file", "")
    try:
        names = json.loads(authentication.data.get("requestheader-allowed-names") or "[]")
    except ValueError:
        return None
    if not authority or not isinstance(names, list):
        return None
    return RequestHeaderConfig(authority, frozenset(name for name in names if isinstance(name, str)))


def read_common_name(certificate: Mapping[str, object] | None) -> str | None:
    """Return the common name of a certificate in the form that `ssl` returns."""
    subject = (certificate or {}).get("subject", ())
    if isinstance(subject, tuple):
        for parts in subject:
            for key, value in parts:
                if key == "commonName":
                    return str(value)
    return None


RotationStep = Literal["keep", "issue", "switch"]


def choose_rotation_step(*, due: bool, waiting: str | None, trusted: frozenset[str] | None) -> RotationStep:
    """Return what to do about the serving certificate.

    `due` says that it is time for another one. `waiting` is the certificate that has been made and
    published but is not served yet. `trusted` are the certificates in the APIService, None while ours does
    not exist (then nobody connects, and nobody is lost).
    """
    if waiting is not None:
        return "switch" if trusted is None or waiting in trusted else "keep"
    return "issue" if due else "keep"


def is_trusted(certificate: str, *, published: bool, trusted: frozenset[str] | None) -> bool:
    """Return whether requests may be sent to this replica.

    While nothing is registered, being ready is what gets it registered.
    """
    return published and (trusted is None or certificate in trusted)


def build_published_certificates(
    published: Mapping[str, str], name: str, pem: str, fresh: Mapping[str, str]
) -> Mapping[str, str] | None:
    """Return the data of the ConfigMap with this replica's certificates and the `fresh` entries of all replicas;
    None when nothing changes for this replica.
    """
    return None if published.get(name) == pem else {**fresh, name: pem}
