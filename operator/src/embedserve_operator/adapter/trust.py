"""Who trusts whom: which clients are let in, and when a new certificate may take over.

Each replica publishes its certificates under its name in a ConfigMap; the operator puts all of them into the
APIService. A certificate is served only once the APIService has it, so that no handshake fails on the way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from embedserve_operator.wire import Received, text

AUTHENTICATION = ("kube-system", "extension-apiserver-authentication")
"""Namespace and name of the ConfigMap by which the API server tells how it presents itself."""


@dataclass(frozen=True, slots=True)
class ClientRules:
    """Which clients speak for the API server."""

    authority: str
    """PEM of who signs their certificates."""
    names: frozenset[str]
    """Common names of their certificates; none: any."""

    def admit(self, common_name: str | None) -> bool:
        """Whether a client whose certificate the authority signed may ask."""
        return not self.names or common_name in self.names


def client_rules(authentication: Received | None) -> ClientRules | None:
    """From the API server's ConfigMap; None while it does not say how to know it."""
    authority = text(authentication, "data", "requestheader-client-ca-file")
    try:
        names = json.loads(text(authentication, "data", "requestheader-allowed-names") or "[]")
    except ValueError:
        return None
    if not authority or not isinstance(names, list):
        return None
    return ClientRules(authority, frozenset(name for name in names if isinstance(name, str)))


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """The common name in a certificate as `ssl` tells it."""
    subject = (certificate or {}).get("subject", ())
    if isinstance(subject, tuple):
        for parts in subject:
            for key, value in parts:
                if key == "commonName":
                    return str(value)
    return None


Step = Literal["keep", "make", "switch"]


def next_step(*, due: bool, waiting: str | None, trusted: frozenset[str] | None) -> Step:
    """What to do about the serving certificate.

    `due`: it is time for another; `waiting`: the certificate that has been made and published and is not served yet;
    `trusted`: those in the APIService, None while there is none of ours (then nobody connects, and nobody is lost).
    """
    if waiting is not None:
        return "switch" if trusted is None or waiting in trusted else "keep"
    return "make" if due else "keep"


def is_trusted(certificate: str, *, published: bool, trusted: frozenset[str] | None) -> bool:
    """Whether requests may be sent here. While nothing is registered, being ready is what gets it registered."""
    return published and (trusted is None or certificate in trusted)


def published(found: Received, name: str, pem: str, others: Mapping[str, str]) -> Received | None:
    """The ConfigMap with a replica's certificates in it, and those of `others` that are still worth keeping; None when
    nothing is to be changed for this replica."""
    if text(found, "data", name) == pem:
        return None
    return {**found, "data": {**others, name: pem}}
