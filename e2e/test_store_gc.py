"""The chart's CronJob that cleans a volume of models: what a service uses or keeps stays, what nobody does goes."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.kubectl import Kubectl, condition_true
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL
from e2e.demo.release import Release
from e2e.hub import samples
from e2e.node_hub import NodeHub
from e2e.services import TIMEOUT_S, Object, Service, is_serving
from e2e.volumes import NodeVolume, writable_folder
from embedserve_runtime.store.checking import find_damage

pytestmark = pytest.mark.soak

FIRST, SECOND = "lab/first", "lab/second"
CLAIM = "cleaned"


@pytest.fixture(scope="module")
def hub(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeHub]:
    """Two models that differ in their word embeddings, and so in their vector spaces."""
    root = tmp_path_factory.mktemp("repositories")
    for repository in (FIRST, SECOND):
        shutil.copytree(samples.model_folder(), root / repository / "main")
    weights = root / SECOND / "main" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 4] ^= 1
    weights.write_bytes(content)
    with NodeHub(root, tmp_path_factory.mktemp("hub") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def store(cluster: Cluster, kubectl: Kubectl, namespace: str) -> Iterator[Path]:
    """The folder of the claim, which the chart's CronJob cleans."""
    volume = NodeVolume(kubectl, namespace, CLAIM, writable_folder(cluster.layout.volumes / namespace))
    volume.make("ReadWriteOnce")
    release = Release(cluster, HUB_URL)
    claims = json.dumps([{"namespace": namespace, "claimName": CLAIM}])
    release.install({"storeGc.claims": claims, "storeGc.olderThan": '"1s"'})
    yield volume.folder
    release.install()
    volume.remove()


def spec(hub: NodeHub, repository: str, **rollout: str) -> Object:
    source = {"huggingFace": {"repo": repository, "endpoint": hub.url}}
    return {
        "model": {"source": source},
        "cache": {"claimName": CLAIM},
        "onnx": {"precision": "float32"},
        "rollout": rollout,
    }


def clean(kubectl: Kubectl, namespace: str) -> str:
    """Run the CronJob once; gives its log."""
    words = ("cronjobs", "--namespace", namespace)
    (cron,) = (kubectl.get(*words) or {})["items"]
    job = f"clean-{secrets.token_hex(3)}"
    name = cron["metadata"]["name"]
    kubectl("create", "job", job, f"--from=cronjob/{name}", "--namespace", namespace)
    kubectl.wait_for(
        "the store is cleaned",
        ("job", job, "--namespace", namespace),
        lambda resource: condition_true(resource, "Complete"),
        timeout_s=TIMEOUT_S,
    )
    return kubectl("logs", f"job/{job}", "--container", "gc", "--namespace", namespace)


def models(store: Path) -> set[str]:
    return {path.name for path in (store / "models").iterdir()}


def artifacts(store: Path) -> set[str]:
    return {path.name for path in (store / "artifacts").iterdir()}


def restart(kubectl: Kubectl, namespace: str, embsvc: Service) -> None:
    """New pods, which find what they need in the store."""
    before = {pod["metadata"]["name"] for pod in embsvc.pods()}
    kubectl("delete", "pods", "--namespace", namespace, "--selector", embsvc.selector)
    embsvc.wait_serving_by_others(before)


def test_what_is_served_or_kept_stays_and_the_rest_goes(
    service: MakeService, kubectl: Kubectl, namespace: str, hub: NodeHub, store: Path
) -> None:
    embsvc = service("tidy")
    embsvc.apply(spec(hub, FIRST))
    first = embsvc.wait_serving()["status"]
    clean(kubectl, namespace)
    assert models(store) == {first["model"]["digest"].removeprefix("sha256:")}
    assert artifacts(store) == {first["conversion"]["artifact"]}

    embsvc.apply(spec(hub, SECOND, keepPrevious="24h"))
    second = embsvc.wait_for(
        "serves the second and keeps the first",
        lambda resource: is_serving(resource) and resource["status"]["model"]["source"] == SECOND,
    )["status"]
    clean(kubectl, namespace)
    assert len(models(store)) == 2, "a way back is kept"
    restart(kubectl, namespace, embsvc)

    embsvc.apply(spec(hub, SECOND, keepPrevious="0s"))
    selector = f"embedserve.dev/vector-space={first['vectorSpace']['id']}"
    words = ("pods", "--namespace", namespace, "--selector", selector)
    wait_until(
        "the first's pods are gone",
        lambda: not (kubectl.get(*words) or {}).get("items"),
        timeout_s=TIMEOUT_S,
    )
    embsvc.wait_serving()
    output = clean(kubectl, namespace)
    assert float(output.split("freed ")[1].split()[0]) > 90, "its weights, and what was made of them"
    assert models(store) == {second["model"]["digest"].removeprefix("sha256:")}
    assert artifacts(store) == {second["conversion"]["artifact"]}
    assert list(find_damage(store)) == []
    restart(kubectl, namespace, embsvc)
    assert len(embsvc.embed("still here")) == 1
    embsvc.delete()
