"""What the project works with inside of the cluster: a hub with models and a pod that calls services."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from e2e.cluster.buildah import ImageBuild
from e2e.cluster.contents import build_once, digest
from e2e.cluster.images import PREFIX, ImageLoader
from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.lifecycle import Cluster
from e2e.hub import samples

HERE = Path(__file__).parent
HUB_SOURCES = HERE.parent / "hub"
HUB_NAMESPACE = "embedserve-hub"
HUB_PORT = 8080
HUB_URL = f"http://hub.{HUB_NAMESPACE}.svc.cluster.local:{HUB_PORT}"
HUB_TOKENS = "hub-tokens"
CLIENT_NAMESPACE = "default"
FIRST_RUN = "first run: about a minute"


def start_hub(cluster: Cluster) -> None:
    image = cluster.images.ensure(hub_image(cluster.images), FIRST_RUN)
    with cluster.progress.step("starting the model hub"):
        values = {
            "NAMESPACE": HUB_NAMESPACE,
            "IMAGE": image.content_reference,
            "PORT": str(HUB_PORT),
            "GATED": samples.GATED,
        }
        manifest = (HERE / "manifests" / "hub.yaml").read_text()
        cluster.kubectl.apply(Template(manifest).substitute(values))
        _ensure_hub_tokens(cluster.kubectl)
        _wait_available(cluster.kubectl, HUB_NAMESPACE, "hub")


def hub_token(kubectl: Kubectl, kind: str = "reader") -> str:
    """The token of a user who was let into gated repositories (``reader``), or of one who was not (``stranger``)."""
    secret = kubectl.get("secret", HUB_TOKENS, "--namespace", HUB_NAMESPACE)
    if secret is None:
        raise LookupError("the hub has not been started")
    return base64.b64decode(secret["data"][kind]).decode()


@dataclass(frozen=True)
class ClientPod:
    """Calls services from where a user's program would run."""

    kubectl: Kubectl

    def embed(self, base_url: str, model: str, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of the texts, got with the ``openai`` client."""
        output = self.run(
            "python3",
            "/opt/client/embed.py",
            "--base-url",
            base_url,
            "--model",
            model,
            stdin=json.dumps(texts),
        )
        vectors: list[list[float]] = json.loads(output)["vectors"]
        return vectors

    def run(self, *words: str, stdin: str = "", timeout_s: float = 90) -> str:
        """The output of a command in the pod, which has Python with openai, httpx and numpy."""
        where = ("--namespace", CLIENT_NAMESPACE, "deployment/client")
        return self.kubectl("exec", "--stdin", *where, "--", *words, stdin=stdin, timeout_s=timeout_s)


def start_client(cluster: Cluster) -> ClientPod:
    image = cluster.images.ensure(client_image(cluster.images), FIRST_RUN)
    with cluster.progress.step("starting the client pod"):
        manifest = (HERE / "manifests" / "client.yaml").read_text()
        values = {"NAMESPACE": CLIENT_NAMESPACE, "IMAGE": image.content_reference}
        cluster.kubectl.apply(Template(manifest).substitute(values))
        _wait_available(cluster.kubectl, CLIENT_NAMESPACE, "client")
    return ClientPod(cluster.kubectl)


def hub_image(loader: ImageLoader) -> ImageBuild:
    """Holds the real model files, which come from an installed package and are never part of this repository."""
    version = importlib.metadata.version(samples.MODEL_PACKAGE)
    context = loader.layout.builds / f"hub-{digest([HUB_SOURCES], [version])}"
    build_once(context, _fill_hub_context)
    arguments = {"BASE": loader.base(), "CONTENT": context.name}
    return ImageBuild(f"{PREFIX}embedserve-hub:1", HUB_SOURCES / "Containerfile", context, (), arguments)


def client_image(loader: ImageLoader) -> ImageBuild:
    context = HERE / "client"
    arguments = {"BASE": loader.base()}
    return ImageBuild(
        f"{PREFIX}embedserve-client:1", context / "Containerfile", context, (context,), arguments
    )


def _fill_hub_context(workplace: Path) -> None:
    samples.write_samples(workplace / "repositories")
    ignored = shutil.ignore_patterns("__pycache__", "Containerfile")
    shutil.copytree(HUB_SOURCES, workplace / "e2e" / "hub", ignore=ignored)


def _ensure_hub_tokens(kubectl: Kubectl) -> None:
    if kubectl.get("secret", HUB_TOKENS, "--namespace", HUB_NAMESPACE) is not None:
        return
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": HUB_TOKENS, "namespace": HUB_NAMESPACE},
        "stringData": {kind: f"hf_{secrets.token_hex(16)}" for kind in ("reader", "stranger")},
    }
    kubectl.apply(json.dumps(secret))


def _wait_available(kubectl: Kubectl, namespace: str, name: str) -> None:
    words = ("deployment", name, "--namespace", namespace)
    kubectl.wait_for(f"deployment {name} is available", words, deployment_available, timeout_s=120)
