"""The operator's loop that registers the adapter, and withdraws it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from embedserve_operator.adapter.identity import valid_certificates
from embedserve_operator.adapter.registration import (
    API_SERVICE,
    Decision,
    Memory,
    Register,
    Situation,
    Withdraw,
    bundle_of,
    decide,
    is_ours,
    providers,
)
from embedserve_operator.errors import ApiError, ConflictError
from embedserve_operator.kube import Kube
from embedserve_operator.settings import RegistrationSettings
from embedserve_operator.wire import dig, number, text
from embedserve_operator.world import ChildRef

log = logging.getLogger(__name__)


class Registrar:
    """Looks, decides, acts."""

    def __init__(
        self,
        kube: Kube,
        settings: RegistrationSettings,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        on_providers: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`on_providers` is told at each look who else has versions of the API."""
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._now = now
        self._on_providers = on_providers
        self._memory = Memory()
        self._said = ""

    async def run(self, on_turn: Callable[[], None]) -> None:
        """Look again and again, for ever."""
        while True:
            try:
                await self.once()
            except ApiError as error:
                log.warning("the metrics API could not be looked after: %s", error)
            on_turn()
            await asyncio.sleep(self._settings.interval)

    async def once(self) -> Decision:
        """One look, and what follows from it. Raises ApiError."""
        seen = await self._look()
        self._on_providers(seen.foreign)
        decision, self._memory = decide(seen, self._memory, self._settings, self._clock())
        self._say(decision)
        if isinstance(decision, Register):
            try:
                await self._kube.apply(decision.manifest, force=False)
            except ConflictError as error:
                log.warning("the metrics API is not registered, somebody else writes it: %s", error)
        elif isinstance(decision, Withdraw) and seen.registered is not None:
            uid = text(seen.registered, "metadata", "uid")
            await self._kube.delete("", ChildRef("APIService", API_SERVICE), uid)
        return decision

    async def _look(self) -> Situation:
        place = self._settings.place
        registered = await self._kube.list_labelled("APIService", "")
        ours = [
            found
            for found in registered
            if text(found, "metadata", "name") == API_SERVICE and is_ours(found, place)
        ]
        deployment = await self._kube.get(place.namespace, ChildRef("Deployment", place.name))
        certificates = await self._kube.get(place.namespace, ChildRef("ConfigMap", place.name))
        owner = await self._kube.get("", ChildRef("ClusterRole", place.name))
        texts = [one for one in (dig(certificates, "data") or {}).values() if isinstance(one, str)]
        return Situation(
            ready=number(deployment, "status", "readyReplicas") > 0,
            bundle=bundle_of(valid_certificates(texts, self._now())),
            owner_uid=text(owner, "metadata", "uid"),
            registered=ours[0] if ours else None,
            foreign=providers(registered, place),
        )

    def _say(self, decision: Decision) -> None:
        """Once for each change: the same again is no news."""
        if decision.words and decision.words != self._said:
            log.info("the metrics API: %s: %s", type(decision).__name__.lower(), decision.words)
        self._said = decision.words
