"""Checks the environment variables by which HTTP clients find proxies and certificates.

HTTP libraries raise errors that quote parts of a proxy's URL, its password too, or that name no variable. So what no
client can use is refused here, by a message that names the variable and does not quote its value.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from embedserve_runtime.errors import ConfigError

_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_PROXY_SCHEMES = frozenset({"http", "https"})
_CERTIFICATE_FILE = "SSL_CERT_FILE"


def check_network_environment(environment: Mapping[str, str]) -> None:
    """Check the proxies and the file of certificates that an environment names.

    Raises ConfigError, which names the variable. An empty variable counts as not set.
    """
    for name, value in environment.items():
        if name.upper() in _PROXY_VARIABLES and value:
            _check_proxy(name, value)
    if environment.get(_CERTIFICATE_FILE):
        _check_certificates(environment[_CERTIFICATE_FILE])


def _check_proxy(name: str, value: str) -> None:
    # Clients take a proxy without a scheme as one that is spoken to by HTTP.
    url = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    else:
        if is_valid and parts.scheme.lower() not in _PROXY_SCHEMES:
            raise ConfigError(f"{name} has a scheme that is not supported: use http:// or https://")
    has_misplaced_at = "@" in url.partition("://")[2].partition("/")[2]
    if not is_valid or has_misplaced_at or not value.isprintable() or " " in value:
        raise ConfigError(
            f"{name} is not the URL of a proxy: write http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with the "
            "characters / : @ # ? and % of the password as %2F %3A %40 %23 %3F and %25"
        )


def _check_certificates(path: str) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        reason = (
            error.strerror
            if isinstance(error, FileNotFoundError)
            else "it has no certificates that can be read"
        )
        raise ConfigError(f"{_CERTIFICATE_FILE}: {path}: {reason}") from None
