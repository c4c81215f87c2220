"""Which revision serves: the switch from an old model to a new one.

The Service goes on pointing at the old revision until the new one is complete, then switches in one write;
the old Deployment is pruned in a later pass, once the switch has been seen. A new model that cannot come up
takes nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.world import DeploymentFacts, World


@dataclass(frozen=True, slots=True)
class Rollout:
    """The state of the change from one revision to another."""

    wanted: str
    serving: str
    """Revision that the Service should select."""
    complete: bool
    """The wanted revision runs exactly as asked for."""

    @property
    def waits(self) -> bool:
        """An older revision goes on serving meanwhile."""
        return self.serving != self.wanted


def steer(world: World, *, wanted: str, fingerprint: str, replicas: int) -> Rollout:
    """Decide which revision serves. `fingerprint` and `replicas` are those of the wanted Deployment."""
    deployment = world.deployment(wanted)
    complete = deployment is not None and is_complete(deployment, fingerprint, replicas)
    current = world.serving_revision
    stays = current is not None and current != wanted and not complete and _may_serve(world, current)
    return Rollout(wanted=wanted, serving=current if stays and current else wanted, complete=complete)


def is_complete(deployment: DeploymentFacts, fingerprint: str, replicas: int) -> bool:
    """The Deployment runs the wanted manifest, in full, and nothing older."""
    return (
        deployment.fingerprint == fingerprint
        and deployment.settled
        and deployment.updated >= replicas
        and deployment.available >= replicas
        and deployment.replicas == deployment.updated == replicas
    )


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
