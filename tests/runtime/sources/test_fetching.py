"""Fetching in trouble: whatever the network, the source or the volume does, a model in the store is right."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import random
import shutil
import ssl
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from e2e.cluster.certificates import write_certificates
from e2e.cluster.polling import wait_until
from e2e.hub import Fault, FaultKind, HubServer
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    CertificateUntrusted,
    HashMismatch,
    RevisionNotFound,
    SourceUnavailable,
    VolumeFull,
)
from embedserve_runtime.sources import fetch_model, open_model, partial
from embedserve_runtime.sources.host_limits import HostLimiters, RetryPolicy, parse_retry_after_s
from embedserve_runtime.sources.progress import Progress
from tests.runtime.sources.fetch_kit import (
    CONFIG,
    QUICK,
    REPOSITORY,
    WEIGHTS,
    assert_fetched,
    content_of,
    fetch,
    is_good,
    write_repository,
)

SIZE = 3_000_000
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 10))]
OF_WEIGHTS = f"/*/resolve/*/{WEIGHTS}"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    return write_repository(tmp_path / "repositories", SIZE)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and notes of a size at which small test files have many."""
    monkeypatch.setattr(partial, "SEGMENT", 400_000)
    monkeypatch.setattr(partial, "NOTE_EVERY", 100_000)


def changed(settings: ModelSettings, **update: object) -> ModelSettings:
    return ModelSettings.model_validate({**settings.model_dump(), **update})


def sent(hub: HubServer, name: str = WEIGHTS) -> int:
    return sum(request.sent_bytes for request in hub.requests if request.path.endswith(name))


def sent_all(hub: HubServer) -> int:
    """The hub notes a request after its last byte: one whose answer has arrived may not be noted yet."""
    wait_until("the hub has noted what it sent", lambda: sent(hub) >= SIZE, timeout_s=10, every_s=0.01)
    return sent(hub)


@pytest.mark.usefixtures("small_parts")
def test_a_large_file_comes_in_parts_and_each_byte_once(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    fetch(settings)
    assert_fetched(settings, files)
    assert sent_all(hub) == SIZE
    assert Counter(request.status for request in hub.requests if request.path.endswith(WEIGHTS)) == {206: 8}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_connection_that_is_cut_again_and_again_loses_nothing(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes], seed: int
) -> None:
    offsets = random.Random(seed)
    for _ in range(12):
        hub.faults.add(Fault(FaultKind.BROKEN, amount=offsets.randrange(300_000), times=1))
    fetch(settings)
    assert_fetched(settings, files)
    assert sent(hub) < SIZE * 1.5


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_byte_that_is_wrong_is_noticed_and_the_file_fetched_again(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes], seed: int
) -> None:
    offset = random.Random(seed).randrange(400_000)
    hub.faults.add(Fault(FaultKind.CORRUPT, path=OF_WEIGHTS, amount=offset, times=1))
    hub.faults.add(Fault(FaultKind.CORRUPT, path="*/config.json", amount=offset, times=1))
    fetch(settings)
    assert_fetched(settings, files)


def test_a_file_that_is_never_right_ends_the_fetch_with_both_hashes(
    settings: ModelSettings, hub: HubServer
) -> None:
    hub.faults.add(Fault(FaultKind.CORRUPT, path="*/tokenizer.json"))
    with pytest.raises(
        HashMismatch, match=r"tokenizer.json is not what it should be, 3 times.* should be git"
    ):
        fetch(settings)
    assert not is_good(settings, {})


