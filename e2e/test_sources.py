"""Every kind of source on the cluster, and what is said of one that cannot be had."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from e2e.cluster.binaries import build_s3
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.hub import samples
from e2e.node_hub import NodeHub
from e2e.s3 import KEYS, S3Server
from e2e.services import Object, Service

REPOSITORY = "lab/minilm"
MINILM_SPACE = "vs2-d4f43f9e189b33de563b"
OWN = {"volume": {"size": "1Gi", "whenDeleted": "Delete"}}
TRUSTING: Object = {
    # Every namespace has the certificate of the cluster's own authority.
    "volumes": [{"name": "authority", "configMap": {"name": "kube-root-ca.crt"}}],
    "volumeMounts": [{"name": "authority", "mountPath": "/authority", "readOnly": True}],
    "env": [{"name": "SSL_CERT_FILE", "value": "/authority/ca.crt"}],
}
NO_COMMIT = "0" * 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model as a repository, with an archive of itself beside it."""
    root = tmp_path_factory.mktemp("repositories")
    branch = root / REPOSITORY / "main"
    shutil.copytree(samples.model_folder(), branch)
    with tarfile.open(root / "model.tar", "w") as tar:
        tar.add(branch, arcname="minilm")
    (root / "model.tar").rename(branch / "model.tar")
    return root


