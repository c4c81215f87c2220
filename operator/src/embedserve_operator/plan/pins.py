"""Which commit a branch stands for, once a fetch has looked it up: later pods take the same, until `refresh` or the
source changes, and with it the revision."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.spaces import report_of
from embedserve_operator.specs.metadata import selector
from embedserve_operator.specs.pin import KEY, is_commit, is_movable, pin, pin_name
from embedserve_operator.wire import Manifest, text
from embedserve_operator.world import ChildRef, World


def pin_of(world: World, spec: EmbeddingServiceSpec, revision: str) -> Manifest | None:
    """The pin of the wanted revision; None before a fetch, and where the source names a commit itself."""
    if not is_movable(spec):
        return None
    report = report_of(world, revision)
    commit = _known(world, revision) or (report.revision or "" if report is not None else "")
    return pin(world.resource, revision, commit) if is_commit(commit) else None


def _known(world: World, revision: str) -> str:
    """From the pin that is there, or from the status should somebody have deleted it."""
    there = world.child(ChildRef("ConfigMap", pin_name(world.resource, revision)))
    if there is not None:
        return text(there.received, "data", KEY)
    selection = ",".join(f"{key}={value}" for key, value in selector(world.resource, revision).items())
    published = world.resource.status
    is_same = published.selector == selection and published.model is not None
    return (published.model.revision or "") if is_same and published.model is not None else ""


def pins_in_use(world: World) -> frozenset[ChildRef]:
    """Pins of Deployments that exist: their pods may have to fetch again."""
    return frozenset(
        ChildRef("ConfigMap", pin_name(world.resource, found.revision)) for found in world.deployments
    )
