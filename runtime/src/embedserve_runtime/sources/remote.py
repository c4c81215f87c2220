"""Describes what a source offers, in one form for all sources."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import httpcore2
import httpx2

from embedserve_runtime.errors import CertificateUntrusted, EmbedserveError, SourceUnavailable

READ_BYTES = 256 << 10
"""Bytes that are read from a connection at once, at most. With the 64 KiB that httpcore2 takes, threads that hand the
interpreter to each other take as long as the copying: 2 GB came at 0.78 of curl's rate, with this at 0.94."""


@dataclass(frozen=True, slots=True)
class ExpectedHash:
    """The hash that a file's content must have, in hex. git: SHA-1 as git names a file's content."""

    kind: Literal["sha256", "git", "md5"]
    value: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source.

    path: relative, with slashes. size: None where the source does not say. etag: sent as If-Match, so that parts of two
    versions are never mixed.
    """

    path: str
    size: int | None = None
    expected_hash: ExpectedHash | None = None
    etag: str | None = None

    @property
    def sha256(self) -> str | None:
        return (
            self.expected_hash.value
            if self.expected_hash is not None and self.expected_hash.kind == "sha256"
            else None
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source as it is now. commit: pins it; licence: as the source names it."""

    commit: str
    files: tuple[RemoteFile, ...]
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Source(Protocol):
    """A source of files, which are listed and read."""

    host: str
    """Name of the server that lists the files, for messages and for the limit of its requests."""

    def list_files(self) -> Listing:
        """List the files of the source. Raises ModelError, SourceUnavailable or CertificateUntrusted."""

    def request(self, file: RemoteFile) -> Request:
        """Build the request for a file's content, again for each part, so that signatures do not expire."""

    def explain(self, status: int, headers: Mapping[str, str], file: RemoteFile) -> EmbedserveError:
        """Return the error for an answer that is not worth a retry."""

    def can_verify(self, headers: Mapping[str, str]) -> bool:
        """Return whether a file's check holds for the content that follows these headers."""


def build_connection_error(name: str, error: BaseException) -> EmbedserveError:
    """Translate a transport error into one of ours. name: what was asked, for the message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(cause):
            return untrusted_error(name, str(error))
        cause = cause.__cause__ or cause.__context__
    return SourceUnavailable(f"{name} cannot be reached: {str(error) or type(error).__name__}")


def untrusted_error(name: str, reason: str) -> CertificateUntrusted:
    return CertificateUntrusted(
        f"{name} has a certificate that is not trusted here ({reason}): set SSL_CERT_FILE to a file with the "
        "certificates of its authority"
    )


def build_http_client(connect_s: float, read_s: float, connections: int) -> httpx2.Client:
    """Build a client. Proxies and SSL_CERT_FILE are taken from the environment; content comes as it is stored."""
    # Neither httpx2 nor its transport hands the size on; a larger one does no other connection of the process harm.
    httpcore2.HTTP11Connection.READ_NUM_BYTES = READ_BYTES
    return httpx2.Client(
        timeout=httpx2.Timeout(read_s, connect=connect_s, pool=None),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"Accept-Encoding": "identity", "User-Agent": "embedserve"},
        follow_redirects=True,
    )
