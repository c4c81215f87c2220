"""Decides whether a service may be given Secrets: not where its manifest chooses a server that they would
be sent to, unless the platform team allows that server.

Who may write an EmbeddingService may not always read the Secrets of its namespace. With a server of their own choice
they would be told any of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.source_address import DEFAULT_PORTS

_ANY = "*"
_ANY_SUBDOMAIN = "*."
_ENDPOINT_VARIABLE = re.compile(r"(^|_)ENDPOINT(_URL(_[A-Z0-9]+)*)?$")
"""A pattern of the variables by which libraries are told of a server: HF_ENDPOINT, AWS_ENDPOINT_URL_S3 and the like."""


def find_forbidden_endpoint(spec: EmbeddingServiceSpec, allowed: Sequence[str]) -> str | None:
    """Return what the manifest says of a server that Secrets may not be sent to; None where there is none, or where the
    service is given no Secret.
    """
    if not _is_given_secrets(spec):
        return None
    forbidden = (endpoint for endpoint, url in _list_chosen_endpoints(spec) if not _is_allowed(url, allowed))
    return next(forbidden, None)


def _is_given_secrets(spec: EmbeddingServiceSpec) -> bool:
    source, variables = spec.model.source, spec.pod.env or ()
    with_token = source.hugging_face or source.http
    refs = (
        None if with_token is None else with_token.token_secret_ref,
        None if source.s3 is None else source.s3.secret_ref,
        *(variable.value_from.secret_key_ref for variable in variables if variable.value_from is not None),
    )
    return any(ref is not None for ref in refs)


def _list_chosen_endpoints(spec: EmbeddingServiceSpec) -> list[tuple[str, str]]:
    """Return the servers that the manifest chooses: the field with its value, and the URL."""
    source = spec.model.source
    fields = (
        ("huggingFace.endpoint", source.hugging_face.endpoint if source.hugging_face is not None else None),
        ("http.url", source.http.url if source.http is not None else None),
        ("s3.endpoint", source.s3.endpoint if source.s3 is not None else None),
    )
    variables = (variable for variable in spec.pod.env or () if _ENDPOINT_VARIABLE.search(variable.name))
    return [
        *((f"spec.model.source.{name}: {url}", url) for name, url in fields if url is not None),
        *((f"spec.pod.env: {variable.name}", variable.value or "") for variable in variables),
    ]


def _is_allowed(url: str, allowed: Sequence[str]) -> bool:
    return any(pattern == _ANY or _matches(url, pattern) for pattern in allowed)


def _matches(url: str, pattern: str) -> bool:
    """Return whether a URL leads to the server of a pattern: scheme, host and port, of which the host may begin with
    `*.` for all names below it.
    """
    address, allowed = urlsplit(url), urlsplit(pattern)
    host, name = address.hostname or "", allowed.hostname or ""
    is_host = host.endswith(name[1:]) if name.startswith(_ANY_SUBDOMAIN) else host == name
    ports = [side.port or DEFAULT_PORTS.get(side.scheme) for side in (address, allowed)]
    return bool(host) and is_host and address.scheme == allowed.scheme and ports[0] == ports[1]
