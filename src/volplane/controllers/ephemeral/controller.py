"""Makes the claims of pods' ephemeral volumes, and makes them again while their pod lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.errors import AlreadyExists, APIError
from volplane.controllers.ephemeral.plan import Make, Refuse, plan
from volplane.loops.controller import Controller, Refused
from volplane.rules.pods import claim_keys


class EphemeralVolumes(Controller[str]):
    name = "ephemeral-volume-controller"
    component = "ephemeral_volume"
    workers = 5

    def setup(self) -> None:
        self.pods = self.watch(Pod, _new_with_ephemeral)
        self.claims = self.watch(PersistentVolumeClaim, self._pods_of_lost)
        self.users = self.pods.index("claims", claim_keys)

    def _pods_of_lost(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        if new is None and old is not None:
            yield from (pod.key for pod in self.users[old.key])

    async def reconcile(self, key: str) -> None:
        pod = self.pods.at(key)
        if pod is None:
            return
        for step in plan(pod, self.claims.names(pod.namespace)):
            match step:
                case Make(volume, claim):
                    await self._make(pod, volume, claim)
                case Refuse(volume, why):
                    self._say(pod, f"ephemeral volume {volume}: {why}")
                    raise Refused(f"ephemeral volume {volume}: {why}")
                case _:
                    assert_never(step)

    async def _make(self, pod: Pod, volume: str, claim: PersistentVolumeClaim) -> None:
        try:
            await self.client.create(claim)
        except AlreadyExists:
            raise  # the cache is behind: whose it is, the next look tells
        except APIError as error:
            self._say(pod, f"ephemeral volume {volume}: create PVC {claim.name}: {error}")
            raise

    def _say(self, pod: Pod, message: str) -> None:
        self.events.event(pod, "Warning", "FailedBinding", message)


def _new_with_ephemeral(old: Pod | None, new: Pod | None) -> Iterable[str]:
    """What a pod's volumes are never changes, so a pod is looked at once."""
    if old is None and new is not None and any(v.ephemeral is not None for v in new.spec.volumes):
        yield new.key
