"""Every published example works as it is, by the commands that the notes and the README show."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from e2e.cluster.images import REPOSITORY
from e2e.cluster.kubectl import Kubectl
from e2e.services import TIMEOUT_S

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(kubectl: Kubectl, namespace: str, example: Path) -> None:
    name = yaml.safe_load(example.read_text(encoding="utf-8"))["metadata"]["name"]
    where = ("--namespace", namespace)
    kubectl("apply", "--filename", str(example), *where)
    # At once after the apply: this must wait, although nothing has been said about the resource yet.
    limit = f"--timeout={TIMEOUT_S}s"
    kubectl("wait", "--for=condition=Ready", f"embsvc/{name}", limit, *where, timeout_s=TIMEOUT_S + 30)
    received = kubectl.get("embsvc", name, *where)
    assert received is not None
    assert received["status"]["readyReplicas"] == 1
