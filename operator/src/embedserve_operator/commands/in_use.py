"""Finds what services still need on a volume of models, which `embedserve store gc` has to keep.

A service says itself what it serves. One that does not serve yet what its spec asks for needs what the spec
names, which may be on the volume already.
"""

from __future__ import annotations

from collections.abc import Iterable

from embedserve_operator.errors import ManifestError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.kube.views.workloads import Deployment
from embedserve_operator.manifests.metadata import CLAIM_LABEL, SERVICE_LABEL, hash_claim_name
from embedserve_operator.manifests.runtime_config import format_source_path
from embedserve_operator.observe.pods import read_annotated_report
from embedserve_operator.observe.resource import read_claim_name, read_resource


async def list_in_use(namespace: str, claim: str, request_timeout: float) -> tuple[str, ...]:
    """Return the digests of models and the names of artifacts that something in the namespace serves or is
    about to serve. Raises ApiError, since what could not be read must not be taken to be unused.
    """
    async with KubeClient(request_timeout=request_timeout, namespaces=(namespace,)) as kube:
        resources = await kube.list_labelled(RESOURCE, "")
        deployments = await kube.list_labelled("Deployment", SERVICE_LABEL)
    return find_names_in_use(
        [EmbeddingServiceObject.parse(received) for received in resources],
        [Deployment.parse(received) for received in deployments],
        claim,
    )


def find_names_in_use(
    resources: Iterable[EmbeddingServiceObject], deployments: Iterable[Deployment], claim: str
) -> tuple[str, ...]:
    """Return what resources say that they use, and what Deployments mount, including those of earlier models.

    Raises ManifestError where a spec cannot be read.
    """
    names = []
    for resource in resources:
        if read_claim_name(resource) == claim:
            published = resource.partial_status
            names += [published.fetch.digest, published.model.digest, published.conversion.artifact]
            names.append(_find_awaited_source(resource))
    for deployment in deployments:
        template = deployment.spec.template.metadata
        if template.labels.get(CLAIM_LABEL) == hash_claim_name(claim):
            report = read_annotated_report(template)
            names.append(report.digest or "" if report is not None else "")
    return tuple(sorted({name for name in names if name}))


def _find_awaited_source(resource: EmbeddingServiceObject) -> str:
    """Return the source of a spec about which nothing is known yet; empty afterwards."""
    read = read_resource(resource)
    if read.spec is None:
        raise ManifestError(f"EmbeddingService {read.key} cannot be read: {read.problem}")
    status = read.status
    is_served = status.model is not None and status.model.digest is not None
    is_fetched = status.fetch is not None and status.fetch.digest is not None
    is_current = status.observed_generation == read.generation and (
        is_fetched if status.fetch is not None else is_served
    )
    return "" if is_current else format_source_path(read.spec.model.source)
