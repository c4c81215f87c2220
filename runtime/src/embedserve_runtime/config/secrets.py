"""Validates the secrets among the settings.

White space around a secret comes from the file that it was made from (`kubectl create secret --from-file`, an
editor's last newline), so it is stripped. What is left is sent in an HTTP header. HTTP libraries quote a header that
they refuse in their error, so a value that no header can carry is refused here, by a message that does not quote it.
"""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from embedserve_runtime.errors import ConfigError

_HEADER_TOKEN = re.compile(r"[\x21-\x7e]+")
"""RFC 9110, section 5.5, without blanks, which neither RFC 6750 allows in a bearer token nor AWS in a key."""
_AUTH_SCHEMES = frozenset({"basic", "bearer", "digest", "token"})
_QUOTES = "\"'`"
_AWS_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
}
"""Variables of an S3 client, and what the S3 library calls them."""


def validate_secret(value: str) -> str:
    """Strip the white space around a secret. Raises ValueError, which does not quote it."""
    stripped = value.strip()
    if not stripped:
        raise ValueError("is empty: it has no characters but white space")
    if _HEADER_TOKEN.fullmatch(stripped) is None:
        raise ValueError(
            "cannot be sent in an HTTP header: it has a line break, a blank, a control character or a character "
            "outside ASCII inside it. Write the bare value, without a name in front of it and without quotes"
        )
    return stripped


def split_secrets(text: str) -> tuple[str, ...]:
    """Split a text into secrets at commas and white space. An empty text is one empty secret, which is refused."""
    return tuple(re.split(r"[,\s]+", text.strip(", \t\r\n")))


def _validate_secret(value: SecretStr) -> SecretStr:
    return SecretStr(validate_secret(value.get_secret_value()))


def _validate_unless_empty(value: SecretStr | None) -> SecretStr | None:
    return _validate_secret(value) if value is not None and value.get_secret_value() else None


def validate_api_key(value: str) -> str:
    """Strip the white space around an API key. Raises ValueError, which does not quote it.

    A header or a quoted value that was written where a bare key belongs would be split into keys that can be guessed.
    """
    key = validate_secret(value)
    if key.lower() in _AUTH_SCHEMES:
        raise ValueError(
            "is the name of an authentication scheme; write the bare keys, without a word before them"
        )
    if key[0] in _QUOTES or key[-1] in _QUOTES:
        raise ValueError("begins or ends with a quote; write the bare value, without quotes")
    return key


def _validate_api_key(value: SecretStr) -> SecretStr:
    return SecretStr(validate_api_key(value.get_secret_value()))


HeaderSecret = Annotated[SecretStr, AfterValidator(_validate_secret)]
"""A secret that is sent or received in an HTTP header."""
ApiKeySecret = Annotated[SecretStr, AfterValidator(_validate_api_key)]
"""A key that clients send as `Authorization: Bearer`."""
OptionalHeaderSecret = Annotated[SecretStr | None, AfterValidator(_validate_unless_empty)]
"""An optional `HeaderSecret`; an empty variable counts as not set."""


def s3_credentials() -> dict[str, str]:
    """Read the S3 keys from the environment, validated, under the S3 library's names.

    Raises ConfigError, which names the variable.
    """
    credentials = {}
    for variable, setting in _AWS_SETTINGS.items():
        if os.environ.get(variable):
            try:
                credentials[setting] = validate_secret(os.environ[variable])
            except ValueError as error:
                raise ConfigError(f"{variable} {error}") from None
    return credentials
