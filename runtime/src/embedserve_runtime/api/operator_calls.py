"""Checks who calls the management port: only the operator that leads may change or burden a pod.

The operator signs each of its calls with a key of its own, as a JSON Web Token (RFC 7519, EdDSA) in the header
`Authorization`. Pods have the public key, as a JSON Web Key Set in a file that is read again when it changes. A
signature is good for one pod, method, path and body, and for minutes; calls are ordered by the moment at which their
sender became the leader, and by their number, so that neither a leader that was replaced nor a recorded call has an
effect.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from embedserve_runtime.api.errors import CallRefused
from embedserve_runtime.api.watched_file import WatchedFile
from embedserve_runtime.errors import ConfigError

if TYPE_CHECKING:  # the library is loaded only where calls are signed
    from jwt import PyJWK

MAX_CLOCK_DIFFERENCE_SECONDS = 240
"""Seconds that the clocks of a pod and of the operator may differ by."""
_MAX_FILE_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call, as far as its signature covers it. authorization: the value of the header, empty where there is none.
    is_change: whether it changes the process, so that it counts once only.
    """

    method: str
    path: str
    body: bytes
    authorization: bytes
    is_change: bool


@dataclass(frozen=True, slots=True)
class _OperatorKeys:
    """The keys by their identities. is_required: whether calls have to be signed by one of them."""

    by_id: dict[str, PyJWK]
    is_required: bool


class _Claims(BaseModel):
    """The claims of a signature that the library does not check: all but the pod and the time."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    method: str
    path: str
    body_sha256: str
    generation: int
    sequence: int


class OperatorCalls:
    """Decides which calls are the leading operator's. Without a file of keys, all are taken.

    pod: the name of this pod, which a call must be for. clock: monotonic, in seconds.
    """

    def __init__(self, file: Path | None, pod: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._pod = pod
        self._keys = (
            None
            if file is None
            # A file that was never readable admits nobody.
            else WatchedFile(file, "keys of the operator", _read_keys, _OperatorKeys({}, True), clock)
        )
        self._latest = (0, 0)

    def check(self, call: OperatorCall) -> None:
        """Check a call. Raises CallRefused for a call that is not the leading operator's."""
        keys = None if self._keys is None else self._keys.get()
        if keys is None or not keys.is_required:
            return
        claims = self._verify(call, keys)
        covered = (claims.method, claims.path, claims.body_sha256)
        if covered != (call.method, call.path, hashlib.sha256(call.body).hexdigest()):
            raise CallRefused("the signature is that of another call: method, path or body differ")
        generation, _ = self._latest
        version = (claims.generation, claims.sequence)
        if claims.generation < generation:
            raise CallRefused("another operator has become the leader since, and has called already")
        if call.is_change and version <= self._latest:
            raise CallRefused("a later call was taken already")
        self._latest = max(self._latest, version if call.is_change else (claims.generation, 0))

    def _verify(self, call: OperatorCall, keys: _OperatorKeys) -> _Claims:
        """Return what the signature of a call says. Raises CallRefused."""
        import jwt

        scheme, _, token = call.authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            raise CallRefused("only the operator may call this, and signs its calls; this one is not signed")
        try:
            identity = jwt.get_unverified_header(token).get("kid")
            key = keys.by_id.get(str(identity))
            if key is None:
                raise CallRefused(f"no key in {self._file} has the identity {identity!r:.100}")
            payload: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=["EdDSA"],
                audience=self._pod,
                leeway=MAX_CLOCK_DIFFERENCE_SECONDS,
                options={"require": ["aud", "exp", "iat"]},
            )
            return _Claims.model_validate(payload)
        except jwt.InvalidAudienceError:
            raise CallRefused(f"the call is for another pod; this one is {self._pod}") from None
        except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):
            raise CallRefused(
                f"the call is too old, or the clocks of this pod and of the operator differ by more than "
                f"{MAX_CLOCK_DIFFERENCE_SECONDS} s"
            ) from None
        except jwt.PyJWTError as error:
            raise CallRefused(f"the signature is not valid: {error}") from None
        except ValidationError:
            raise CallRefused("the signature does not say which call it is for") from None


def _read_keys(path: Path) -> _OperatorKeys:
    """Return the keys of a file; without one, calls need no signature. Raises ConfigError."""
    import jwt

    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        return _OperatorKeys({}, is_required=False)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        key_set = jwt.PyJWKSet.from_json(raw.decode())
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError):
        raise ConfigError(f"{path} is not a JSON Web Key Set") from None
    return _OperatorKeys(
        {key.key_id: key for key in key_set.keys if key.key_id is not None}, is_required=True
    )
