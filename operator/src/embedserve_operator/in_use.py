"""What services still need of a volume of models: what `embedserve store gc` has to keep.

What a service serves, it says itself. One that does not serve yet what its spec asks for needs what the spec names,
which may lie on the volume already.
"""

from __future__ import annotations

from collections.abc import Iterable

from embedserve_operator.errors import ManifestError
from embedserve_operator.kinds import RESOURCE
from embedserve_operator.kube import Kube
from embedserve_operator.observe import claim_name, read_resource
from embedserve_operator.pods import told_report
from embedserve_operator.specs.metadata import CLAIM_LABEL, SERVICE_LABEL, claim_mark
from embedserve_operator.specs.runtime_config import source_path
from embedserve_operator.wire import Received, dig, text

_PUBLISHED = (("fetch", "digest"), ("model", "digest"), ("conversion", "artifact"))


async def list_in_use(namespace: str, claim: str, request_timeout: float) -> tuple[str, ...]:
    """Digests of models and names of artifacts that something in the namespace serves or is about to. Raises ApiError:
    what could not be asked must not be taken for unused."""
    async with Kube(request_timeout=request_timeout, namespaces=(namespace,)) as kube:
        resources = await kube.list_labelled(RESOURCE, "")
        deployments = await kube.list_labelled("Deployment", SERVICE_LABEL)
    return names_in_use(resources, deployments, claim)


def names_in_use(
    resources: Iterable[Received], deployments: Iterable[Received], claim: str
) -> tuple[str, ...]:
    """By what resources say of themselves, and by what Deployments mount: those of earlier models are kept too. Raises
    ManifestError where a spec cannot be read."""
    found = []
    for resource in resources:
        if claim_name(resource) == claim:
            found += [text(resource, "status", *path) for path in _PUBLISHED]
            found.append(_awaited(resource))
    for deployment in deployments:
        template = dig(deployment, "spec", "template")
        if text(template, "metadata", "labels", CLAIM_LABEL) == claim_mark(claim):
            report = told_report(template)
            found.append(report.digest or "" if report is not None else "")
    return tuple(sorted({name for name in found if name}))


def _awaited(resource: Received) -> str:
    """The source of a spec that nothing was found out about yet; empty afterwards."""
    found = read_resource(resource)
    if found.spec is None:
        raise ManifestError(f"EmbeddingService {found.key} cannot be read: {found.problem}")
    status = found.status
    is_served = status.model is not None and status.model.digest is not None
    is_fetched = status.fetch is not None and status.fetch.digest is not None
    is_current = status.observed_generation == found.generation and (
        is_fetched if status.fetch is not None else is_served
    )
    return "" if is_current else source_path(found.spec.model.source)
