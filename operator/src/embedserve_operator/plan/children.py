"""Decides which children a resource should have, and which of the existing ones may go."""

from __future__ import annotations

from collections.abc import Iterator

from embedserve_operator.kube.kinds import SCALED_OBJECT, SERVICE_MONITOR
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.manifests.disruption import build_disruption_budget
from embedserve_operator.manifests.metadata import build_space_name, read_ref
from embedserve_operator.manifests.network_policy import build_network_policy
from embedserve_operator.manifests.service import build_service, build_space_service
from embedserve_operator.manifests.service_monitor import build_service_monitor
from embedserve_operator.plan.decision import Decision
from embedserve_operator.plan.model_volume import is_retained_claim
from embedserve_operator.plan.operator_keys import build_mounted_config_maps
from embedserve_operator.plan.pins import plan_pins
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.scaling import build_scalers
from embedserve_operator.plan.upgrade import annotate_deployment
from embedserve_operator.state.resource import Child


def build_children(decision: Decision) -> tuple[Manifest, ...]:
    """Return the children in the order in which they need each other: what leads to the pods of a vector space
    is there before the Service switches to them.
    """
    inputs, rollout = decision.inputs, decision.rollout
    observed, spec, settings = inputs.observed, inputs.spec, inputs.settings
    resource, volume = observed.resource, decision.preparation.volume
    # The pods of retained revisions may have to fetch again.
    has_fetching_revisions = rollout.is_waiting or bool(rollout.retained)
    fetches = has_fetching_revisions or (volume is None and spec.model.source.is_remote)
    by_job = volume is not None and not volume.is_filled
    manifests = (
        *decision.preparation.children,
        None if decision.keeps_deployment else decision.manifests.config_map,
        *plan_pins(inputs, rollout.desired),
        build_network_policy(resource, spec, settings, fetches=fetches, by_job=by_job),
        *_build_deployments(decision),
        *_build_services(decision),
        *_build_scalers(decision),
        *_build_disruption_budgets(decision),
        build_service_monitor(resource, spec) if SERVICE_MONITOR in observed.cluster.optional_kinds else None,
    )
    children = tuple(manifest for manifest in manifests if manifest is not None)
    return (*children, *build_mounted_config_maps(observed, settings, children))


def _build_scalers(decision: Decision) -> Iterator[Manifest | None]:
    """Yield what scales the desired revision, unless it waits for its switch, then what scales the one that serves
    meanwhile.
    """
    inputs, rollout, serving = decision.inputs, decision.rollout, decision.serving
    # A revision that waits for another conversion is still scaled.
    exists = inputs.observed.find_deployment(rollout.desired) is not None
    if not rollout.is_waiting and (decision.preparation.can_serve or exists):
        yield from build_scalers(inputs.observed, inputs.spec, inputs.settings, rollout.desired)
    if serving is not None:
        yield from build_scalers(inputs.observed, serving.spec, inputs.settings, rollout.serving)


def _build_disruption_budgets(decision: Decision) -> Iterator[Manifest | None]:
    """Yield the PodDisruptionBudget of what serves, then those of the retained revisions."""
    resource, spec = decision.inputs.observed.resource, decision.inputs.spec
    volume = decision.preparation.volume
    yield build_disruption_budget(resource, spec, resource.key.name, decision.rollout.serving, volume)
    for retained in decision.rollout.retained:
        space, revision = retained.previous.space, retained.previous.revision
        yield build_disruption_budget(resource, spec, build_space_name(resource, space), revision, volume)


def _build_deployments(decision: Decision) -> Iterator[Manifest | None]:
    """Yield the Deployments that are written in this pass, those that serve already first, each after its ConfigMap;
    the ConfigMap of the desired revision has been written before.

    The Deployment that serves says how far an upgrade of the operator has come with it.
    """
    deployment = decision.manifests.deployment
    if not decision.rollout.is_waiting:
        deployment = annotate_deployment(deployment, decision.upgrade)
    if decision.serving is not None:
        yield decision.serving.config_map
        yield annotate_deployment(decision.serving.deployment, decision.upgrade)
    for retained in decision.retained:
        yield retained.config_map
        yield retained.deployment
    if decision.preparation.can_serve and not decision.keeps_deployment:
        yield deployment