def test_after_429_the_host_is_left_alone_for_as_long_as_it_says(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    for path in ("/api/*", "*/resolve/*"):
        hub.faults.add(Fault(FaultKind.RATE_LIMIT, path=path, amount=0, times=10))
    fetch(settings)
    assert_fetched(settings, files)


def test_a_rate_limit_that_lasts_too_long_is_named(settings: ModelSettings, hub: HubServer) -> None:
    hub.faults.add(Fault(FaultKind.RATE_LIMIT, path="*/resolve/*", amount=4000))
    with pytest.raises(SourceUnavailable, match="limits how much may be fetched: it asks to wait 4000 s"):
        fetch(settings)
    hub.faults.clear()
    hub.faults.add(Fault(FaultKind.RATE_LIMIT, amount=0))
    with pytest.raises(SourceUnavailable, match="limits how much may be fetched"):
        fetch(settings, RetryPolicy(first_pause_s=0.01, max_total_wait_s=0.1))


def test_a_gate_is_closed_for_all_and_opens_for_one_at_a_time() -> None:
    now = [100.0]
    limiters, stopped = HostLimiters(QUICK, 4, lambda: now[0]), threading.Event()
    limiters.record_refusal("hub", {"Retry-After": "2"})
    limiters.record_refusal("hub", {"Retry-After": "2"})
    inside: list[str] = []

    def go() -> None:
        with limiters.request_slot("hub", stopped):
            inside.append(threading.current_thread().name)
            stopped.wait()

    with limiters.request_slot("other host", stopped):
        waiting = [threading.Thread(target=go, daemon=True) for _ in range(3)]
        for thread in waiting:
            thread.start()
        assert inside == []
    now[0] += 3
    limiters.record_answer("other host")
    while not inside:
        limiters.record_answer("other host")
    assert len(inside) == 1
    stopped.set()
    for thread in waiting:
        thread.join()


RETRY_AFTER: dict[str, tuple[dict[str, str], float | None]] = {
    "seconds": ({"Retry-After": "17"}, 17.0),
    "a date that has passed": ({"retry-after": "Fri, 27 Nov 2020 10:00:00 GMT"}, 0.0),
    "nonsense": ({"Retry-After": "soon"}, None),
    "the Hub's header": ({"RateLimit": '"api";r=0;t=55'}, 55.0),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("headers", "want"), RETRY_AFTER.values(), ids=RETRY_AFTER.keys())
def test_how_long_a_host_asks_to_wait(headers: dict[str, str], want: float | None) -> None:
    assert parse_retry_after_s(headers) == want


def test_a_host_in_trouble_is_asked_again(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults.add(Fault(FaultKind.SERVER_ERROR, path="/api/*", times=2))
    hub.faults.add(Fault(FaultKind.SERVER_ERROR, path="*/resolve/*", times=5))
    fetch(settings)
    assert_fetched(settings, files)


@pytest.mark.usefixtures("small_parts")
def test_a_fetch_that_failed_is_gone_on_with_by_the_next_one(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults.add(Fault(FaultKind.BROKEN, path=OF_WEIGHTS, amount=300_000, times=4))
    hub.faults.add(Fault(FaultKind.SERVER_ERROR, path=OF_WEIGHTS))
    with pytest.raises(SourceUnavailable, match="HTTP 503"):
        fetch(settings)
    assert not is_good(settings, files)
    hub.faults.clear()
    fetch(settings)
    assert_fetched(settings, files)
    assert sent(hub) < SIZE + 400_000


@pytest.mark.usefixtures("small_parts")
def test_two_at_once_fetch_each_byte_once(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults.add(Fault(FaultKind.SLOW, path=OF_WEIGHTS, amount=2_000_000))
    failures: list[BaseException] = []

    def go() -> None:
        try:
            fetch(settings)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_fetched(settings, files)
    assert sent_all(hub) == SIZE


def test_only_what_has_changed_is_fetched_for_another_commit(
    settings: ModelSettings, hub: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    fetch(settings)
    (tmp_path / "repositories" / REPOSITORY / "main" / "tokenizer.json").write_bytes(b"{}")
    located = fetch_model(changed(settings, refresh="1"), retry_policy=QUICK)
    assert content_of(located.folder) == files | {"tokenizer.json": b"{}"}
    assert sent_all(hub) == SIZE


def test_ctrl_c_while_threads_are_started_stays_ctrl_c(
    settings: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_or_interrupt(thread: threading.Thread) -> None:
        if thread.name == "fetch-1":
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(settings)


def test_a_commit_that_is_gone_is_named(
    settings: ModelSettings, tmp_path: Path, hub: HubServer, files: dict[str, bytes]
) -> None:
    with pytest.raises(RevisionNotFound, match="lab/model has no revision 'v9'"):
        fetch(changed(settings, revision="v9"))
    with pytest.raises(
        RevisionNotFound, match=r"has no commit (deadbeef){5}, for which revision 'main' stood before"
    ):
        fetch(changed(settings, commit="deadbeef" * 5))


def test_damage_in_the_store_is_repaired_by_the_next_start_and_named_offline(
    settings: ModelSettings, files: dict[str, bytes]
) -> None:
    located = fetch_model(settings, retry_policy=QUICK)
    weights = located.folder / WEIGHTS
    weights.chmod(0o644)
    weights.write_bytes(files[WEIGHTS][:-1])
    with pytest.raises(
        SourceUnavailable, match=rf"{WEIGHTS} has {SIZE - 1} bytes and should have {SIZE}; offline"
    ):
        open_model(changed(settings, offline=True))
    assert open_model(settings) == located
    assert_fetched(settings, files)


@pytest.mark.usefixtures("small_parts")
def test_a_hub_that_ignores_the_end_of_a_range_is_named(settings: ModelSettings, hub: HubServer) -> None:
    hub.faults.add(Fault(FaultKind.UNBOUNDED_RANGE, path=f"*/{WEIGHTS}"))
    with pytest.raises(
        SourceUnavailable, match=rf"127\.0\.0\.1 sent more of {WEIGHTS} than the range"
    ) as caught:
        fetch(settings)
    assert "HTTP" not in caught.value.message


@pytest.mark.parametrize("by", ["setting", "HF_HUB_OFFLINE"])
def test_offline_nobody_is_asked(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "setting":
        settings = changed(settings, offline=True)
    else:
        monkeypatch.setenv(by, "1")
        settings = ModelSettings(**settings.model_dump(exclude_unset=True))
    with pytest.raises(SourceUnavailable, match="it is not there; offline mode is set"):
        open_model(settings)
    assert hub.requests == ()
    fetch(changed(settings, offline=False))
    assert is_good(settings, files)


def test_a_model_without_room_is_refused_before_its_first_byte(
    settings: ModelSettings, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(settings.store.parent)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(VolumeFull, match=r"needs \d+ MB more and .* has 1 MB free.*store gc"):
        fetch(settings)
    assert sent(hub) == 0


def test_how_far_a_fetch_is_can_be_read_from_the_log_and_over_http(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="embedserve_runtime")
    progress = Progress()
    with progress.log_periodically(0.05), progress.serve("127.0.0.1", 0) as port:
        fetch_model(settings, progress, QUICK)
        answer = httpx.get(f"http://127.0.0.1:{port}/progress").json()
    total = sum(map(len, files.values()))
    assert (answer["bytesDone"], answer["bytesTotal"], answer["phase"]) == (total, total, "storing")
    reports = [record.progress for record in caplog.records if hasattr(record, "progress")]
    assert {"phase", "bytesDone", "bytesTotal", "bytesPerSecond", "secondsRemaining"} == set(reports[0])
    bytes_done = [each["bytesDone"] for each in reports]
    assert bytes_done == sorted(bytes_done)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with ca.crt, and apiserver.crt and .key for this machine."""
    write_certificates(tmp_path / "certificates")
    return tmp_path / "certificates"


@pytest.fixture
def secure_hub(tmp_path: Path, files: dict[str, bytes], certificates: Path) -> Iterator[HubServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
    with HubServer(tmp_path / "repositories", tls=context) as server:
        yield server


def archive_of_a_file(hub: HubServer, content: bytes, tmp_path: Path) -> ModelSettings:
    path = tmp_path / "repositories" / REPOSITORY / "main" / "model.tar"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("config.json")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return ModelSettings(
        source=f"{hub.url}/{REPOSITORY}/resolve/main/model.tar",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        store=tmp_path / "store",
    )


def test_a_certificate_that_is_not_trusted_is_named_and_one_of_a_named_authority_is_trusted(
    secure_hub: HubServer, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_hub = ModelSettings(source=REPOSITORY, endpoint=secure_hub.url, store=tmp_path / "store")
    archive = archive_of_a_file(secure_hub, files_config(), tmp_path)
    for settings in (of_the_hub, archive):
        with pytest.raises(CertificateUntrusted, match=r"is not trusted here.*set SSL_CERT_FILE"):
            fetch(settings)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.crt"))
    fetch(archive)
    assert is_good(archive, {"config.json": files_config()})


def files_config() -> bytes:
    return json.dumps(CONFIG).encode()
