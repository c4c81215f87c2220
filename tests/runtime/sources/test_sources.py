"""Models fetched by the real client library from a real server into the store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.hub import Access, Fault, FaultKind, HubServer
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    ConfigError,
    EmbedserveError,
    ModelAccessDenied,
    ModelNotFound,
    SourceUnavailable,
)
from embedserve_runtime.sources import fetch_model, open_model
from embedserve_runtime.sources.fetching import open_source
from embedserve_runtime.sources.selection import select_weight_files
from tests.runtime.sources.fetch_kit import QUICK
from tests.support.models import copy_of_minilm

PUBLIC, GATED = "lab/public", "lab/gated"
READER, STRANGER = "reader-token", "stranger-token"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes that nobody runs, enough to come in parts."""
    file = tmp_path_factory.mktemp("weights") / "model.safetensors"
    file.write_bytes(random.Random(0).randbytes(24_000_000))
    return file


@pytest.fixture
def repositories(tmp_path: Path, weights: Path) -> Path:
    """MiniLM's small files with those weights."""
    root = tmp_path / "repositories"
    for repository in (PUBLIC, GATED):
        copy_of_minilm(root / repository / "main")
        (root / repository / "main" / "model.safetensors").unlink()
        (root / repository / "main" / "model.safetensors").symlink_to(weights)
        (root / repository / "main" / "onnx").mkdir()
        (root / repository / "main" / "onnx" / "config.json").write_text("{}")
        (root / repository / "main" / "pytorch_model.bin").write_bytes(b"a pickle")
    return root


@pytest.fixture
def hub(repositories: Path) -> Iterator[HubServer]:
    access = Access(frozenset({GATED}), readers=frozenset({READER}), strangers=frozenset({STRANGER}))
    with HubServer(repositories, access) as server:
        yield server


@pytest.fixture
def settings(hub: HubServer, tmp_path: Path) -> ModelSettings:
    return ModelSettings(source=PUBLIC, endpoint=hub.url, store=tmp_path / "store")


def changed(settings: ModelSettings, **update: object) -> ModelSettings:
    return ModelSettings.model_validate({**settings.model_dump(), **update})


def test_a_fetched_model_holds_the_files_that_serving_needs_and_no_others(
    settings: ModelSettings, weights: Path
) -> None:
    located = fetch_model(settings)
    names = {str(path.relative_to(located.folder)) for path in located.folder.rglob("*") if path.is_file()}
    assert {
        "config.json",
        "tokenizer.json",
        "modules.json",
        "1_Pooling/config.json",
        "model.safetensors",
    } <= names
    assert not {name for name in names if name.startswith("onnx") or name.endswith(".bin")}
    assert (located.folder / "model.safetensors").read_bytes() == weights.read_bytes()
    assert located.size == sum((located.folder / name).stat().st_size for name in names)


def test_an_unchanged_revision_is_not_downloaded_again(settings: ModelSettings, hub: HubServer) -> None:
    first = fetch_model(settings)
    before = len(hub.requests)
    assert fetch_model(settings) == first
    assert not [request for request in hub.requests[before:] if "resolve" in request.path]


def test_what_is_in_the_store_is_opened_without_asking_the_hub(
    settings: ModelSettings, hub: HubServer
) -> None:
    fetched = fetch_model(settings)
    before = len(hub.requests)
    assert open_model(settings) == fetched
    assert len(hub.requests) == before


def test_a_moved_branch_is_fetched_anew_on_request_and_the_old_files_stay(
    settings: ModelSettings, repositories: Path
) -> None:
    first = fetch_model(settings)
    (repositories / PUBLIC / "main" / "README.json").write_text("{}")
    assert fetch_model(settings) == first, "what a branch stands for is looked up once"
    second = fetch_model(changed(settings, refresh="today"))
    assert (first.revision, first.digest) != (second.revision, second.digest)
    assert first.folder.is_dir()
    shared = "model.safetensors"
    assert (first.folder / shared).stat().st_ino == (second.folder / shared).stat().st_ino


def test_a_commit_that_is_known_is_fetched_under_the_name_of_its_branch(
    settings: ModelSettings, repositories: Path
) -> None:
    first = fetch_model(settings)
    (repositories / PUBLIC / first.revision).symlink_to(repositories / PUBLIC / "main")
    elsewhere = changed(settings, store=settings.store.with_name("another"), commit=first.revision)
    assert fetch_model(elsewhere).revision == first.revision
    named = changed(elsewhere, commit=None, offline=True)
    assert open_model(named).digest == first.digest, "servers know the branch only"


def test_a_broken_transfer_is_taken_up_where_it_ended(settings: ModelSettings, hub: HubServer) -> None:
    broken_after = 16_000_000
    path = "/*/resolve/*/model.safetensors"
    hub.faults.add(Fault(FaultKind.BROKEN, path=path, amount=broken_after, times=1))
    located = fetch_model(settings)
    sent_bytes = sum(
        request.sent_bytes for request in hub.requests if request.path.endswith("model.safetensors")
    )
    size = (located.folder / "model.safetensors").stat().st_size
    assert size <= sent_bytes < size + broken_after, "the second try must not start from nothing"


