"""Pins a branch to the commit that a fetch found, so that later pods use the same one until
`refresh` or the source changes, and with it the revision.
"""

from __future__ import annotations

from collections.abc import Iterator

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.objects import ConfigMap
from embedserve_operator.manifests.metadata import format_selector
from embedserve_operator.manifests.pin import KEY, build_pin, build_pin_name, is_commit, is_movable
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.vector_spaces import find_model_report
from embedserve_operator.state.observed import ObservedState


def plan_pins(inputs: PlanInput, desired: str) -> Iterator[Manifest]:
    """Yield the pin of the desired revision, and those of the other Deployments, whose pods may have to fetch again.

    There is none before a fetch, and where the source names a commit itself.
    """
    observed = inputs.observed
    others = {deployment.revision for deployment in observed.deployments} - {desired}
    pinned = [revision for revision in sorted(others) if _find_pin(observed, revision) is not None]
    for revision in (*((desired,) if is_movable(inputs.spec) else ()), *pinned):
        commit = _find_commit(inputs, revision)
        if is_commit(commit):
            yield build_pin(observed.resource, revision, commit)


def _find_commit(inputs: PlanInput, revision: str) -> str:
    """Return the commit of a revision: that of its pin, of the published status, or of what a pod reported.

    A pin that can be edited (earlier versions of the operator made them so) is believed last.
    """
    pin = _find_pin(inputs.observed, revision)
    pinned = pin.data.get(KEY, "") if pin is not None else ""
    if pin is not None and pin.immutable:
        return pinned
    report = find_model_report(inputs, revision)
    reported = report.revision or "" if report is not None else ""
    return _find_published_commit(inputs.observed, revision) or reported or pinned


def _find_pin(observed: ObservedState, revision: str) -> ConfigMap | None:
    pin = observed.find_child(ChildRef("ConfigMap", build_pin_name(observed.resource, revision)))
    return pin.view if pin is not None and isinstance(pin.view, ConfigMap) else None


def _find_published_commit(observed: ObservedState, revision: str) -> str:
    """Return the commit that the status names for the revision that serves; empty where it is about another one."""
    published = observed.resource.status
    if published.model is None or published.selector != format_selector(observed.resource, revision):
        return ""
    return published.model.revision or ""
