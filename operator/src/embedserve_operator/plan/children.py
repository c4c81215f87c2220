"""Decides which children a resource should have, and which of the existing ones may go."""

from __future__ import annotations

from embedserve_operator.kube.kinds import SCALED_OBJECT, SERVICE_MONITOR
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.manifests.disruption import build_disruption_budget
from embedserve_operator.manifests.metadata import read_ref, space_name
from embedserve_operator.manifests.network_policy import build_network_policy
from embedserve_operator.manifests.service import build_service, build_space_service
from embedserve_operator.manifests.service_monitor import build_service_monitor
from embedserve_operator.plan.evaluation import Evaluation
from embedserve_operator.plan.model_volume import is_retained_claim
from embedserve_operator.plan.operator_keys import build_mounted_config_maps
from embedserve_operator.plan.pins import find_pins_in_use, plan_pin
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.scaling import build_scalers
from embedserve_operator.state.resource import Child


def build_children(evaluation: Evaluation) -> tuple[Manifest, ...]:
    """Return the children in the order in which they need each other: what leads to the pods of a vector space
    is there before the Service switches to them.
    """
    observed, spec, settings = evaluation.observed, evaluation.spec, evaluation.settings
    rollout, build = evaluation.rollout, evaluation.build
    resource = observed.resource
    preparation, volume = build.preparation, build.volume
    # The pods of retained revisions may have to fetch again.
    fetches = (volume is None and spec.model.source.is_remote) or rollout.is_waiting or bool(rollout.retained)
    by_job = volume is not None and not volume.is_filled
    # A revision that waits for another conversion is still scaled.
    is_scaled = not rollout.is_waiting and (
        preparation.can_serve or observed.find_deployment(rollout.desired) is not None
    )
    serving = evaluation.serving
    # Two revisions can make one space then, and only one of them is to be served.
    is_unmixed = spec.rollout.on_precision_change == "BlueGreen"
    found = (
        *preparation.children,
        None if build.is_held_back else build.config_map,
        plan_pin(observed, spec, rollout.desired),
        build_network_policy(resource, spec, settings, fetches=fetches, by_job=by_job),
        *((serving.config_map, serving.deployment) if serving is not None else ()),
        *(manifest for one in evaluation.retained for manifest in (one.config_map, one.deployment)),
        build.deployment if preparation.can_serve and not build.is_held_back else None,
        *(
            build_space_service(
                resource,
                spec.service,
                space,
                is_current=space == rollout.space,
                revision=rollout.serving if is_unmixed and space == rollout.space else None,
            )
            for space in _find_spaces_with_pods(rollout)
        ),
        build_service(resource, spec.service, rollout.serving, rollout.space),
        *(build_scalers(observed, spec, settings, rollout.desired) if is_scaled else ()),
        *(build_scalers(observed, serving.spec, settings, rollout.serving) if serving is not None else ()),
        build_disruption_budget(resource, spec, resource.key.name, rollout.serving, volume),
        *(
            build_disruption_budget(
                resource, spec, space_name(resource, one.previous.space), one.previous.revision, volume
            )
            for one in rollout.retained
        ),
        build_service_monitor(resource, spec) if SERVICE_MONITOR in observed.cluster.optional_kinds else None,
    )
    children = tuple(child for child in found if child is not None)
    return (*children, *build_mounted_config_maps(observed, settings, children))


def _find_spaces_with_pods(rollout: Rollout) -> tuple[str, ...]:
    """Return the vector spaces that have pods or will have them, each one once."""
    wanted = rollout.desired_space if rollout.is_waiting else None
    found = (rollout.space, wanted, *(one.previous.space for one in rollout.retained))
    return tuple(dict.fromkeys(space for space in found if space is not None))


def find_unwanted_children(evaluation: Evaluation, children: tuple[Manifest, ...]) -> tuple[Child, ...]:
    """Return the existing children that are neither wanted nor still needed."""
    wanted = {read_ref(child) for child in children}
    needed = _find_needed_children(evaluation)
    return tuple(
        child
        for child in evaluation.observed.children
        if child.ref not in wanted | needed and not is_retained_claim(child)
    )


def _find_needed_children(evaluation: Evaluation) -> frozenset[ChildRef]:
    """Return the Deployments that serve meanwhile or are retained, and the ConfigMaps that a pod mounts or may
    yet mount.

    Until the desired Deployment is complete, an older ReplicaSet of it can still start pods, and those need
    their ConfigMap, whose name no longer appears in any Deployment. So ConfigMaps go only after the
    completion.
    """
    observed, rollout = evaluation.observed, evaluation.rollout
    preparation = evaluation.build.preparation
    needed: set[ChildRef] = set()
    # What the Service pointed at goes only after the Service was seen to point at the desired revision.
    switched = observed.serving_revision == rollout.desired
    keep = rollout.serving if switched else observed.serving_revision
    if preparation.must_clear or rollout.is_serving_broken:
        keep = None
    # A revision that waits for another fetch or conversion stays as it is.
    stay = {keep} if preparation.can_serve or preparation.must_clear else {keep, rollout.desired}
    retained = [found for found in observed.deployments if found.revision in stay]
    needed |= {ChildRef("Deployment", found.name) for found in retained}
    if keep != rollout.desired and evaluation.serving is None:
        # Its autoscaler has the same name, and stays with it.
        needed |= {
            ChildRef(kind, found.name)
            for found in retained
            if found.is_autoscaled
            for kind in ("HorizontalPodAutoscaler", SCALED_OBJECT)
        }
    back = {one.previous.revision for one in rollout.retained}
    needed |= {ChildRef("Deployment", found.name) for found in observed.deployments if found.revision in back}
    in_use = {pod.config_map for pod in observed.pods} | {found.config_map for found in observed.deployments}
    in_use |= {found.config_map for found in observed.jobs if found.phase == "Running"}
    needed |= find_pins_in_use(observed)
    needed |= {
        child.ref
        for child in observed.children
        if child.ref.kind == "ConfigMap" and (not rollout.is_complete or child.ref.name in in_use)
    }
    return frozenset(needed)
