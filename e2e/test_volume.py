"""A model folder on a volume, instead of a hub."""

from __future__ import annotations

import json

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL
from e2e.hub import samples
from e2e.services import TIMEOUT_S

FILL = f"""
import json, pathlib, urllib.request
hub, repo = {HUB_URL!r}, {samples.MINILM!r}
found = json.load(urllib.request.urlopen(f"{{hub}}/api/models/{{repo}}/revision/main"))
for entry in found["siblings"]:
    path = pathlib.Path("/volume/encoders/minilm") / entry["rfilename"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(f"{{hub}}/{{repo}}/resolve/main/{{entry['rfilename']}}") as answer:
        path.write_bytes(answer.read())
"""


@pytest.fixture(scope="module")
def models(kubectl: Kubectl, client: object, namespace: str) -> str:
    """A claim whose volume holds the model's files."""
    image = kubectl(
        "get", "deployment", "client", "--output", "jsonpath={.spec.template.spec.containers[0].image}"
    )
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    container = {
        "name": "fill",
        "image": image,
        "command": ["python3", "-c", FILL],
        "volumeMounts": [{"name": "models", "mountPath": "/volume"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "fill", "namespace": namespace},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }
    for manifest in (claim, job):
        kubectl.apply(json.dumps(manifest))
    words = ("wait", "--for=condition=Complete", "job/fill", "--namespace", namespace)
    kubectl(*words, f"--timeout={TIMEOUT_S}s", timeout_s=TIMEOUT_S + 30)
    return "models"


def test_a_model_on_a_volume_is_served(service: MakeService, models: str) -> None:
    volume = service("volume")
    source = {"volume": {"claimName": models, "path": "encoders/minilm"}}
    volume.apply({"model": {"source": source}})
    status = volume.wait_serving()["status"]
    assert status["model"]["source"] == "models:/encoders/minilm"
    assert status["vectorSpace"]["dimensions"] == 384
    assert len(volume.embed("from a volume")[0]) == 384


def test_a_folder_that_the_volume_does_not_have_is_named(service: MakeService, models: str) -> None:
    missing = service("missing")
    missing.apply({"model": {"source": {"volume": {"claimName": models, "path": "encoders/other"}}}})
    assert "encoders/other" in missing.wait_condition("Ready", "False", "ModelNotFound")["message"]
    missing.delete()
