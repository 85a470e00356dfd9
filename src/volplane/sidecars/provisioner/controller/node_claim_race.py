"""Selects the node of a claim with immediate binding, with --node-deployment.

Each provisioner waits for a random time, which doubles after each failure; the first one with capacity writes
its node to the claim. The write requires the version of the claim that was read, so only one can succeed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import PersistentVolumeClaim
from volplane.api.errors import Conflict
from volplane.api.storage import StorageClass
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.csi import convert, v1
from volplane.csi.outcome import CallError
from volplane.loops.controller import RetryableError
from volplane.rules import sizes, topology
from volplane.sidecars.base import DriverClient
from volplane.sidecars.provisioner.settings import ProvisionerOptions


class NodeClaimRace:
    def __init__(
        self,
        client: Client,
        driver: DriverClient,
        settings: ProvisionerOptions,
        node: str,
        segments: Mapping[str, str],
    ) -> None:
        self.client, self.driver, self.settings = client, driver, settings
        self.node, self.segments = node, segments
        self._due: dict[str, float] = {}  # claim's uid → when we may try
        self._tries: dict[str, int] = {}

    def seconds_left(self, claim: PersistentVolumeClaim) -> float:
        """Seconds until we may try; the first call starts the wait."""
        due = self._due.get(claim.uid)
        if due is None:
            due = self._due[claim.uid] = clock.now() + self._pause(claim)
        return due - clock.now()

    def _pause(self, claim: PersistentVolumeClaim) -> float:
        base, longest = self.settings.node_deployment_base_delay, self.settings.node_deployment_max_delay
        pause = Backoff(base, longest).delay(self._tries.get(claim.uid, 0) + 1)
        return float(min(pause * random.uniform(0.5, 1.5), longest))

    def forget(self, uid: str) -> None:
        self._due.pop(uid, None)
        self._tries.pop(uid, None)

    async def try_claim(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> bool:
        """Whether the claim has our node now; if not, a longer wait begins."""
        self._due.pop(claim.uid, None)
        self._tries[claim.uid] = self._tries.get(claim.uid, 0) + 1
        if not topology.allows_node(storage_class.allowed_topologies, self.segments):
            return False
        if not await self._has_capacity(claim, storage_class):
            return False
        try:
            written = await self.client.patch(
                PersistentVolumeClaim,
                claim.name,
                claim.namespace,
                merge={"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: self.node}}},
                uid=claim.uid,
                revision=claim.metadata.resource_version,
                missing_ok=True,
            )
        except Conflict:
            return False  # the claim was changed, maybe by another node
        return written is not None

    async def _has_capacity(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> bool:
        if "GET_CAPACITY" not in self.driver.controller:
            return True
        request = v1.GetCapacityRequest(parameters=dict(storage_class.parameters))
        if self.segments:
            request.accessible_topology.CopyFrom(convert.topology(self.segments))
        try:
            reply = await self.driver.call(
                "GetCapacity", request, timeout=self.settings.timeout, subject=f"pvc/{claim.key}"
            )
        except CallError as error:
            raise RetryableError(str(error)) from error
        wanted = sizes.requested_size(claim)
        largest = reply.maximum_volume_size.value
        return bool(reply.available_capacity >= wanted and (not largest or largest >= wanted))