@pytest.fixture(scope="module")
def hub(cluster: Cluster, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeHub]:
    with NodeHub(root, tmp_path_factory.mktemp("hub") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def https(cluster: Cluster, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeHub]:
    with NodeHub(root, tmp_path_factory.mktemp("https") / "log", cluster.layout) as running:
        yield running


@pytest.fixture(scope="module")
def s3(
    cluster: Cluster, kubectl: Kubectl, namespace: str, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    """A server whose bucket `models` has the model under `team/minilm`; its keys are in the Secret `s3`."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "root" / "models").mkdir(parents=True)
    for name, keys in (("s3", KEYS), ("s3-wrong", {**KEYS, "AWS_SECRET_ACCESS_KEY": "another"})):
        metadata = {"name": name, "namespace": namespace}
        kubectl.apply(
            json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(keys)})
        )
    program = build_s3(cluster.layout, cluster.progress)
    with S3Server(program, folder / "root", folder / "log", on_node=True) as running:
        upload(running, samples.model_folder())
        yield running


def upload(server: S3Server, folder: Path) -> None:
    """A folder's files to where the tests look for them."""
    store = S3Store(
        "models",
        prefix="team/minilm",
        config={
            "endpoint": server.url,
            "access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
            "secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
            "region": KEYS["AWS_REGION"],
        },
        client_options={"allow_http": True},
    )
    for path in folder.rglob("*"):
        if path.is_file():
            obstore.put(store, path.relative_to(folder).as_posix(), path.read_bytes())


def archive(hub: NodeHub, *, sha256: str | None = None, name: str = "model.tar") -> Object:
    file = hub.root / REPOSITORY / "main" / "model.tar"
    digest = sha256 or hashlib.sha256(file.read_bytes()).hexdigest()
    return {"http": {"url": f"{hub.url}/{REPOSITORY}/resolve/main/{name}", "sha256": digest}}


def bucket(s3: S3Server, *, uri: str = "s3://models/team/minilm", secret: str = "s3") -> Object:
    return {"s3": {"uri": uri, "endpoint": s3.url, "secretRef": {"name": secret}}}


def repository(hub: NodeHub, revision: str = "main") -> Object:
    return {"huggingFace": {"repo": REPOSITORY, "endpoint": hub.url, "revision": revision}}


def of(source: Object, **more: Any) -> Object:
    return {"model": {"source": source, **more.pop("model", {})}, **more}


def serves_minilm(embsvc: Service) -> Object:
    """Its status, once it serves the real model."""
    status: Object = embsvc.wait_serving()["status"]
    assert status["vectorSpace"]["id"] == MINILM_SPACE
    assert len(embsvc.embed("from another place")[0]) == 384
    return status


def test_an_archive_over_https_with_its_hash_is_served(service: MakeService, https: NodeHub) -> None:
    embsvc = service("archive")
    embsvc.apply(of(archive(https), cache=OWN, pod=TRUSTING))
    assert serves_minilm(embsvc)["model"]["source"].startswith("https://")
    embsvc.delete()


def test_a_prefix_of_an_s3_bucket_is_served(service: MakeService, s3: S3Server) -> None:
    embsvc = service("bucket")
    embsvc.apply(of(bucket(s3), cache=OWN))
    assert serves_minilm(embsvc)["model"]["source"] == "s3://models/team/minilm"
    embsvc.delete()


def test_what_a_branch_stood_for_is_served_until_a_refresh_asks_anew(
    service: MakeService, hub: NodeHub
) -> None:
    embsvc = service("pinned")
    embsvc.apply(of(repository(hub), cache=OWN))
    before = serves_minilm(embsvc)["model"]["revision"]
    with (hub.root / REPOSITORY / "main" / "README.md").open("a") as readme:
        readme.write("Edited.\n")

    embsvc.apply(of(repository(hub), cache=OWN, replicas=2))
    assert embsvc.wait_serving()["status"]["model"]["revision"] == before, "a further pod gets the same"
    embsvc.apply(of(repository(hub), cache=OWN, replicas=1, model={"refresh": "once"}))
    after = embsvc.wait_for(
        "serves another commit",
        lambda resource: resource["status"].get("model", {}).get("revision") not in (None, before),
    )
    assert after["status"]["vectorSpace"]["id"] == MINILM_SPACE, "another commit, the same vectors"
    embsvc.delete()


def refused(hub: NodeHub, https: NodeHub, s3: S3Server) -> dict[str, tuple[Object, str, str]]:
    """Spec, reason, and what the message has to name."""
    return {
        "no-repository": (
            of({"huggingFace": {"repo": "acme/missing", "endpoint": hub.url}}, cache=OWN),
            "ModelNotFound",
            "acme/missing",
        ),
        "commit-gone": (of(repository(hub, NO_COMMIT), cache=OWN), "RevisionNotFound", NO_COMMIT),
        "no-archive": (of(archive(hub, name="none.tar"), cache=OWN), "ModelNotFound", "none.tar"),
        "other-bytes": (of(archive(hub, sha256="a" * 64), cache=OWN), "HashMismatch", "aaaaaaaa"),
        "certificate": (of(archive(https), cache=OWN), "CertificateUntrusted", "SSL_CERT_FILE"),
        "no-prefix": (of(bucket(s3, uri="s3://models/none"), cache=OWN), "ModelNotFound", "s3://models/none"),
        "wrong-keys": (of(bucket(s3, secret="s3-wrong"), cache=OWN), "ModelAccessDenied", "s3://models"),
        "no-cache": (of(archive(https)), "CertificateUntrusted", "SSL_CERT_FILE"),
    }


def test_what_cannot_be_had_is_named_in_the_condition(
    service: MakeService, hub: NodeHub, https: NodeHub, s3: S3Server
) -> None:
    cases = refused(hub, https, s3)
    for name, (spec, _, _) in cases.items():
        service(name).apply(spec)
    for name, (_, reason, words) in cases.items():
        stalled = service(name).wait_condition("Stalled", "True", reason)
        assert words in stalled["message"], name
        assert service(name).wait_condition("Ready", "False", reason)["message"] == stalled["message"]
    for name in cases:
        service(name).delete()


def test_an_image_is_refused_with_the_cause_where_the_cluster_has_no_image_volumes(
    service: MakeService,
) -> None:
    """In this Kubernetes the feature is off (`e2e/test_image_volume.py` switches it on)."""
    embsvc = service("image")
    embsvc.apply(of({"image": {"reference": "registry.example/minilm:1", "path": "model"}}))
    assert (
        "does not support image volumes"
        in embsvc.wait_condition("Ready", "False", "ImageVolumesMissing")["message"]
    )
    assert embsvc.children("deployments") == [], "its pods would find an empty folder"
    embsvc.delete()
