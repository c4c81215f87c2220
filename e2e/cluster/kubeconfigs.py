"""Kubeconfig files; they carry the certificates themselves, so one file is enough to reach the cluster."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from e2e.cluster.layout import API_PORT, NODE_ADDRESS

USERS = ("admin", "controller-manager", "scheduler", "proxy", "kubelet")


def write_kubeconfigs(folder: Path, certificates: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for user in USERS:
        path = folder / user
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(_kubeconfig(user, certificates), sort_keys=False))


def _kubeconfig(user: str, certificates: Path) -> dict[str, object]:
    cluster = {
        "server": f"https://{NODE_ADDRESS}:{API_PORT}",
        "certificate-authority-data": _encoded(certificates / "ca.crt"),
    }
    credentials = {
        "client-certificate-data": _encoded(certificates / f"{user}.crt"),
        "client-key-data": _encoded(certificates / f"{user}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "embedserve", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "embedserve", "context": {"cluster": "embedserve", "user": user}}],
        "current-context": "embedserve",
    }


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
