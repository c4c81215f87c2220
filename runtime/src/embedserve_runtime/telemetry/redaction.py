"""Keeps secrets out of what the process writes: logs with their tracebacks, termination messages, standard error.

Errors are written so that they quote no secret. This is for the errors of libraries, which may quote anything.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

REDACTED = "***"
MIN_CHARACTERS = 6
"""Shorter pieces are left alone: to replace every "true" or "8080" would make logs unreadable."""
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_KEYS?|ACCESS_KEY|ACCESS_KEY_ID|AUTHORIZATION|\w*_HEADERS)($|_)"
)
"""Environment variables whose values are secrets: ours, those of S3 clients, of the hub's client, of OpenTelemetry."""
_NOT_SECRET_NAME = re.compile(r"_(PATH|FILE|DIR|URL|URI|ENDPOINT)$")
_PROXY_NAME = re.compile(r"_PROXY$", re.IGNORECASE)


class Redactor:
    """Replaces the secrets that it knows, in every spelling that a library may give them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
        # Alternatives are tried in order: the longest first, so that no rest of one is left.
        longest_first = sorted(spellings, key=lambda one: (-len(one), one))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if spellings else None

    def redact(self, text: str) -> str:
        """`text` with every known secret replaced by `***`."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None else text


def redactor_for(settings: Iterable[SecretStr | None]) -> Redactor:
    """A redactor of the secrets among `settings` and of those in this process's environment."""
    given = [secret.get_secret_value() for secret in settings if secret is not None]
    return Redactor([*given, *secrets_of_environment(os.environ)])


def secrets_of_environment(environment: Mapping[str, str]) -> list[str]:
    """Values of the variables whose names say that they hold secrets, and passwords of proxies."""
    found = []
    for name, value in environment.items():
        if _PROXY_NAME.search(name):
            found.append(_password(value))
        elif _SECRET_NAME.search(name.upper()) and not _NOT_SECRET_NAME.search(name.upper()):
            found.append(value)
    return [value for value in found if value]


def _password(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""


def _spellings(secret: str) -> Iterable[str]:
    """The pieces of a secret between separators, as they are, escaped as in JSON and Python, and quoted for a URL."""
    for piece in {secret.strip(), *re.split(r"[\s,;=]+", secret)}:
        if len(piece) >= MIN_CHARACTERS:
            yield piece
            yield json.dumps(piece)[1:-1]
            yield json.dumps(piece, ensure_ascii=False)[1:-1]
            yield repr(piece)[1:-1]
            yield repr(piece.encode())[2:-1]
            yield quote(piece, safe="")
