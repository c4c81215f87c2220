"""Holds the operator's loop that registers the adapter with the API server, or withdraws it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from embedserve_operator.adapter.certificates import find_valid_certificates
from embedserve_operator.adapter.registration import (
    API_SERVICE,
    Decision,
    Registration,
    RegistrationMemory,
    RegistrationState,
    Withdrawal,
    decide_registration,
    find_providers,
    is_ours,
    join_bundle,
)
from embedserve_operator.clock import Clock
from embedserve_operator.errors import ApiError, ConflictError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.cluster import APIService
from embedserve_operator.kube.views.objects import ConfigMap, Object
from embedserve_operator.kube.views.workloads import Deployment
from embedserve_operator.settings import RegistrationSettings

log = logging.getLogger(__name__)


class Registrar:
    """Keeps the adapter registered as long as it works.

    `on_providers` is told at each look who else serves versions of the API.
    """

    def __init__(
        self,
        kube: KubeClient,
        settings: RegistrationSettings,
        clock: Clock,
        *,
        on_providers: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._on_providers = on_providers
        self._memory = RegistrationMemory()
        self._logged_reason = ""

    async def run(self, on_wait: Callable[[], None]) -> None:
        """Look again and again, forever."""
        while True:
            try:
                await self.run_once()
            except ApiError as error:
                log.warning("the metrics API could not be looked after: %s", error)
            on_wait()
            await asyncio.sleep(self._settings.interval)

    async def run_once(self) -> Decision:
        """Look once and act on it; return what was decided. Raises ApiError."""
        state = await self._observe()
        self._on_providers(state.foreign)
        decision, self._memory = decide_registration(
            state, self._memory, self._settings, self._clock.monotonic()
        )
        self._log_decision(decision)
        if isinstance(decision, Registration):
            try:
                await self._kube.apply(decision.manifest, force=False)
            except ConflictError as error:
                log.warning("the metrics API is not registered, somebody else writes it: %s", error)
        elif isinstance(decision, Withdrawal) and state.registered is not None:
            await self._kube.delete("", ChildRef("APIService", API_SERVICE), state.registered.metadata.uid)
        return decision

    async def _observe(self) -> RegistrationState:
        adapter = self._settings.adapter
        api_services = [
            APIService.parse(received) for received in await self._kube.list_labelled("APIService", "")
        ]
        registered = [
            api_service
            for api_service in api_services
            if api_service.metadata.name == API_SERVICE and is_ours(api_service, adapter)
        ]
        deployment = await self._kube.get(adapter.namespace, ChildRef("Deployment", adapter.name))
        certificates = await self._kube.get(adapter.namespace, ChildRef("ConfigMap", adapter.name))
        owner = await self._kube.get("", ChildRef("ClusterRole", adapter.name))
        published = ConfigMap.parse(certificates).data.values()
        return RegistrationState(
            is_ready=Deployment.parse(deployment).status.ready_replicas > 0,
            bundle=join_bundle(find_valid_certificates(published, self._clock.now())),
            owner_uid=Object.parse(owner).metadata.uid,
            registered=registered[0] if registered else None,
            foreign=find_providers(api_services, adapter),
        )

    def _log_decision(self, decision: Decision) -> None:
        """Log a decision once: the same decision again is not news."""
        if decision.reason and decision.reason != self._logged_reason:
            log.info("the metrics API: %s: %s", decision.verb, decision.reason)
        self._logged_reason = decision.reason
