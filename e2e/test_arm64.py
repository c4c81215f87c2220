"""The runtime's image for 64-bit ARM, run by emulation: its vectors are those of this machine's own engine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import numpy as np
import pytest

from e2e.cluster.emulation import running
from e2e.cluster.images import ImageLoader, build_arm64, write_manifest
from e2e.cluster.layout import Layout
from e2e.cluster.polling import wait_until
from e2e.cluster.progress import Progress
from embedserve_runtime.benchmarking.texts import build_mix
from embedserve_runtime.config import load_config
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.support.models import minilm_folder

pytestmark = pytest.mark.soak

TOLERANCE = 1e-4
# By emulation the start takes a minute on a quiet machine.
TIMEOUT_S = 900
TEXTS = build_mix(12)


@pytest.fixture(scope="module")
def loader() -> ImageLoader:
    return ImageLoader(Layout.of_user(), Progress())


def test_vectors_of_the_image_for_arm_are_those_of_this_machine(loader: ImageLoader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["/opt/embedserve/bin/embedserve", "serve", "--model", "/model", "--port", str(port)]
    words += ["--max-batch-tokens", "512"]
    reference = build_arm64(loader)
    with loader.buildah.unpacked(reference) as system, running(system, words, minilm_folder()) as process:

        def ready() -> bool:
            if process.poll() is not None:
                pytest.fail(f"the server ended: {process.communicate()[1]}")
            return _get(f"http://127.0.0.1:{port}/health") == 200

        wait_until("the emulated server is ready", ready, timeout_s=TIMEOUT_S)
        answer = httpx.post(f"http://127.0.0.1:{port}/embed", json={"inputs": TEXTS}, timeout=TIMEOUT_S)
    answer.raise_for_status()
    assert np.abs(np.array(answer.json(), dtype=np.float32) - own_vectors()).max() <= TOLERANCE


def test_one_manifest_names_an_image_for_each_architecture(loader: ImageLoader, tmp_path: Path) -> None:
    write_manifest(loader, tmp_path)
    (entry,) = json.loads((tmp_path / "index.json").read_text())["manifests"]
    manifest = json.loads((tmp_path / "blobs" / entry["digest"].replace(":", "/")).read_text())
    platforms = {
        (image["platform"]["os"], image["platform"]["architecture"]) for image in manifest["manifests"]
    }
    assert platforms == {("linux", "amd64"), ("linux", "arm64")}


def own_vectors() -> FloatArray:
    runner = load_runner(load_config(flags={"model": {"source": str(minilm_folder())}}))
    tokens = TextTokenizer.from_card(runner.card).encode(TEXTS, "", TruncationRules(truncate=True))
    dense = runner.run(PackedBatch.pack(tokens), OutputKind.DENSE).dense
    assert dense is not None, "asked for"
    return normalize(dense)


def _get(url: str) -> int | None:
    """The status, None where nobody answers."""
    try:
        return httpx.get(url, timeout=10).status_code
    except httpx.TransportError:
        return None
