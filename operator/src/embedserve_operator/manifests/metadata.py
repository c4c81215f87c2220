"""Builds the names, labels, annotations and owner references that all children share."""

from __future__ import annotations

from embedserve_operator.api.types import API_VERSION, KIND
from embedserve_operator.kube.objects import Manifest, compute_short_hash
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.state.resource import Resource

SERVICE_LABEL = "embedserve.dev/service"
"""Label on every child and pod: the name of the resource."""
REVISION_LABEL = "embedserve.dev/revision"
"""Label on Deployments and pods: the declaration of a model that they serve."""
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "embedserve-operator"
"""A label on every child, and its value."""
CLAIM_LABEL = "embedserve.dev/claim"
"""Label on Jobs and on pods that mount a volume of models: the hash of the name of the claim."""
TASK_LABEL, SERVING = "app.kubernetes.io/component", "runtime"
"""A label on every child and pod, and its value `runtime`; Jobs and their pods have their task instead."""
JOB_NAME = "batch.kubernetes.io/job-name"
"""Label that Kubernetes puts on the pods of a Job."""
SCRAPE_LABEL = "embedserve.dev/metrics"
"""Label on the Services by which the metrics of pods are found: each pod by one of them."""
SPACE_LABEL = "embedserve.dev/vector-space"
"""Label on Deployments, pods and Services, once it is known: the identity of the vectors that they give."""
FINGERPRINT = "embedserve.dev/fingerprint"
"""Annotation on children: the hash of the manifest that they were applied from."""
SCALED_BY = "embedserve.dev/scaled-by"
"""Annotation on Deployments whose number of pods an autoscaler decides."""
FETCHED = "embedserve.dev/model"
"""Annotation on pods that serve from a cache: what the fetch Job reported about their model."""
DECLARATION = "embedserve.dev/declaration"
"""Annotation on Deployments: the fields of the manifest that declare the model, as JSON."""
MODEL_FIELDS = ("model", "promptName", "prompts")
"""The fields of the spec that declare the model."""
IMMEDIATE_FIELDS = ("suspend", "auth", "rollout", "service", "networkPolicy", "monitoring", "jobs")
"""The fields of the spec that hold for the whole service at once, whichever of its models serves."""
SETTINGS = "embedserve.dev/settings"
"""Annotation on Deployments: the fields of the manifest that are in neither of these two, as JSON."""
FOLLOWED = "embedserve.dev/followed"
"""Annotation on a Deployment that serves while the manifest asks for another model, as JSON: the revision of that
model, and the settings of the manifest up to which the Deployment has followed it.
"""
GENERATION = "embedserve.dev/generation"
"""Annotation on Deployments: the generation of the resource that they were made from."""
UPGRADE = "embedserve.dev/upgrade"
"""Annotation on Deployments: `Rolling` or `Failed` from when another release or setting of the operator changes their
pods until all of these are ready; then empty.
"""
REPLACED_AT = "embedserve.dev/replaced-at"
"""Annotation on Deployments of earlier models: when the Service switched to another one."""
MODEL_BYTES = "embedserve.dev/model-bytes"
"""Annotation on Deployments: the size of the model's files that the pod template was made for."""
MODEL_MEMORY = "embedserve.dev/model-memory"
"""Annotation on Deployments: what the model takes in memory, by which the pod template's memory was computed."""
TEMPLATE_HASH = "embedserve.dev/template"
"""Annotation on pods: the hash of the template that they were made from."""


def build_space_name(resource: Resource, space: str) -> str:
    """Return the name of what exists for one vector space: the name of the resource, and the first digits of
    the identity.
    """
    return f"{resource.key.name}-{space.partition('-')[2][:8]}"


def build_labels(resource: Resource, revision: str | None = None) -> dict[str, str]:
    """Return the labels of a child.

    `app.kubernetes.io/instance` is left out on purpose: Argo CD tracks by it and would take the children
    for its own.
    """
    labels = {
        "app.kubernetes.io/name": "embedserve",
        TASK_LABEL: SERVING,
        MANAGED_BY: MANAGER,
        SERVICE_LABEL: resource.key.name,
    }
    if revision is not None:
        labels[REVISION_LABEL] = revision
    return labels


def build_claim_name(name: str) -> str:
    """Return the name of the claim that is made for a resource of that name."""
    return f"{name}-models"


def hash_claim_name(claim: str) -> str:
    """Return the name of a claim as the value of a label, which must be shorter than a name may be."""
    return compute_short_hash(["claim", claim])


def build_selector(resource: Resource, revision: str) -> dict[str, str]:
    """Return the labels that select the pods of one revision."""
    return {SERVICE_LABEL: resource.key.name, REVISION_LABEL: revision}


def format_selector(resource: Resource, revision: str) -> str:
    """Return the label selector of the pods of a revision."""
    return ",".join(f"{key}={value}" for key, value in build_selector(resource, revision).items())


def build_metadata(resource: Resource, name: str, revision: str | None = None) -> Manifest:
    """Return the metadata of a child: the resource owns it, so that it goes when the resource goes."""
    return {
        "name": name,
        "namespace": resource.key.namespace,
        "labels": build_labels(resource, revision),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": resource.key.name,
                "uid": resource.uid,
                # blockOwnerDeletion is left out: where it is enforced, it needs rights on the resource's finalizers.
                "controller": True,
            }
        ],
    }


def add_fingerprint(manifest: Manifest) -> Manifest:
    """Return the manifest with its own hash, by which a later pass sees that nothing has changed."""
    meta = manifest["metadata"]
    annotations = {**meta.get("annotations", {}), FINGERPRINT: compute_short_hash(manifest)}
    return {**manifest, "metadata": {**meta, "annotations": annotations}}


def read_fingerprint(manifest: Manifest) -> str:
    """Return the hash that `add_fingerprint` put in."""
    fingerprint = manifest["metadata"]["annotations"][FINGERPRINT]
    return str(fingerprint)


def read_ref(manifest: Manifest) -> ChildRef:
    """Return the kind and name of a manifest."""
    return ChildRef(manifest["kind"], manifest["metadata"]["name"])
