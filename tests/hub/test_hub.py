"""The test hub against the real ``huggingface_hub`` client: what the client makes of it is what counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from e2e.hub import Access, Fault, FaultKind, HubServer

READER, STRANGER = "reader-token", "stranger-token"
PUBLIC, GATED = "lab/public", "lab/gated"
WEIGHTS = bytes(range(256)) * 4096
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": WEIGHTS,
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    root = tmp_path / "repositories"
    for repository in (PUBLIC, GATED):
        _write(root / repository / "main", FILES)
    _write(root / PUBLIC / "next", {"config.json": b'{"model_type": "roberta"}'})
    access = Access(frozenset({GATED}), readers=frozenset({READER}), strangers=frozenset({STRANGER}))
    with HubServer(root, access) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _download(
    hub: HubServer, cache: Path, file: str, repository: str = PUBLIC, token: str | None = None
) -> bytes:
    # False and not None: a token that the developer is logged in with must not be sent.
    path = hf_hub_download(repository, file, endpoint=hub.url, cache_dir=cache, token=token or False)
    return Path(path).read_bytes()


def test_snapshot_brings_every_file_as_it_is(hub: HubServer, cache: Path) -> None:
    folder = Path(snapshot_download(PUBLIC, endpoint=hub.url, cache_dir=cache, token=False))
    got = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    assert got == FILES
    assert folder.name == HfApi(hub.url, token=False).model_info(PUBLIC).sha


def test_snapshot_obeys_patterns(hub: HubServer, cache: Path) -> None:
    folder = snapshot_download(
        PUBLIC, endpoint=hub.url, cache_dir=cache, token=False, allow_patterns=["*.json"]
    )
    assert sorted(path.name for path in Path(folder).iterdir()) == ["1_Pooling", "config.json"]


def test_second_snapshot_transfers_no_content(hub: HubServer, cache: Path) -> None:
    snapshot_download(PUBLIC, endpoint=hub.url, cache_dir=cache, token=False)
    before = len(hub.requests)
    snapshot_download(PUBLIC, endpoint=hub.url, cache_dir=cache, token=False)
    assert not [request for request in hub.requests[before:] if "/resolve/" in request.path]


def test_model_info_lists_files_and_a_whole_commit_id(hub: HubServer) -> None:
    info = HfApi(hub.url, token=False).model_info(PUBLIC)
    assert sorted(sibling.rfilename for sibling in info.siblings or []) == sorted(FILES)
    assert info.sha is not None
    assert len(info.sha) == 40


def test_tree_tells_the_digest_of_large_files(hub: HubServer) -> None:
    tree = list(HfApi(hub.url, token=False).list_repo_tree(PUBLIC, recursive=True))
    assert {entry.path for entry in tree} == {*FILES, "1_Pooling"}
    large = {entry.path: entry.lfs.sha256 for entry in tree if isinstance(entry, RepoFile) and entry.lfs}
    assert large == {"model.safetensors": hashlib.sha256(WEIGHTS).hexdigest()}


@pytest.mark.parametrize("revision", ["next", "its commit"])
def test_revision_is_found_by_branch_and_by_commit(hub: HubServer, cache: Path, revision: str) -> None:
    if revision == "its commit":
        sha = HfApi(hub.url, token=False).model_info(PUBLIC, revision="next").sha
        assert sha is not None
        revision = sha
    path = hf_hub_download(
        PUBLIC, "config.json", revision=revision, endpoint=hub.url, cache_dir=cache, token=False
    )
    assert Path(path).read_bytes() == b'{"model_type": "roberta"}'


def test_commit_changes_with_the_content_and_only_with_it(hub: HubServer) -> None:
    api = HfApi(hub.url, token=False)
    first, again = api.model_info(PUBLIC).sha, api.model_info(PUBLIC).sha
    (hub.hub.repositories.root / PUBLIC / "main/config.json").write_bytes(b"{}")
    assert first == again != api.model_info(PUBLIC).sha


@pytest.mark.parametrize("token", [None, READER])
def test_missing_repository_is_told(hub: HubServer, cache: Path, token: str | None) -> None:
    with pytest.raises(RepositoryNotFoundError):
        HfApi(hub.url, token=token or False).model_info("lab/absent")
    with pytest.raises(RepositoryNotFoundError):
        _download(hub, cache, "config.json", "lab/absent", token)


def test_missing_revision_and_missing_file_are_told(hub: HubServer, cache: Path) -> None:
    with pytest.raises(RevisionNotFoundError):
        HfApi(hub.url, token=False).model_info(PUBLIC, revision="absent")
    with pytest.raises(RemoteEntryNotFoundError):
        _download(hub, cache, "absent.json")


@pytest.mark.parametrize(("token", "want_status"), [(None, 401), (STRANGER, 403)])
def test_gated_repository_is_closed_to_others(
    hub: HubServer, cache: Path, token: str | None, want_status: int
) -> None:
    assert HfApi(hub.url, token=token or False).model_info(GATED).gated == "manual"
    with pytest.raises(GatedRepoError) as refused:
        _download(hub, cache, "config.json", GATED, token)
    assert refused.value.response.status_code == want_status


def test_gated_repository_is_open_to_readers(hub: HubServer, cache: Path) -> None:
    assert _download(hub, cache, "config.json", GATED, READER) == FILES["config.json"]


def test_invalid_token_is_refused_even_for_public_repositories(hub: HubServer) -> None:
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as refused:
        HfApi(hub.url, token="made-up").model_info(PUBLIC)
    assert refused.value.response.status_code == 401


def test_rate_limited_client_comes_back_and_gets_the_file(hub: HubServer, cache: Path) -> None:
    hub.faults.add(Fault(FaultKind.RATE_LIMIT, "/lab/public/resolve/*", amount=1, times=1))
    folder = Path(snapshot_download(PUBLIC, endpoint=hub.url, cache_dir=cache, token=False))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [request.status for request in hub.requests].count(429) == 1


def test_broken_transfer_is_resumed_after_the_last_whole_chunk(hub: HubServer, cache: Path) -> None:
    content = WEIGHTS * 12
    _write(hub.hub.repositories.root / PUBLIC / "main", {"large.bin": content})
    breaks_at = constants.DOWNLOAD_CHUNK_SIZE + 100_000
    hub.faults.add(Fault(FaultKind.BROKEN, "*/large.bin", amount=breaks_at, times=1))
    assert _download(hub, cache, "large.bin") == content
    sent = [request.sent_bytes for request in hub.requests if request.method == "GET" and request.sent_bytes]
    assert sent == [breaks_at, len(content) - constants.DOWNLOAD_CHUNK_SIZE]


def test_slow_transfer_is_slow_and_whole(hub: HubServer, cache: Path) -> None:
    hub.faults.add(Fault(FaultKind.SLOW, "*/model.safetensors", amount=4 * len(WEIGHTS), times=1))
    assert _download(hub, cache, "model.safetensors") == WEIGHTS


@pytest.mark.parametrize(
    ("wanted", "want_status", "want"),
    [
        ("bytes=10-19", 206, WEIGHTS[10:20]),
        ("bytes=1048570-", 206, WEIGHTS[1048570:]),
        ("bytes=-6", 206, WEIGHTS[-6:]),
        ("bytes=2000000-", 416, b""),
    ],
)
def test_ranges(hub: HubServer, wanted: str, want_status: int, want: bytes) -> None:
    url = hf_hub_url(PUBLIC, "model.safetensors", endpoint=hub.url)
    answer = httpx.get(url, headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (want_status, want)


def test_faults_can_be_set_from_outside_of_the_process(hub: HubServer) -> None:
    info = f"{hub.url}/api/models/{PUBLIC}"
    assert httpx.post(f"{hub.url}/_faults", json={"kind": "serverError", "path": "/api/*"}).status_code == 204
    assert httpx.get(info).status_code == 503
    assert httpx.delete(f"{hub.url}/_faults").status_code == 204
    assert httpx.get(info).status_code == 200
    assert httpx.post(f"{hub.url}/_faults", json={"kind": "unheard of"}).status_code == 400
    assert {"method": "GET", "path": f"/api/models/{PUBLIC}", "status": 503, "sent_bytes": 48} in httpx.get(
        f"{hub.url}/_requests"
    ).json()
