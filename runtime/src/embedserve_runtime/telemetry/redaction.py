"""Redacts secrets from what the process writes: logs with their tracebacks, termination messages, standard error.

The runtime's own errors do not quote secrets. This is for the errors of libraries, which may quote anything.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from pydantic import SecretStr

REDACTED = "***"
MIN_CHARACTERS = 6
"""Shorter parts are not replaced: without every "true" or "8080" logs would be unreadable."""
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_KEYS?|ACCESS_KEY|ACCESS_KEY_ID|AUTHORIZATION|\w*_HEADERS)($|_)"
)
"""Environment variables whose values are secrets: ours, those of S3 clients, of the hub's client, of OpenTelemetry."""
_NOT_SECRET_NAME = re.compile(r"_(PATH|FILE|DIR|URL|URI|ENDPOINT)$")
_PROXY_NAME = re.compile(r"_PROXY$", re.IGNORECASE)


class Redactor:
    """Replaces known secrets, in every spelling that a library may give them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings = {spelling for secret in secrets for spelling in _list_spellings(secret)}
        # Alternatives are tried in order: the longest comes first, so that no remainder of it is left.
        longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if spellings else None

    def redact(self, text: str) -> str:
        """Replace every known secret in a text by `***`."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None else text


def build_redactor(settings: Iterable[SecretStr | None]) -> Redactor:
    """Create a redactor for the secrets among `settings` and those in this process's environment."""
    values = [secret.get_secret_value() for secret in settings if secret is not None]
    return Redactor([*values, *list_environment_secrets(os.environ)])


def list_environment_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables whose names say that they hold secrets, and the passwords of proxies."""
    secrets = []
    for name, value in environment.items():
        if _PROXY_NAME.search(name):
            secrets += _list_userinfo(value)
        elif _SECRET_NAME.search(name.upper()) and not _NOT_SECRET_NAME.search(name.upper()):
            secrets.append(value)
    return [value for value in secrets if value]


def _list_userinfo(url: str) -> list[str]:
    """Return the user and the password of a URL, together and in the pieces that a parser may make of them: in a URL
    that is malformed, a password may have characters that separate its other parts.
    """
    userinfo, at, _ = url.rpartition("@")
    if not at:
        return []
    userinfo = userinfo.rpartition("://")[2]
    return [userinfo, userinfo.partition(":")[2], *re.split(r"[/:@#?]", userinfo)]


def _list_spellings(secret: str) -> Iterable[str]:
    """Yield the parts of a secret between separators: as they are, escaped as in JSON and Python, and quoted for a
    URL."""
    for piece in {secret.strip(), *re.split(r"[\s,;=]+", secret)}:
        if len(piece) >= MIN_CHARACTERS:
            yield piece
            yield json.dumps(piece)[1:-1]
            yield json.dumps(piece, ensure_ascii=False)[1:-1]
            yield repr(piece)[1:-1]
            yield repr(piece.encode())[2:-1]
            yield quote(piece, safe="")
