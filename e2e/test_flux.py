"""What Flux says of a commit: it waits until exactly that is served, and fails when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.conftest import MakeService
from e2e.git import GitOps, by_flux
from e2e.services import hub_spec

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("flux_controllers")]


def test_a_commit_is_reconciled_when_it_is_served_and_fails_when_it_is_stalled(
    service: MakeService, tmp_path: Path
) -> None:
    gitops = GitOps.init(service("watched"), tmp_path)
    with by_flux(gitops.service.kubectl, tmp_path) as kustomization:
        gitops.commit(hub_spec(), "Serve MiniLM")
        kustomization.wait_condition("True", "ReconciliationSucceeded")
        assert gitops.service.embed("served")
        gitops.commit(hub_spec("acme/missing"), "A bad idea")
        failed = kustomization.wait_condition("False", "HealthCheckFailed")
        assert "watched" in str(failed["status"]["conditions"])
        gitops.revert()
        kustomization.wait_condition("True", "ReconciliationSucceeded")
        gitops.service.wait_serving()
