"""Pins a branch to the commit that a fetch found, so that later pods use the same one until
`refresh` or the source changes, and with it the revision.
"""

from __future__ import annotations

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.objects import ConfigMap
from embedserve_operator.manifests.metadata import build_selector
from embedserve_operator.manifests.pin import KEY, build_pin, build_pin_name, is_commit, is_movable
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.vector_spaces import find_model_report
from embedserve_operator.state.observed import ObservedState


def plan_pin(inputs: PlanInput, revision: str) -> Manifest | None:
    """Return the pin of the desired revision; None before a fetch, and where the source names a commit itself."""
    observed = inputs.observed
    if not is_movable(inputs.spec):
        return None
    report = find_model_report(inputs, revision)
    commit = _find_known_commit(observed, revision) or (report.revision or "" if report is not None else "")
    return build_pin(observed.resource, revision, commit) if is_commit(commit) else None


def _find_known_commit(observed: ObservedState, revision: str) -> str:
    """Return the commit of the existing pin, or that of the status if somebody has deleted the pin."""
    pin = observed.find_child(ChildRef("ConfigMap", build_pin_name(observed.resource, revision)))
    if pin is not None and isinstance(pin.view, ConfigMap):
        return pin.view.data.get(KEY, "")
    selection = ",".join(
        f"{key}={value}" for key, value in build_selector(observed.resource, revision).items()
    )
    published = observed.resource.status
    is_published = published.selector == selection and published.model is not None
    return (published.model.revision or "") if is_published and published.model is not None else ""


def find_pins_in_use(observed: ObservedState) -> frozenset[ChildRef]:
    """Return the pins of the existing Deployments, whose pods may have to fetch again."""
    return frozenset(
        ChildRef("ConfigMap", build_pin_name(observed.resource, deployment.revision))
        for deployment in observed.deployments
    )