def _build_services(decision: Decision) -> Iterator[Manifest]:
    """Yield the Services of the vector spaces, then the Service of the resource, which selects what they lead to."""
    resource, spec, rollout = decision.inputs.observed.resource, decision.inputs.spec, decision.rollout
    # Two revisions can make one space then, and only one of them is to be served.
    is_unmixed = spec.rollout.on_precision_change == "BlueGreen"
    for space in _find_spaces_with_pods(rollout):
        is_current = space == rollout.space
        yield build_space_service(
            resource,
            spec.service,
            space,
            is_current=is_current,
            revision=rollout.serving if is_unmixed and is_current else None,
        )
    yield build_service(resource, spec.service, rollout.serving, rollout.space)


def _find_spaces_with_pods(rollout: Rollout) -> tuple[str, ...]:
    """Return the vector spaces that have pods or will have them, each one once."""
    upcoming = rollout.desired_space if rollout.is_waiting else None
    spaces = (rollout.space, upcoming, *(retained.previous.space for retained in rollout.retained))
    return tuple(dict.fromkeys(space for space in spaces if space is not None))


def find_unwanted_children(decision: Decision, children: tuple[Manifest, ...]) -> tuple[Child, ...]:
    """Return the existing children that are neither wanted nor still needed."""
    desired = {read_ref(child) for child in children}
    needed = _find_needed_children(decision)
    return tuple(
        child
        for child in decision.inputs.observed.children
        if child.ref not in desired | needed and not is_retained_claim(child)
    )


def _find_needed_children(decision: Decision) -> frozenset[ChildRef]:
    """Return the children that pods still need although no manifest of the plan is about them."""
    return _find_needed_workloads(decision) | _find_needed_config_maps(decision)


def _find_needed_workloads(decision: Decision) -> frozenset[ChildRef]:
    """Return the Deployments that serve meanwhile or are retained, with the autoscalers that go on scaling them."""
    observed, rollout = decision.inputs.observed, decision.rollout
    previous = _find_needed_revision(decision)
    # A revision that waits for another fetch or conversion stays as it is.
    waits = not (decision.preparation.can_serve or decision.preparation.must_clear)
    staying = {previous, rollout.desired} if waits else {previous}
    retained = {revision.previous.revision for revision in rollout.retained}
    # An autoscaler has the name of its Deployment, and stays with it. That of retained revisions goes.
    is_scaled = previous != rollout.desired and decision.serving is None
    refs: set[ChildRef] = set()
    for deployment in observed.deployments:
        if deployment.revision in staying | retained:
            refs.add(ChildRef("Deployment", deployment.name))
        if is_scaled and deployment.revision in staying and deployment.is_autoscaled:
            refs |= {ChildRef(kind, deployment.name) for kind in ("HorizontalPodAutoscaler", SCALED_OBJECT)}
    return frozenset(refs)


def _find_needed_revision(decision: Decision) -> str | None:
    """Return the revision whose Deployment stays since the Service leads to it; None where it has to make room.

    It goes only after the Service was seen to lead to the desired revision.
    """
    rollout, serving_revision = decision.rollout, decision.inputs.observed.serving_revision
    if decision.preparation.must_clear or rollout.is_serving_broken:
        return None
    return rollout.serving if serving_revision == rollout.desired else serving_revision


def _find_needed_config_maps(decision: Decision) -> frozenset[ChildRef]:
    """Return the ConfigMaps that a pod mounts or may yet mount.

    Until the desired Deployment is complete, an older ReplicaSet of it can still start pods, and those need their
    ConfigMap, whose name no longer appears in any Deployment. So ConfigMaps go only after the completion.
    """
    observed = decision.inputs.observed
    mounted = {pod.config_map for pod in observed.pods}
    mounted |= {deployment.config_map for deployment in observed.deployments}
    mounted |= {job.config_map for job in observed.jobs if job.phase == "Running"}
    return frozenset(
        child.ref
        for child in observed.children
        if child.ref.kind == "ConfigMap" and (not decision.rollout.is_complete or child.ref.name in mounted)
    )
