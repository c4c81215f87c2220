"""What services still need of a volume of models: what `embedserve store gc` has to keep."""

from __future__ import annotations

from collections.abc import Iterable

from embedserve_operator.kinds import RESOURCE
from embedserve_operator.kube import Kube
from embedserve_operator.observe import claim_name
from embedserve_operator.pods import told_report
from embedserve_operator.specs.metadata import CLAIM_LABEL, SERVICE_LABEL, claim_mark
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
    """By what resources say of themselves, and by what Deployments mount: those of earlier models are kept too."""
    found = [
        text(resource, "status", *path)
        for resource in resources
        if claim_name(resource) == claim
        for path in _PUBLISHED
    ]
    for deployment in deployments:
        template = dig(deployment, "spec", "template")
        if text(template, "metadata", "labels", CLAIM_LABEL) == claim_mark(claim):
            report = told_report(template)
            found.append(report.digest or "" if report is not None else "")
    return tuple(sorted({name for name in found if name}))
