"""Which revision serves: the switch from an old model to a new one.

The Service goes on pointing at the old revision until the new one is complete and has proved its vectors, then switches
in one write. A new model that cannot come up takes nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.spaces import Former, Kept, formers, kept, space_of, strangers
from embedserve_operator.specs.metadata import space_name
from embedserve_operator.world import ChildRef, DeploymentFacts, PodFacts, World

State = Literal["Done", "Preparing", "Checking", "Held", "Refused"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The state of the change from one revision to another."""

    wanted: str
    serving: str
    """Revision that the Service should select."""
    complete: bool
    """The wanted revision runs exactly as asked for."""
    state: State = "Done"
    """What keeps the wanted revision from serving."""
    space: str | None = None
    """What the revision that serves makes, if that is known."""
    wanted_space: str | None = None
    formers: tuple[Former, ...] = ()
    kept: tuple[Kept, ...] = ()

    @property
    def waits(self) -> bool:
        """An older revision goes on serving meanwhile."""
        return self.serving != self.wanted

    @property
    def is_as_asked(self) -> bool:
        """Nothing is on its way: what the manifest asks for is so."""
        return self.complete and self.state in ("Done", "Held")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the manifest asks for, as the decision needs it."""

    revision: str
    fingerprint: str
    """Of its Deployment."""
    template: str
    """Hash of its pod template."""
    replicas: int


def steer(world: World, spec: EmbeddingServiceSpec, wanted: Wanted) -> Rollout:
    """Decide which revision serves."""
    deployment = world.deployment(wanted.revision)
    complete = deployment is not None and is_complete(deployment, wanted.fingerprint, wanted.replicas)
    state = _state(world, spec, wanted, complete=complete)
    current = world.serving_revision
    serving = wanted.revision if state == "Done" or current is None else current
    known = formers(world, serving)
    return Rollout(
        wanted=wanted.revision,
        serving=serving,
        complete=complete and not strangers(world, serving),
        state=state,
        space=space_of(world, serving),
        wanted_space=space_of(world, wanted.revision),
        formers=known,
        kept=kept(world, spec, known, others=frozenset((serving, wanted.revision))),
    )


def _state(world: World, spec: EmbeddingServiceSpec, wanted: Wanted, *, complete: bool) -> State:
    current = world.serving_revision
    if current is None or current == wanted.revision:
        return "Done"
    old, new = space_of(world, current), space_of(world, wanted.revision)
    policy = spec.rollout.on_new_vector_space
    if policy == "Refuse" and _holds_name(world, current, old):
        # Without pods of the new model nobody finds out what it makes.
        if new != old and (new is not None or wanted.replicas == 0):
            return "Refused"
    elif not _may_serve(world, current):
        return "Done"
    if policy == "InPlace" or (complete and wanted.replicas == 0):
        return "Done"
    if not complete:
        return "Preparing"
    held: State = "Held" if spec.rollout.hold and old != new else "Done"
    return held if _is_proved(world, wanted) else "Checking"


def is_complete(deployment: DeploymentFacts, fingerprint: str, replicas: int) -> bool:
    """The Deployment runs the wanted manifest, in full, and nothing older."""
    return (
        deployment.fingerprint == fingerprint
        and deployment.settled
        and deployment.updated >= replicas
        and deployment.available >= replicas
        and deployment.replicas == deployment.updated == replicas
    )


def candidates(world: World, wanted: Wanted) -> tuple[PodFacts, ...]:
    """The ready pods that are to take over."""
    return tuple(
        pod
        for pod in world.pods_of(wanted.revision)
        if pod.phase == "Ready" and pod.template == wanted.template
    )


def _is_proved(world: World, wanted: Wanted) -> bool:
    """As many pods as asked for make sound vectors of one space, and are reachable by that space's own name: requests
    that still come to the old pods are passed on to it."""
    space = space_of(world, wanted.revision)
    if space is None or world.child(ChildRef("Service", space_name(world.resource, space))) is None:
        return False
    pods = candidates(world, wanted)
    return len(pods) >= wanted.replicas and all(
        pod.check is not None and not pod.check.problem and pod.space == pod.space_label == space
        for pod in pods
    )


def _holds_name(world: World, revision: str, space: str | None) -> bool:
    """Whether the service's name stands for a vector space: that of a model which serves, or which has been stopped."""
    deployment = world.deployment(revision)
    if deployment is None or space is None:
        return False
    return deployment.wanted == 0 or _may_serve(world, revision)


def _may_serve(world: World, revision: str) -> bool:
    """Whether an old revision is worth keeping: it serves, or waiting may bring it back.

    One that never will (its own model is broken) must not block the way, nor hold resources that the new one
    needs.
    """
    deployment = world.deployment(revision)
    if deployment is None or deployment.wanted == 0:
        return False
    if deployment.ready > 0:
        return True
    failures = [pod.failure for pod in world.pods_of(revision) if pod.failure is not None]
    return all(failure.heals for failure in failures)
