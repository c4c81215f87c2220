"""Defines every error that the runtime raises on purpose.

    EmbedserveError                 reason (CamelCase, becomes a condition's reason), message, retryable
    ├── ConfigError                 the settings are wrong
    ├── ApiKeysMissing              the file of API keys is not there, or has none
    ├── ModelError                  the model cannot be served; a restart will not help
    │   ├── ModelNotFound           repository, archive, bucket or folder does not exist
    │   │   └── RevisionNotFound    the repository exists, its branch, tag or commit does not (any more)
    │   ├── ModelAccessDenied       gated or private, and the token is absent or not allowed
    │   ├── ModelFileMissing        the folder lacks a file that is needed
    │   ├── ModelInvalid            a file is there and cannot be used
    │   ├── UnsupportedArchitecture no family, no ONNX file to fall back to
    │   └── HashMismatch            at every try the content did not match its checksum
    ├── MemoryTooSmall              the container's memory limit has no room for the model
    ├── DeviceMemoryTooSmall        the memory of the GPU has no room for the model
    ├── FrontEndFailure             a front-end process cannot be kept running
    ├── EngineBroken                the engine runs no batch any more; only a new process helps
    ├── SourceUnavailable           the hub or the network failed; trying again may help
    │   └── ModelNotStored          offline, and the store does not have the whole model
    ├── CertificateUntrusted        the source's certificate is not trusted here
    ├── VolumeError                 the store's volume cannot take the model
    │   ├── VolumeFull
    │   ├── VolumeReadOnly
    │   └── VolumePermissionDenied  the volume belongs to another user or group
    └── RequestError                one request is wrong or cannot be taken now
        ├── EmptyInput
        ├── InvalidInput
        ├── InputTooLong
        ├── BatchTooLarge
        ├── UnknownPrompt
        ├── VectorSpaceMismatch
        ├── Unauthorized            no API key, a wrong one, or one that has expired
        ├── RouteForbidden          the API key is not for this route
        ├── WrongModelKind          the model does not give what the route needs
        ├── Overloaded              retry_after: seconds
        │   └── RateLimited         the client has used up its requests or tokens of this minute
        ├── DeadlineExceeded
        ├── NotReady
        └── EngineFailure           the engine failed on this input
            └── NotFinite           it gave NaN or an infinity

Each boundary (HTTP, gRPC, exit of a command) maps this tree in exactly one table.
"""

from __future__ import annotations

import os
from typing import ClassVar


class EmbedserveError(Exception):
    """Base of all errors raised on purpose; `message` says what was wrong and what to do."""

    reason: ClassVar[str] = "Error"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1
    """The exit code of a command that fails with this error."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(EmbedserveError):
    reason = "ConfigInvalid"
    # A Job's pod failure policy gives up at this exit code: the settings would be wrong at every try.
    exit_code = os.EX_CONFIG


class ApiKeysMissing(EmbedserveError):
    reason = "ApiKeysMissing"
    retryable = True


class ModelError(EmbedserveError):
    reason = "ModelError"


class ModelNotFound(ModelError):
    reason = "ModelNotFound"


class RevisionNotFound(ModelNotFound):
    reason = "RevisionNotFound"


class ModelAccessDenied(ModelError):
    reason = "ModelAccessDenied"


class ModelFileMissing(ModelError):
    reason = "ModelFileMissing"


class ModelInvalid(ModelError):
    reason = "ModelInvalid"


class UnsupportedArchitecture(ModelError):
    reason = "UnsupportedArchitecture"


class UnsupportedInputs(UnsupportedArchitecture):
    """The model reads more than text, or by code of the repository's own, so that no export of it can be served."""


class HashMismatch(ModelError):
    reason = "HashMismatch"


class SourceUnavailable(EmbedserveError):
    reason = "SourceUnavailable"
    retryable = True


class ModelNotStored(SourceUnavailable):
    """The store does not have the whole model, and the process is offline."""

    reason = "ModelNotStored"


class CertificateUntrusted(EmbedserveError):
    reason = "CertificateUntrusted"


class VolumeError(EmbedserveError):
    reason = "VolumeError"
    retryable = True


class VolumeFull(VolumeError):
    reason = "VolumeFull"


class VolumeReadOnly(VolumeError):
    reason = "VolumeReadOnly"
    retryable = False


class VolumePermissionDenied(VolumeError):
    reason = "VolumePermissionDenied"
    retryable = False


class MemoryTooSmall(EmbedserveError):
    reason = "MemoryTooSmall"


class DeviceMemoryTooSmall(EmbedserveError):
    reason = "DeviceMemoryTooSmall"


class FrontEndFailure(EmbedserveError):
    reason = "FrontEndFailure"
    retryable = True


class EngineBroken(EmbedserveError):
    reason = "EngineBroken"
    retryable = True


class RequestError(EmbedserveError):
    reason = "RequestError"


class EmptyInput(RequestError):
    reason = "EmptyInput"


class InvalidInput(RequestError):
    reason = "InvalidInput"


class InputTooLong(RequestError):
    reason = "InputTooLong"


class BatchTooLarge(RequestError):
    reason = "BatchTooLarge"


class UnknownPrompt(RequestError):
    reason = "UnknownPrompt"


class VectorSpaceMismatch(RequestError):
    reason = "VectorSpaceMismatch"


class Unauthorized(RequestError):
    reason = "Unauthorized"


class RouteForbidden(RequestError):
    """The API key is valid, but not for this route."""

    reason = "RouteForbidden"


class WrongModelKind(RequestError):
    reason = "WrongModelKind"


class Overloaded(RequestError):
    """The queue is full; it should have room after `retry_after` seconds."""

    reason = "Overloaded"
    retryable = True

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    """The client has used up what it may send in a minute."""

    reason = "RateLimited"


class DeadlineExceeded(RequestError):
    reason = "DeadlineExceeded"


class NotReady(RequestError):
    reason = "NotReady"
    retryable = True


class EngineFailure(RequestError):
    reason = "EngineFailure"


class NotFinite(EngineFailure):
    reason = "NotFinite"
