"""projected: several sources in one directory, such as a service account token with its CA.

A token is renewed after 80 % of its lifetime, or after a day. If the API server has no token subresource, the
pod starts without the token, and a log line says so.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from volplane.api.authentication import BoundObjectReference, TokenRequest, TokenRequestSpec
from volplane.api.core import (
    ConfigMap,
    PersistentVolume,
    Pod,
    Secret,
    ServiceAccount,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from volplane.api.errors import MethodNotAllowed, NotFound
from volplane.base import clock
from volplane.client.client import Client
from volplane.volumes.api_volume import DEFAULT_MODE, ApiVolumePlugin
from volplane.volumes.atomic_writer import VolumeFile
from volplane.volumes.base import NodeContext, PodVolumeSpec, ReferencedObject, VolumeOperationError
from volplane.volumes.configmap import config_files
from volplane.volumes.downward import downward_files
from volplane.volumes.secret import secret_files

log = logging.getLogger(__name__)

DEFAULT_TOKEN_LIFETIME = 3600


class ServiceAccountToken(NamedTuple):
    text: str
    expires: str
    renew_at: float  # on the loop's clock


class ServiceAccountTokens:
    """Service account tokens bound to pods, each kept until it must be renewed."""

    def __init__(self, client: Client, max_age: float) -> None:
        self._client, self._max_age = client, max_age
        self._held: dict[tuple[str, str, int], ServiceAccountToken] = {}  # pod, audience, lifetime

    async def get(self, pod: Pod, audience: str, lifetime: int) -> ServiceAccountToken:
        key = (pod.uid, audience, lifetime)
        held = self._held.get(key)
        if held is None or clock.now() >= held.renew_at:
            held = self._held[key] = await self._request(pod, audience, lifetime)
        return held

    async def _request(self, pod: Pod, audience: str, lifetime: int) -> ServiceAccountToken:
        request = TokenRequest(
            spec=TokenRequestSpec(
                audiences=(audience,) if audience else (),
                expiration_seconds=lifetime,
                bound_object_ref=BoundObjectReference("Pod", "v1", pod.name, pod.uid),
            )
        )
        made = await self._client.create(
            request,
            namespace=pod.namespace,
            name=pod.spec.service_account_name or "default",
            subresource="token",
            of=ServiceAccount,
        )
        expires = made.status.expiration_timestamp
        return ServiceAccountToken(made.status.token, expires, self._renewal(expires))

    def _renewal(self, expires: str) -> float:
        left = (clock.parse(expires) - clock.wall()).total_seconds() if expires else DEFAULT_TOKEN_LIFETIME
        age = min(left * 0.8, self._max_age)
        # Jitter: all pods of a node would renew their tokens at the same moment otherwise.
        return clock.now() + age - random.uniform(0, min(10.0, age / 10))

    def forget(self, pod: str) -> None:
        for key in [k for k in self._held if k[0] == pod]:
            del self._held[key]


class ProjectedPlugin(ApiVolumePlugin):
    name = "kubernetes.io/projected"

    def __init__(self, context: NodeContext, tokens: ServiceAccountTokens | None = None) -> None:
        super().__init__(context)
        self.tokens = tokens or ServiceAccountTokens(context.client, context.token_max_age)

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.projected is not None

    def requires_remount(self, spec: PodVolumeSpec) -> bool:
        return True

    def forget_pod(self, pod: str) -> None:
        self.tokens.forget(pod)

    def referenced_objects(self, spec: PodVolumeSpec) -> Iterable[ReferencedObject]:
        assert spec.source.projected is not None
        for source in spec.source.projected.sources:
            if source.config_map is not None:
                yield ConfigMap, spec.pod.namespace, source.config_map.name
            if source.secret is not None:
                yield Secret, spec.pod.namespace, source.secret.name

    async def files(self, spec: PodVolumeSpec) -> Mapping[str, VolumeFile]:
        projected = spec.source.projected
        assert projected is not None
        files: dict[str, VolumeFile] = {}
        problems: list[str] = []
        for source in projected.sources:
            try:
                files |= await self._source(spec, source, projected.default_mode)
            except (NotFound, VolumeOperationError) as error:
                problems.append(str(error))
        if problems:
            raise VolumeOperationError(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
        return files

    async def _source(
        self, spec: PodVolumeSpec, source: VolumeProjection, mode: int | None
    ) -> dict[str, VolumeFile]:
        client, namespace = self.context.client, spec.pod.namespace
        if (config := source.config_map) is not None:
            return await config_files(client, namespace, config.name, config.items, mode, config.optional)
        if (secret := source.secret) is not None:
            return await secret_files(client, namespace, secret.name, secret.items, mode, secret.optional)
        if (downward := source.downward_api) is not None:
            return downward_files(spec.pod, downward.items, mode, self.context.allocatable())
        if (token := source.service_account_token) is not None:
            return await self._token(spec, token, mode)
        if (bundle := source.cluster_trust_bundle) is not None and bundle.optional:
            return {bundle.path: VolumeFile(b"", self._private_mode(spec, mode), _common_user(spec.pod))}
        name = "clusterTrustBundle" if source.cluster_trust_bundle is not None else "podCertificate"
        raise VolumeOperationError(
            f'source {name} of projected volume "{spec.source.name}" is not supported: this cluster has no '
            f"{'ClusterTrustBundles' if name == 'clusterTrustBundle' else 'PodCertificateRequests'}"
        )

    async def _token(
        self, spec: PodVolumeSpec, source: ServiceAccountTokenProjection, mode: int | None
    ) -> dict[str, VolumeFile]:
        try:
            token = await self.tokens.get(
                spec.pod, source.audience, source.expiration_seconds or DEFAULT_TOKEN_LIFETIME
            )
        except (NotFound, MethodNotAllowed) as error:
            log.warning("no service account token for pod %s: %s", spec.pod.key, error)
            return {}
        private = self._private_mode(spec, mode)
        return {source.path: VolumeFile(token.text.encode(), private, _common_user(spec.pod))}

    def _private_mode(self, spec: PodVolumeSpec, mode: int | None) -> int:
        """Readable by the pod's user alone if it is known, else the mode of the manifest."""
        if _common_user(spec.pod) is not None or spec.fs_group is not None:
            return 0o600
        return DEFAULT_MODE if mode is None else mode


def _common_user(pod: Pod) -> int | None:
    """The user of all containers, if the pod names exactly one."""
    context = pod.spec.security_context
    fallback = context.run_as_user if context else None
    users = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        own = container.security_context.run_as_user if container.security_context else None
        users.add(fallback if own is None else own)
    return users.pop() if len(users) == 1 else None
