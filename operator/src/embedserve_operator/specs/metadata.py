"""Names, labels, annotations and owner references that all children share."""

from __future__ import annotations

from embedserve_operator.api.types import API_VERSION, KIND
from embedserve_operator.wire import Manifest, Received, mappings, short_hash, text
from embedserve_operator.world import ChildRef, Resource

SERVICE_LABEL = "embedserve.dev/service"
"""On every child and pod: name of the resource."""
REVISION_LABEL = "embedserve.dev/revision"
"""On Deployments and pods: which declaration of a model they serve."""
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "embedserve-operator"
"""Label on every child, and its value."""
CLAIM_LABEL = "embedserve.dev/claim"
"""On Jobs and on pods that mount a volume of models: mark of the claim."""
TASK_LABEL, SERVING = "app.kubernetes.io/component", "runtime"
"""On every child and pod: `runtime`, or the task of a Job and its pods."""
JOB_NAME = "batch.kubernetes.io/job-name"
"""On the pods of a Job, put there by Kubernetes."""
SCRAPE_LABEL = "embedserve.dev/metrics"
"""On Services by which pods are found for their metrics: each pod by one of them."""
SPACE_LABEL = "embedserve.dev/vector-space"
"""On Deployments, pods and Services, once it is known: identity of the vectors that they give."""
FINGERPRINT = "embedserve.dev/fingerprint"
"""Annotation on children: hash of the manifest that they were applied from."""
SCALED_BY = "embedserve.dev/scaled-by"
"""Annotation on Deployments whose number of pods an autoscaler decides."""
FETCHED = "embedserve.dev/model"
"""Annotation on pods that serve from a cache: what the fetch Job said about their model."""
DECLARATION = "embedserve.dev/declaration"
"""Annotation on Deployments: the fields of the manifest that declare the model, as JSON."""
MODEL_FIELDS = ("model", "promptName", "prompts")
"""Those fields of the spec."""
MODEL_BYTES = "embedserve.dev/model-bytes"
"""Annotation on Deployments: the size of the model's files that the pod template was made for."""
TEMPLATE_HASH = "embedserve.dev/template"
"""Annotation on pods: hash of the template that they were made from."""


def space_name(resource: Resource, space: str) -> str:
    """Name of what there is for one vector space: the resource's name, and the first digits of the identity."""
    return f"{resource.key.name}-{space.removeprefix('vs1-')[:8]}"


def labels(resource: Resource, revision: str | None = None) -> dict[str, str]:
    """Labels of a child.

    `app.kubernetes.io/instance` is left out on purpose: Argo CD tracks by it and would take the children for
    its own.
    """
    found = {
        "app.kubernetes.io/name": "embedserve",
        TASK_LABEL: SERVING,
        MANAGED_BY: MANAGER,
        SERVICE_LABEL: resource.key.name,
    }
    if revision is not None:
        found[REVISION_LABEL] = revision
    return found


def own_claim(name: str) -> str:
    """Name of the claim that is made for a resource of that name."""
    return f"{name}-models"


def claim_mark(claim: str) -> str:
    """A claim's name as the value of a label, which may not be as long as a name."""
    return short_hash(["claim", claim])


def selector(resource: Resource, revision: str) -> dict[str, str]:
    """Labels that select the pods of one revision."""
    return {SERVICE_LABEL: resource.key.name, REVISION_LABEL: revision}


def metadata(resource: Resource, name: str, revision: str | None = None) -> Manifest:
    """Metadata of a child: owned by the resource, so that it goes when the resource goes."""
    return {
        "name": name,
        "namespace": resource.key.namespace,
        "labels": labels(resource, revision),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": resource.key.name,
                "uid": resource.uid,
                # No blockOwnerDeletion: where it is enforced, it needs rights on the resource's finalizers.
                "controller": True,
            }
        ],
    }


def fingerprinted(manifest: Manifest) -> Manifest:
    """The manifest with the hash of itself, by which a later pass sees that nothing changed."""
    meta = manifest["metadata"]
    annotations = {**meta.get("annotations", {}), FINGERPRINT: short_hash(manifest)}
    return {**manifest, "metadata": {**meta, "annotations": annotations}}


def fingerprint_of(manifest: Manifest) -> str:
    """The hash that `fingerprinted` put in."""
    found = manifest["metadata"]["annotations"][FINGERPRINT]
    return str(found)


def ref_of(manifest: Manifest) -> ChildRef:
    """Kind and name of a manifest."""
    return ChildRef(manifest["kind"], manifest["metadata"]["name"])


def controller_uid(received: Received) -> str:
    """UID of the object that controls another one."""
    for reference in mappings(received, "metadata", "ownerReferences"):
        if reference.get("controller") is True:
            return text(reference, "uid")
    return ""