def test_a_hub_in_trouble_is_named_and_the_next_try_succeeds(settings: ModelSettings, hub: HubServer) -> None:
    hub.faults.add(Fault(FaultKind.SERVER_ERROR, path="/api/*"))
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1 answered HTTP 503 for repository lab/public"):
        fetch_model(settings, retry_policy=QUICK)
    hub.faults.clear()
    assert fetch_model(settings).folder.is_dir()


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({"source": "lab/public"}, "huggingface.co", id="the Hub"),
        pytest.param(
            {"source": "lab/public", "endpoint": "https://hub.example:8443/hf"},
            "hub.example",
            id="a mirror of it",
        ),
        pytest.param(
            {"source": "https://models.example/m.tar.gz", "sha256": "0" * 64},
            "models.example",
            id="an archive",
        ),
        pytest.param(
            {"source": "s3://bucket/m", "s3_endpoint": "https://minio.example:9000"},
            "minio.example",
            id="a server",
        ),
        pytest.param({"source": "s3://bucket/m"}, "s3://bucket", id="AWS"),
    ],
)
def test_messages_name_the_server_that_is_asked(fields: dict[str, str], want: str) -> None:
    assert open_source(ModelSettings(**fields)).host == want


def test_a_server_that_limits_the_listing_is_named(settings: ModelSettings, hub: HubServer) -> None:
    hub.faults.add(Fault(FaultKind.RATE_LIMIT, path="/api/*", amount=4000))
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1 limits how much may be fetched"):
        fetch_model(settings, retry_policy=QUICK)


def test_a_local_folder_is_used_where_it_lies(minilm: Path, tmp_path: Path) -> None:
    located = fetch_model(ModelSettings(source=str(minilm), store=tmp_path / "store"))
    assert (located.folder, located.revision, located.digest) == (minilm.resolve(), "local", None)
    assert not (tmp_path / "store").exists()


def test_a_gated_repository_is_fetched_with_a_token_that_may_read_it(settings: ModelSettings) -> None:
    assert fetch_model(changed(settings, source=GATED, token=READER)).folder.is_dir()


REFUSED: dict[str, tuple[dict[str, object], type[EmbedserveError], str]] = {
    "missing repository": (
        {"source": "lab/nothing"},
        ModelNotFound,
        "lab/nothing does not exist.*no token is given",
    ),
    "missing revision": ({"revision": "v9"}, ModelNotFound, "lab/public has no revision 'v9'"),
    "gated, no token": ({"source": GATED}, ModelAccessDenied, "lab/gated is gated and no token is given"),
    "gated, wrong token": (
        {"source": GATED, "token": STRANGER},
        ModelAccessDenied,
        "lab/gated is gated and the token given has no access",
    ),
    "not a name": ({"source": "a b"}, ModelNotFound, "'a b' is neither a folder"),
    "missing folder": (
        {"source": "/no/such/folder"},
        ModelNotFound,
        "model folder /no/such/folder does not exist",
    ),
    "no hub there": (
        {"endpoint": "http://127.0.0.1:9"},
        SourceUnavailable,
        r"repository lab/public on 127\.0\.0\.1 cannot be reached",
    ),
}


@pytest.mark.parametrize(("update", "want_error", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_fetched_is_named(
    settings: ModelSettings, update: dict[str, object], want_error: type[EmbedserveError], want_message: str
) -> None:
    with pytest.raises(want_error, match=want_message) as caught:
        fetch_model(changed(settings, **update), retry_policy=QUICK)
    assert READER not in str(caught.value)
    assert STRANGER not in str(caught.value)


ADAPTER_FILES = {
    "beside the weights": ("adapter_model.safetensors", True),
    "of a task, in a folder of adapters": ("adapters/retrieval/adapter_model.safetensors", True),
    "of a task, in a folder of its own": ("retrieval_query/adapter_model.safetensors", True),
    "that a trainer left": ("checkpoint-500/adapter_model.safetensors", False),
}


@pytest.mark.parametrize(("adapter", "is_fetched"), ADAPTER_FILES.values(), ids=ADAPTER_FILES)
def test_adapters_are_fetched_with_the_weights_that_they_change(adapter: str, is_fetched: bool) -> None:
    names = ["config.json", "model.safetensors", adapter]
    assert (adapter in select_weight_files(names)) is is_fetched
    assert adapter not in select_weight_files(["config.json", adapter])


@pytest.mark.parametrize(
    "source",
    ["lab/model", "https://host.example/model.tar", "s3://bucket/model"],
    ids=["hub", "archive", "S3"],
)
def test_a_proxy_that_cannot_be_used_is_refused_before_a_source_is_asked(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:PLANTED/x@proxy.example:3128")
    sha256 = "0" * 64 if source.endswith(".tar") else None
    with pytest.raises(ConfigError, match=r"^HTTPS_PROXY is not the URL of a proxy") as caught:
        open_source(ModelSettings(source=source, sha256=sha256))
    assert "PLANTED" not in str(caught.value)
