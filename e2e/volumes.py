"""Volumes that a test makes itself: a folder of the node under any access mode, without a driver and its rules."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.kubectl import Kubectl
from e2e.services import Object

BLOCK = 512
"""Bytes of what stat counts as a block."""


@dataclass(frozen=True)
class NodeVolume:
    """A claim, bound to a volume that is a folder of the node and may be mounted on any node that is asked for."""

    kubectl: Kubectl
    namespace: str
    claim: str
    folder: Path

    def make(self, *modes: str, size: str = "1Gi") -> None:
        """The volume and its claim; whoever reads it before needs the folder first."""
        volume: Object = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self._volume},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": list(modes),
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(self.folder), "type": "Directory"},
                "claimRef": {"namespace": self.namespace, "name": self.claim},
            },
        }
        self.kubectl.apply(json.dumps(volume))
        spec = {"storageClassName": "", "volumeName": self._volume}
        self.kubectl.apply(json.dumps(claim(self.namespace, self.claim, modes, size=size, **spec)))

    def remove(self) -> None:
        """The volume and what is in it; the claim goes with its namespace."""
        self.kubectl("delete", "persistentvolume", self._volume, "--ignore-not-found", "--wait=false")
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _volume(self) -> str:
        return f"{self.namespace}-{self.claim}"


def claim(namespace: str, name: str, modes: Sequence[str], *, size: str = "1Gi", **spec: Any) -> Object:
    """A PersistentVolumeClaim; by default of the cluster's own storage class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"accessModes": list(modes), "resources": {"requests": {"storage": size}}, **spec},
    }


def writable_folder(folder: Path) -> Path:
    """Made where it is not there; anybody may write in it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    return folder


def bytes_in(folder: Path) -> int:
    """Return the bytes that files take up, holes left out; what goes away meanwhile does not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_blocks * BLOCK
    return total
