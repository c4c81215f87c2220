"""``python -m e2e.demo``: from nothing to real vectors on a real cluster, and a check that they are right."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import yaml

from e2e.cluster.errors import ClusterError
from e2e.cluster.images import REPOSITORY
from e2e.cluster.kubectl import Kubectl, condition_true
from e2e.cluster.layout import Layout
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.progress import Progress
from e2e.demo.comparison import LIMIT, largest_difference, reference_in_background, similarities
from e2e.demo.errors import DemoError
from e2e.demo.partners import HUB_URL, start_client, start_hub
from e2e.demo.release import Release
from e2e.demo.texts import SHOWN, fifty_texts

EXAMPLE = REPOSITORY / "examples" / "minilm.yaml"
NAMESPACE = "default"
READY_TIMEOUT_S = 300


@dataclass(frozen=True)
class Example:
    """The applied example and how long it took to become ready."""

    endpoint: str
    model: str
    apply_to_ready_s: float


def main() -> int:
    cluster = Cluster(Layout.of_user(), Progress())
    try:
        return _run(cluster)
    except (ClusterError, DemoError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(cluster: Cluster) -> int:
    with reference_in_background() as reference:
        cluster.up()
        start_hub(cluster)
        client = start_client(cluster)
        Release(cluster, HUB_URL).install()
        example = _apply_example(cluster)
        with cluster.progress.step(f"embedding 50 texts from a pod at {example.endpoint}"):
            served = client.embed(f"{example.endpoint}/v1", example.model, fifty_texts())
        with cluster.progress.step("comparing with sentence-transformers"):
            difference = largest_difference(served, reference.vectors())
    _show(cluster, example, served)
    result = {
        "dimensions": len(served[0]),
        "max_abs_diff": difference,
        "apply_to_ready_s": round(example.apply_to_ready_s, 2),
        "endpoint": example.endpoint,
    }
    print(json.dumps(result))
    if difference > LIMIT:
        raise DemoError(f"the vectors differ by {difference:.2e}, more than {LIMIT:.0e}")
    return 0


def _apply_example(cluster: Cluster) -> Example:
    """Always from scratch, so that the time is that of a first apply."""
    manifest = EXAMPLE.read_text()
    name = yaml.safe_load(manifest)["metadata"]["name"]
    words = ("embeddingservice", name, "--namespace", NAMESPACE)
    kubectl = cluster.kubectl
    with cluster.progress.step("removing the example of an earlier run"):
        _delete_example(kubectl, name)
    with cluster.progress.step(f"applying {EXAMPLE.relative_to(REPOSITORY)} and waiting for Ready"):
        begun = time.monotonic()
        kubectl("apply", "--namespace", NAMESPACE, "--filename", str(EXAMPLE))
        service = kubectl.wait_for(f"{name} is Ready", words, _is_ready, timeout_s=READY_TIMEOUT_S)
        took = time.monotonic() - begun
    return Example(service["status"]["endpoint"]["url"], service["spec"].get("servedModelName", name), took)


def _delete_example(kubectl: Kubectl, name: str) -> None:
    kubectl("delete", "embeddingservice", name, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
    # Its pods go after it; were they still there, the next ones would have to share the processors with them.
    selector = f"embedserve.dev/service={name}"
    kubectl(
        "wait",
        "pods",
        "--selector",
        selector,
        "--namespace",
        NAMESPACE,
        "--for=delete",
        "--timeout=90s",
        timeout_s=120,
    )


def _is_ready(service: dict[str, Any]) -> bool:
    generation = service.get("status", {}).get("observedGeneration", 0)
    return bool(generation >= service["metadata"]["generation"] and condition_true(service, "Ready"))


def _show(cluster: Cluster, example: Example, served: list[list[float]]) -> None:
    print()
    print("$ kubectl get embeddingservices")
    print(cluster.kubectl("get", "embeddingservices", "--namespace", NAMESPACE))
    print("How similar three sentences are (cosine):")
    for text, row in zip(SHOWN, similarities(served[: len(SHOWN)]), strict=True):
        print("  " + "  ".join(f"{value:6.3f}" for value in row) + f"   {text}")
    print()
    print("Try next:")
    print('  eval "$(.venv/bin/python -m e2e.cluster env)"')
    question = json.dumps(["your own sentence"])
    print(
        f"  echo '{question}' | kubectl exec --stdin deployment/client -- "
        f"python3 /opt/client/embed.py --base-url {example.endpoint}/v1 --model {example.model}"
    )
    print()


if __name__ == "__main__":
    sys.exit(main())
