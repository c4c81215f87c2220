"""Reads repositories of the Hugging Face Hub, or of a server with the same API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

# Read by the client library when it is imported: nothing is reported about us, and logs get no progress bars.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import httpx2  # the client library's own HTTP library: its transport errors come through unwrapped
from huggingface_hub import HfApi, ModelInfo, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    EmbedserveError,
    ModelAccessDenied,
    ModelFileMissing,
    ModelNotFound,
    RevisionNotFound,
    SourceUnavailable,
)
from embedserve_runtime.sources.remote import (
    ExpectedHash,
    Listing,
    RemoteFile,
    Request,
    build_connection_error,
)

# Who is offline asks no source. The client library reads HF_HUB_OFFLINE itself, over which the setting wins.
constants.HF_HUB_OFFLINE = False

LICENSE_TAG = "license:"


class HubSource:
    """A repository at one revision as a source. `list_files` resolves the commit, at which files are then read."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self.host = find_host(settings)
        self._commit = settings.commit or settings.revision

    def list_files(self) -> Listing:
        """List the files of the repository.

        Raises ModelNotFound, RevisionNotFound, ModelAccessDenied, SourceUnavailable or CertificateUntrusted.
        """
        settings = self._settings
        with _hub_errors(settings):
            api = HfApi(endpoint=settings.endpoint, token=self._token or False)
            info = api.model_info(settings.source, revision=self._commit, files_metadata=True)
        self._commit = info.sha or self._commit
        return Listing(
            commit=self._commit,
            files=tuple(_describe_file(sibling) for sibling in info.siblings or []),
            licence=_read_license(info),
        )

    def request(self, file: RemoteFile) -> Request:
        settings = self._settings
        url = hf_hub_url(settings.source, file.path, revision=self._commit, endpoint=settings.endpoint)
        return Request(url, {"Authorization": f"Bearer {self._token}"} if self._token else {})

    def explain(self, status: int, headers: Mapping[str, str], file: RemoteFile) -> EmbedserveError:
        name = self._settings.source
        code = headers.get("x-error-code")
        if code == "GatedRepo":
            return build_gated_error(self._settings)
        if status in (401, 403):
            return _access_error(self._settings, status)
        if code == "RevisionNotFound":
            return RevisionNotFound(f"repository {name} has no commit {self._commit} any more")
        if status == 412:
            return SourceUnavailable(
                f"{self.host} has another size of {file.path} than repository {name} lists; try again later"
            )
        if status in (404, 410):
            return ModelFileMissing(
                f"repository {name} lists {file.path} and does not have it: HTTP {status}"
            )
        return SourceUnavailable(f"{self.host} answered HTTP {status} for {file.path} of repository {name}")

    def can_verify(self, headers: Mapping[str, str]) -> bool:
        del headers
        return True

    @property
    def _token(self) -> str | None:
        token = self._settings.token
        return token.get_secret_value() if token is not None else None


def find_host(settings: ModelSettings) -> str:
    """Return the name of the server that has the repositories: the Hugging Face Hub's, or that of a mirror."""
    endpoint = settings.endpoint or constants.ENDPOINT
    return urlsplit(endpoint).hostname or endpoint


def find_rate_limit_headers(error: BaseException | None) -> Mapping[str, str] | None:
    """Return the headers of the 429 response that an error was made from."""
    if isinstance(error, HfHubHTTPError) and error.response.status_code == 429:
        return error.response.headers
    return None


def build_gated_error(settings: ModelSettings) -> ModelAccessDenied:
    hint = "the token given has no access to it" if settings.token else "no token is given"
    return ModelAccessDenied(
        f"repository {settings.source} is gated and {hint}: accept its terms on {find_host(settings)} and set a "
        "token that may read it"
    )


def _access_error(settings: ModelSettings, status: int) -> ModelAccessDenied:
    return ModelAccessDenied(
        f"{find_host(settings)} refuses repository {settings.source} (HTTP {status}): check the token"
    )


def _describe_file(sibling: RepoSibling) -> RemoteFile:
    """Describe a file. Large ones have a SHA-256, others git's name of their content; a mirror may tell neither."""
    if sibling.lfs is not None:
        return RemoteFile(sibling.rfilename, sibling.lfs.size, ExpectedHash("sha256", sibling.lfs.sha256))
    check = ExpectedHash("git", sibling.blob_id) if sibling.blob_id else None
    return RemoteFile(sibling.rfilename, sibling.size, check)


def _read_license(info: ModelInfo) -> str | None:
    tags = (tag for tag in info.tags or [] if tag.startswith(LICENSE_TAG))
    return next((tag.removeprefix(LICENSE_TAG) for tag in tags), None)


def _describe_revision(settings: ModelSettings) -> str:
    if settings.commit is None:
        return f"revision {settings.revision!r}"
    return (
        f"commit {settings.commit}, for which revision {settings.revision!r} stood before; with another value of "
        "model.refresh it is looked up again"
    )


@contextmanager
def _hub_errors(settings: ModelSettings) -> Iterator[None]:
    """Turn the client library's errors into ours, the most specific first."""
    name, host = settings.source, find_host(settings)
    try:
        yield
    except GatedRepoError as error:
        raise build_gated_error(settings) from error
    except RevisionNotFoundError as error:
        raise RevisionNotFound(f"repository {name} has no {_describe_revision(settings)}") from error
    except RepositoryNotFoundError as error:
        hint = "" if settings.token else ", or it is private and no token is given"
        raise ModelNotFound(f"repository {name} does not exist on {host}{hint}") from error
    except HFValidationError as error:
        raise ModelNotFound(
            f"{name!r} is neither a folder that exists nor a repository name (owner/name)"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise _access_error(settings, status) from error
        raise SourceUnavailable(f"{host} answered HTTP {status} for repository {name}") from error
    except (httpx2.HTTPError, ConnectionError, TimeoutError) as error:
        raise build_connection_error(f"repository {name} on {host}", error) from error
