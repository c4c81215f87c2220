"""Processes that fetch and are killed, that race, and whose volume fills up: what is served is right, or nothing is."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.hub import Fault, FaultKind, HubServer
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.store.checking import find_damage
from tests.runtime.sources.fetch_kit import WEIGHTS, assert_fetched, is_good, write_repository
from tests.support.mounts import remount

pytestmark = pytest.mark.thorough
SIZE = 24_000_000
KILLS = 30
FETCH = """
import os, sys
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.sources import fetch_model, partial
import embedserve_runtime.sources.fetching  # `fetch_model` imports it, which another user might not be let to
partial.SEGMENT, partial.NOTE_EVERY = 2_000_000, 500_000
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
print("started", flush=True)
try:
    fetch_model(ModelSettings.model_validate_json(sys.argv[1]))
except EmbedserveError as error:
    sys.exit(f"{error.reason}: {error.message}")
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    return write_repository(tmp_path / "repositories", SIZE)


def start(settings: ModelSettings, *user: str) -> subprocess.Popen[str]:
    """A process that fetches, once it has begun to; as another user where one is named."""
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH, settings.model_dump_json(), *user],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, output = process.communicate(timeout=120)
    return process.returncode, output


def written(settings: ModelSettings) -> int:
    """Bytes of the store's files: grows while a fetch goes on."""
    total = 0
    for folder, _, names in os.walk(settings.store):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(folder) / name).stat().st_size
    return total


@pytest.mark.timeout(600)
def test_a_fetch_killed_at_random_points_serves_nothing_bad_and_ends_well(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    points = random.Random(8)
    hub.faults.add(Fault(FaultKind.SLOW, amount=8_000_000))
    whole = 0
    for _ in range(KILLS):
        process = start(settings)
        # Some are killed while they look around, some in the middle of a file, some while they store.
        enough = written(settings) + points.choice(
            [0, 1, points.randrange(SIZE // 12), points.randrange(SIZE)]
        )
        while process.poll() is None and written(settings) < enough:
            time.sleep(0.002)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        finish(process)
        whole += is_good(settings, files)
        assert list(find_damage(settings.store)) == [] or not settings.store.exists()
        if whole and points.random() < 0.5:
            for path in (settings.store / "refs").iterdir():
                path.unlink()
    hub.faults.clear()
    code, output = finish(start(settings))
    assert (code, output) == (0, "")
    assert_fetched(settings, files)


def test_what_killed_fetches_had_is_not_fetched_again(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults.add(Fault(FaultKind.SLOW, amount=8_000_000))
    for part in range(1, 6):
        process = start(settings)
        while process.poll() is None and written(settings) < part * SIZE // 8:
            time.sleep(0.002)
        process.kill()
        finish(process)
    hub.faults.clear()
    code, output = finish(start(settings))
    assert code == 0, output
    assert_fetched(settings, files)
    sent_bytes = sum(request.sent_bytes for request in hub.requests if request.path.endswith(WEIGHTS))
    assert sent_bytes < SIZE * 2, (
        "each of the five may lose what six connections had under way, not all of it"
    )


def test_of_processes_that_race_and_are_killed_one_good_model_is_left(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults.add(Fault(FaultKind.SLOW, amount=4_000_000))
    first, *rivals = [start(settings) for _ in range(3)]
    while written(settings) < SIZE // 10:
        time.sleep(0.002)
    first.kill()
    finish(first)
    assert [finish(process)[0] for process in rivals] == [0, 0]
    assert_fetched(settings, files)


def test_a_volume_that_is_too_small_is_named_before_the_first_byte(
    settings: ModelSettings, hub: HubServer, small_volume: Path
) -> None:
    (small_volume / "other").write_bytes(bytes(20_000_000))
    code, output = finish(start(settings.model_copy(update={"store": small_volume})))
    assert code == 1
    assert output.startswith("VolumeFull: model.store: the model needs ")
    assert not [request for request in hub.requests if request.path.endswith(WEIGHTS)]


def test_a_volume_that_fills_up_on_the_way_is_named_and_the_fetch_goes_on_once_there_is_room(
    settings: ModelSettings, hub: HubServer, files: dict[str, bytes], small_volume: Path
) -> None:
    settings = settings.model_copy(update={"store": small_volume})
    hub.faults.add(Fault(FaultKind.SLOW, amount=8_000_000))
    process = start(settings)
    while written(settings) < SIZE // 10:
        time.sleep(0.002)
    filler = small_volume / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1_000_000))
    code, output = finish(process)
    assert code == 1
    assert output.startswith("VolumeFull: model.store: the volume of ")
    assert not is_good(settings, files)
    filler.unlink()
    code, output = finish(start(settings))
    assert code == 0, output
    assert_fetched(settings, files)


def test_from_a_read_only_volume_a_model_is_taken_and_a_missing_one_is_named(
    settings: ModelSettings, files: dict[str, bytes], small_volume: Path
) -> None:
    settings = settings.model_copy(update={"store": small_volume})
    code, output = finish(start(settings))
    assert code == 0, output
    remount(small_volume, "ro")
    assert finish(start(settings)) == (0, "")
    assert is_good(settings, files)
    code, output = finish(start(settings.model_copy(update={"refresh": "1"})))
    assert (code, output.partition(":")[0]) == (1, "VolumeReadOnly")


def test_a_volume_of_another_user_is_named(settings: ModelSettings) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    # Not under pytest's own folder, which nobody else may enter.
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        store = Path(shared) / "store"
        store.mkdir(mode=0o755)
        code, output = finish(start(settings.model_copy(update={"store": store}), "12345"))
    assert (code, output.partition(":")[0]) == (1, "VolumePermissionDenied"), output
    assert "may not be written by user 12345, group 12345: it belongs to 0:0 with mode 755" in output
