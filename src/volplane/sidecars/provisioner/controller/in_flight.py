"""CreateVolume calls of this process whose outcome is unknown.

They are found by the claim's uid and by its key: a call may be in flight for a deleted claim, and a new claim
of that name looks for it.
"""

from __future__ import annotations

from msgspec import Struct

from volplane.api.core import PersistentVolumeClaim
from volplane.sidecars.provisioner.provision_request import ProvisionRequest


class InFlightCall(Struct, frozen=True):
    claim: PersistentVolumeClaim
    request: ProvisionRequest


class InFlightCalls:
    def __init__(self) -> None:
        self._open: dict[str, InFlightCall] = {}  # by uid
        self._by_key: dict[str, dict[str, InFlightCall]] = {}  # by key, then uid

    def __contains__(self, uid: str) -> bool:
        return uid in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def get(self, uid: str) -> InFlightCall | None:
        return self._open.get(uid)

    def list_by_key(self, key: str) -> list[InFlightCall]:
        return list(self._by_key.get(key, {}).values())

    def begin(self, claim: PersistentVolumeClaim, provision_request: ProvisionRequest) -> None:
        attempt = self._open[claim.uid] = InFlightCall(claim, provision_request)
        self._by_key.setdefault(claim.key, {})[claim.uid] = attempt

    def end(self, uid: str) -> None:
        attempt = self._open.pop(uid, None)
        if attempt is None:
            return
        alike = self._by_key[attempt.claim.key]
        del alike[uid]
        if not alike:
            del self._by_key[attempt.claim.key]
