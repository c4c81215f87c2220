"""Model changes as a state machine: manifests, pods, time, lost statuses and deaths of the operator in any order."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from embedserve_operator.api.times import parse_duration
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.metadata import GENERATION, REVISION_LABEL, UPGRADE
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.state.upgrades import UpgradeProgress
from embedserve_operator.status.report import build_status
from tests.operator.builders import SETTINGS, hub_spec
from tests.operator.plan.stepped import SteppedCluster, name_space

A, B, C, MIRROR = "acme/a", "acme/b", "acme/c", "acme/a-mirror"
REPOS = st.sampled_from([A, B, C, MIRROR])
EXAMPLES = int(os.environ.get("EMBEDSERVE_ROLLOUT_EXAMPLES", "40"))
"""40 take some seconds; `make soak` sets more."""
MAX_PASSES = 40


def revision_of(spec: dict[str, Any]) -> str:
    return compute_revision(EmbeddingServiceSpec.model_validate(spec))


class ModelChanges(RuleBasedStateMachine):
    """Whatever happens, each write leaves a cluster of which the invariants hold."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = SteppedCluster(hub_spec(A, replicas=1, rollout={}))
        self.replaced: dict[str, tuple[int, str]] = {}
        """When another model took the name from each revision that served, and the vector space of the revision."""

    @initialize()
    def start(self) -> None:
        """The first model serves, and has passed the self-check."""
        self._finish()
        self.cluster.proved.add(name_space(A))

    # -- what may happen

    @rule(repo=REPOS)
    def ask_for_a_model(self, repo: str) -> None:
        self._edit(model=hub_spec(repo)["model"])

    @rule(hold=st.booleans(), keep=st.sampled_from(["0s", "1h", "24h"]))
    def change_the_rollout(self, hold: bool, keep: str) -> None:
        self._edit(rollout={"hold": hold, "keepPrevious": keep})

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self._edit(suspend=suspend)

    @rule(replicas=st.integers(0, 3))
    def scale(self, replicas: int) -> None:
        self._edit(replicas=replicas)

    @rule(memory=st.sampled_from(["1Gi", "2Gi"]))
    def change_the_memory(self, memory: str) -> None:
        self._edit(resources={"limits": {"memory": memory}})

    @rule(repos=st.frozensets(REPOS, max_size=2))
    def break_repositories(self, repos: frozenset[str]) -> None:
        self.cluster.broken = repos

    @rule(repos=st.frozensets(st.sampled_from([B, C]), max_size=1))
    def make_models_unsound(self, repos: frozenset[str]) -> None:
        self.cluster.unsound = repos

    @rule(seconds=st.sampled_from([60, 3601, 24 * 3600]))
    def let_time_pass(self, seconds: int) -> None:
        self.cluster.now += seconds

    @rule()
    def lose_the_status(self) -> None:
        self.cluster.lose_status()

    @rule()
    def move_pods(self) -> None:
        self.cluster.settle()

    @rule()
    def restart_the_operator(self) -> None:
        self.cluster.restart_operator()

    @rule(image=st.sampled_from(["runtime:1", "runtime:2"]))
    def upgrade_the_operator(self, image: str) -> None:
        self.cluster.upgrade_operator(image)

    @rule(rolling=st.integers(0, 6), failed=st.integers(0, 1))
    def upgrade_other_services(self, rolling: int, failed: int) -> None:
        self.cluster.upgrade = UpgradeProgress(rolling, failed)

    @rule(writes=st.integers(0, 12))
    def die_in_a_pass(self, writes: int) -> None:
        self._pass(writes)

    @rule()
    def run_a_pass(self) -> None:
        self._pass(None)

    @rule()
    def run_to_the_end(self) -> None:
        self._finish()
        self._check_followed()

    # -- what holds after each of these

    @invariant()
    def no_answer_is_of_a_space_that_was_not_proved(self) -> None:
        answered = self.cluster.list_spaces(self.cluster.serving_revision)
        assert answered <= self.cluster.proved | {name_space(A)}

    @invariant()
    def a_service_of_which_no_pod_serves_is_not_ready(self) -> None:
        plan, observed = self.cluster.plan()
        serving = observed.find_deployment(observed.serving_revision or "")
        (ready,) = [
            condition for condition in build_status(plan, observed).conditions if condition.type == "Ready"
        ]
        is_stopped = self.cluster.spec.get("suspend") or self.cluster.spec["replicas"] == 0
        if ready.status == "True" and not is_stopped:
            assert serving is not None, ready.message
            assert serving.available, ready.message

    @invariant()
    def what_is_kept_is_there_for_its_time(self) -> None:
        cluster = self.cluster
        keep = parse_duration(cluster.spec["rollout"].get("keepPrevious", "24h"))
        for revision, (since, space) in list(self.replaced.items()):
            if cluster.find_deployment(revision) is not None:
                continue
            is_over = since + keep <= cluster.now
            is_served = space == cluster.find_space(cluster.serving_revision)
            assert is_over or is_served, f"{revision} went before its time"
            del self.replaced[revision]

    # -- steps

    def _edit(self, **fields: Any) -> None:
        self.cluster.apply({**self.cluster.spec, **fields})

    def _pass(self, writes: int | None) -> bool:
        """Run a pass; note which revision lost the name, and that the name loses no ready pods in it."""
        cluster = self.cluster
        old = cluster.serving_revision
        before = cluster.list_spaces(old)
        waiting = self._find_template_that_waits()
        is_busy = cluster.run_pass(writes)
        new = cluster.serving_revision
        if waiting is not None and new == old:
            assert cluster.find_template(old) == waiting, "its pods were replaced without a slot"
        if before:
            assert cluster.list_spaces(new), "the name has lost its ready pods"
        if new != old and new is not None:
            self.replaced.pop(new, None)
            (space,) = before or {""}
            if old is not None and space:
                # Of two revisions that make the same vectors, the later one is enough for a way back.
                other_replaced = {
                    name: time_and_space
                    for name, time_and_space in self.replaced.items()
                    if time_and_space[1] != space
                }
                self.replaced = {**other_replaced, old: (cluster.now, space)}
        return is_busy

    def _find_template_that_waits(self) -> str | None:
        """The template of what serves, where the user asks for nothing that it has not and it has no upgrade slot."""
        cluster = self.cluster
        deployment = cluster.find_deployment(cluster.serving_revision or "")
        if deployment is None or not cluster.list_spaces(cluster.serving_revision):
            return None
        annotations = deployment["metadata"]["annotations"]
        is_followed = annotations.get(GENERATION) == str(cluster.generation)
        has_slot = bool(annotations.get(UPGRADE))
        is_free = not cluster.upgrade.failed and cluster.upgrade.rolling < SETTINGS.max_concurrent_upgrades
        if has_slot or is_free or not is_followed or not deployment["status"]["readyReplicas"]:
            return None
        return cluster.find_template(cluster.serving_revision)

    def _finish(self) -> None:
        for _ in range(MAX_PASSES):
            self.cluster.settle()
            if not self._pass(None):
                return
        raise AssertionError(f"no end after {MAX_PASSES} passes")

    def _check_followed(self) -> None:
        """Check that what serves has the number of pods and the memory of the manifest, unless they came with another
        model.
        """
        cluster = self.cluster
        deployment = cluster.find_deployment(cluster.serving_revision or "")
        if deployment is None:
            return  # broken, and it made room
        spec = cluster.spec
        is_stopped = spec.get("suspend") or spec["replicas"] == 0
        followed = json.loads(deployment["metadata"]["annotations"].get("embedserve.dev/followed") or "{}")
        if cluster.serving_revision == revision_of(spec):
            assert not followed, "what was followed before is forgotten"
        if spec.get("suspend"):
            assert deployment["spec"]["replicas"] == 0
        elif not followed:
            assert deployment["spec"]["replicas"] == spec["replicas"]
        else:
            assert followed["revision"] == revision_of(spec)
            assert followed["settings"].get("replicas") == spec["replicas"]
            assert followed["settings"].get("resources") == spec.get("resources")
        self._check_retained(revision_of(spec))
        desired = name_space(spec["model"]["source"]["huggingFace"]["repo"])
        if not is_stopped and desired in cluster.list_spaces(revision_of(spec)) and desired in cluster.proved:
            assert cluster.list_spaces(cluster.serving_revision) or spec["rollout"].get("hold"), (
                "nobody answers although a proved model is ready"
            )

    def _check_retained(self, desired: str) -> None:
        """Check that what is kept for a way back has followed the manifest too."""
        cluster = self.cluster
        for received in cluster.list_kind("Deployment"):
            if received["metadata"]["labels"][REVISION_LABEL] not in (cluster.serving_revision, desired):
                followed = json.loads(received["metadata"]["annotations"]["embedserve.dev/followed"])
                assert followed["revision"] == desired
                assert followed["settings"].get("resources") == cluster.spec.get("resources")
                if cluster.spec.get("suspend"):
                    assert received["spec"]["replicas"] == 0


@pytest.mark.thorough
def test_model_changes_keep_their_promises_whatever_happens() -> None:
    run_state_machine_as_test(
        ModelChanges,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            derandomize=EXAMPLES == 40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
