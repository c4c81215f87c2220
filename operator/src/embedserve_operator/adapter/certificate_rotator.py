"""Keeps the certificates of one replica of the adapter trusted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from embedserve_operator.adapter.certificates import (
    ServingCertificate,
    build_server_context,
    create_serving_certificate,
    find_valid_certificates,
    load_certificate,
    select_freshest,
)
from embedserve_operator.adapter.registration import API_SERVICE, is_ours, read_bundle
from embedserve_operator.adapter.server import FrontProxyAuthenticator, TlsListener
from embedserve_operator.adapter.trust import (
    AUTHENTICATION,
    build_published_certificates,
    choose_rotation_step,
    is_trusted,
    read_request_header_config,
)
from embedserve_operator.errors import ApiError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.cluster import APIService
from embedserve_operator.kube.views.objects import ConfigMap
from embedserve_operator.settings import AdapterSettings

log = logging.getLogger(__name__)


class CertificateRotator:
    """Keeps this replica trusted: it rotates the serving certificate, and follows the API server's own."""

    def __init__(
        self,
        settings: AdapterSettings,
        kube: KubeClient,
        authenticator: FrontProxyAuthenticator,
        listener: TlsListener,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._authenticator = authenticator
        self._listener = listener
        self._now = now
        self._current = self._create_certificate()
        self._next: ServingCertificate | None = None
        self.ready = False
        """Whether requests may be sent here."""

    async def reconcile(self) -> None:
        """Read the API server's configuration and the trusted certificates, publish this replica's own, and switch to a
        new one once it is trusted. Raises ApiError."""
        await self._read_request_header_config()
        await self._publish()
        trusted = await self._read_trusted()
        step = choose_rotation_step(
            due=self._now() >= self._current.renew_at,
            waiting=self._next.certificate if self._next is not None else None,
            trusted=trusted,
        )
        if step == "issue":
            self._next = self._create_certificate()
            await self._publish()
        elif step == "switch" and self._next is not None and self._listener.context is not None:
            load_certificate(self._listener.context, self._next)
            self._current, self._next = self._next, None
            log.info("serving with a new certificate, until %s", self._current.renew_at)
            await self._publish()
        ready = self._listener.context is not None and is_trusted(
            self._current.certificate, published=True, trusted=trusted
        )
        if ready != self.ready:
            log.info(
                "ready" if ready else "not ready: the API service does not have this replica's certificate"
            )
        self.ready = ready

    async def _read_request_header_config(self) -> None:
        namespace, name = AUTHENTICATION
        config_map = await self._kube.get(namespace, ChildRef("ConfigMap", name))
        config = read_request_header_config(ConfigMap.parse(config_map))
        if config is None:
            log.warning("ConfigMap %s/%s does not say how the API server presents itself", namespace, name)
            return
        before, self._authenticator.config = self._authenticator.config, config
        if before is None or before.client_ca != config.client_ca:
            await self._listener.listen(build_server_context(self._current, config.client_ca))

    async def _publish(self) -> None:
        adapter = self._settings.adapter
        ref = ChildRef("ConfigMap", adapter.name)
        config_map = await self._kube.get(adapter.namespace, ref)
        if config_map is None:
            raise ApiError(f"ConfigMap {adapter.namespace}/{adapter.name} does not exist; the chart makes it")
        own_certificates = [
            self._current.certificate,
            *([self._next.certificate] if self._next is not None else []),
        ]
        published = ConfigMap.parse(config_map).data
        fresh = select_freshest(published, self._now())
        data = build_published_certificates(
            published, self._settings.identity, "".join(own_certificates), fresh
        )
        if data is not None:
            # This replaces the version that was read, since another replica may be publishing at the same time.
            await self._kube.replace("ConfigMap", {**config_map, "data": data})

    async def _read_trusted(self) -> frozenset[str] | None:
        """Return the certificates that the API server accepts; None while our APIService is not registered."""
        api_service = APIService.parse(await self._kube.get("", ChildRef("APIService", API_SERVICE)))
        if not is_ours(api_service, self._settings.adapter):
            return None
        return frozenset(find_valid_certificates([read_bundle(api_service)], self._now()))

    def _create_certificate(self) -> ServingCertificate:
        life = timedelta(days=self._settings.certificate_days)
        return create_serving_certificate(self._settings.adapter.server_name, self._now(), life)
