"""Reads prefixes of S3-compatible servers. Keys, region and role come from the environment, as every S3 client takes
them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.config.secrets import s3_credentials
from embedserve_runtime.errors import (
    ConfigError,
    EmbedserveError,
    ModelAccessDenied,
    ModelFileMissing,
    ModelNotFound,
    SourceUnavailable,
)
from embedserve_runtime.sources.remote import ExpectedHash, Listing, RemoteFile, Request, untrusted_error

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

SIGNED_FOR = timedelta(minutes=15)
MAX_OBJECTS = 10_000
_MD5 = re.compile(r"[0-9a-f]{32}")
# Of the library's message: the body of the server's answer, and its status.
_CODE = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")
_STATUS = re.compile(r"status code: (\d{3})")
_DENIED = ("401", "403")
_KEY_CODE = re.compile(r"AccessDenied|AccessKey|Signature|Token|User")


class S3Source:
    """The objects under one prefix. They are read by signed URLs, with the ETag that the listing gave."""

    def __init__(self, settings: ModelSettings) -> None:
        """Read bucket and prefix from the settings. Raises ConfigError."""
        url = urlsplit(settings.source)
        self._name = settings.source
        # A server of one's own has a name; of AWS the bucket says more.
        self.host = urlsplit(settings.s3_url or "").hostname or f"s3://{url.netloc}"
        self._prefix = url.path.strip("/")
        # Nobody's keys, nothing to sign with: the plain address of what is public.
        self._public = f"{settings.s3_public_url}/{url.netloc}" if settings.s3_public_url else None
        if not url.netloc:
            raise ConfigError(f"model.source: {settings.source} names no bucket; write s3://bucket/prefix")
        self._store = S3Store(
            url.netloc,
            prefix=self._prefix or None,
            config=_build_s3_config(settings),
            client_options=_build_client_options(settings),
            retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=60)},
        )

    def list_files(self) -> Listing:
        """List the objects. Raises ModelNotFound, ModelAccessDenied, SourceUnavailable or CertificateUntrusted."""
        files = []
        try:
            for page in obstore.list(self._store):
                files += [_describe_file(entry["path"], entry["size"], entry["e_tag"]) for entry in page]
                if len(files) > MAX_OBJECTS:
                    raise ModelNotFound(
                        f"{self._name} has more than {MAX_OBJECTS} objects: name the prefix of one model"
                    )
        except (BaseError, OSError) as error:
            raise self._explain_error(error) from error
        if not files:
            raise ModelNotFound(f"{self._name} has no objects: check the bucket and the prefix")
        listed = "".join(
            f"{file.path}\0{file.size}\0{file.etag}\n" for file in sorted(files, key=lambda file: file.path)
        )
        return Listing(hashlib.sha256(listed.encode()).hexdigest()[:40], tuple(files))

    def request(self, file: RemoteFile) -> Request:
        if self._public is not None:
            return Request(f"{self._public}/{quote(f'{self._prefix}/{file.path}'.lstrip('/'))}")
        try:
            return Request(obstore.sign(self._store, "GET", file.path, SIGNED_FOR))
        except (BaseError, OSError) as error:
            raise self._explain_error(error) from error

    def explain(self, status: int, headers: Mapping[str, str], file: RemoteFile) -> EmbedserveError:
        del headers
        if status in (401, 403):
            return ModelAccessDenied(
                f"{self._name} may not be read with these keys: {file.path}: HTTP {status}"
            )
        if status in (404, 410):
            return ModelFileMissing(f"{self._name} lists {file.path} and does not have it: HTTP {status}")
        if status == 412:
            return SourceUnavailable(f"{self._name}: {file.path} was changed while it was fetched: try again")
        return SourceUnavailable(f"{self._name}: {file.path}: HTTP {status}")

    def can_verify(self, headers: Mapping[str, str]) -> bool:
        """Return whether the ETag is the MD5 of the content, which it is not with a customer's or a KMS key."""
        by_key = headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
        return not by_key and "x-amz-server-side-encryption-customer-algorithm" not in headers

    def _explain_error(self, error: Exception) -> EmbedserveError:
        """Explain an error by the server's own code where it gives one: servers differ in their statuses."""
        text = str(error)
        code, status = _CODE.search(text), _STATUS.search(text)
        problem = f"{code[1]}: {code[2]}" if code is not None else _take_first_line(text)
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError) or (
            status and status[1] in _DENIED
        )
        if denied or (code is not None and _KEY_CODE.search(code[1])):
            return ModelAccessDenied(
                f"{self._name} may not be listed with these keys ({problem}): set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY of a user that may list and read it"
            )
        if code is not None and code[1] == "NoSuchBucket":
            return ModelNotFound(f"{self._name}: {problem}")
        if "invalid peer certificate" in text:
            return untrusted_error(self._name, _take_first_line(text))
        return SourceUnavailable(f"{self._name} cannot be listed: {problem}")


def _describe_file(path: str, size: int, etag: str | None) -> RemoteFile:
    """Describe a file. The ETag of what was sent in one part is its MD5."""
    bare = (etag or "").strip('"')
    return RemoteFile(path, size, ExpectedHash("md5", bare) if _MD5.fullmatch(bare) else None, etag)


def _build_s3_config(settings: ModelSettings) -> S3Config:
    config = cast("S3Config", s3_credentials())
    if settings.s3_endpoint:
        config["endpoint"] = settings.s3_endpoint
    return config


def _build_client_options(settings: ModelSettings) -> ClientConfig:
    options: ClientConfig = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=60)}
    if (settings.s3_url or "").startswith("http://"):
        options["allow_http"] = True
    if settings.certificate_file is not None:
        options["root_certificate"] = settings.certificate_file.read_bytes()
    return options


def _take_first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason is given")
