"""Creates the claims of pods' ephemeral volumes, and creates them again while their pod exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from msgspec import Struct

from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.errors import AlreadyExists, APIError
from volplane.controllers.ephemeral.plan import CreateEphemeralClaim, ReportClaimConflict, Step, plan
from volplane.loops.controller import Controller, RetryableError
from volplane.rules.pods import claim_keys


class EphemeralView(Struct, frozen=True):
    pod: Pod
    claims: Mapping[str, PersistentVolumeClaim]  # of its namespace, by name


class EphemeralVolumes(Controller[str, EphemeralView, Step]):
    name = "ephemeral-volume-controller"
    component = "ephemeral_volume"
    workers = 5

    def setup(self) -> None:
        self.pods = self.watch(Pod, keys_of_pod)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.users = self.pods.index("claims", claim_keys)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        if new is None and old is not None:
            yield from (pod.key for pod in self.users[old.key])

    def view(self, key: str) -> EphemeralView | None:
        pod = self.pods.at(key)
        return EphemeralView(pod, self.claims.names(pod.namespace)) if pod is not None else None

    def plan(self, view: EphemeralView) -> Iterator[Step]:
        return plan(view.pod, view.claims)

    async def act(self, key: str, view: EphemeralView, step: Step) -> None:
        match step:
            case CreateEphemeralClaim(volume, claim):
                await self._create(view.pod, volume, claim)
            case ReportClaimConflict(volume, why):
                self._report(view.pod, f"ephemeral volume {volume}: {why}")
                raise RetryableError(f"ephemeral volume {volume}: {why}")
            case _:
                assert_never(step)

    async def _create(self, pod: Pod, volume: str, claim: PersistentVolumeClaim) -> None:
        try:
            await self.client.create(claim)
        except AlreadyExists:
            raise  # the cache is behind: the next plan checks the owner
        except APIError as error:
            self._report(pod, f"ephemeral volume {volume}: create PVC {claim.name}: {error}")
            raise

    def _report(self, pod: Pod, message: str) -> None:
        self.events.event(pod, "Warning", "FailedBinding", message)


def keys_of_pod(old: Pod | None, new: Pod | None) -> Iterable[str]:
    """The volumes of a pod never change, so a pod is planned once."""
    if old is None and new is not None and any(v.ephemeral is not None for v in new.spec.volumes):
        yield new.key
