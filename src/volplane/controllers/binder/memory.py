"""What only the running binder knows: volumes that claims are about to take, and events it has recorded.

Several claims are planned before the first of them is written, and may choose the same volume. The claim that
is planned first is noted here, so that the others choose another volume instead of failing at the write; the
volume's resourceVersion is what decides.
"""

from __future__ import annotations

from volplane.api.annotations import BIND_COMPLETED_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.base import clock
from volplane.rules.steps import RecordEvent


class BinderMemory:
    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, int]] = {}  # volume → claim uid, revision (0: not written yet)
        self._requested: dict[str, tuple[str, float]] = {}  # uid → provisioner, when it was asked
        self._recorded: dict[str, dict[tuple[str, str], float]] = {}  # uid → (reason, message) → when

    def observe_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        claim = new or old
        if claim is not None and (new is None or BIND_COMPLETED_ANNOTATION in new.metadata.annotations):
            self._recorded.pop(claim.uid, None)
        if claim is not None and new is None:
            self._requested.pop(claim.uid, None)

    def observe_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        volume = new or old
        assert volume is not None
        taken = self._taken.get(volume.name)
        if taken is not None and (new is None or 0 < taken[1] <= volume.revision):
            del self._taken[volume.name]
        if new is None:
            self._recorded.pop(volume.uid, None)

    def note_request(self, uid: str, provisioner: str) -> None:
        """The provisioner was asked to create the volume of a claim, or to delete a volume."""
        self._requested.setdefault(uid, (provisioner, clock.now()))

    def finish_request(self, uid: str) -> tuple[str, float] | None:
        """The provisioner that was asked, and how many seconds ago."""
        provisioner, since = self._requested.pop(uid, ("", 0.0))
        return (provisioner, clock.now() - since) if provisioner else None

    def take(self, volume: PersistentVolume, claim: PersistentVolumeClaim, revision: int = 0) -> None:
        """Note that the claim takes the volume. `revision`: of the volume, once its claimRef is written."""
        self._taken[volume.name] = (claim.uid, revision)

    def give_back(self, volume: PersistentVolume) -> None:
        self._taken.pop(volume.name, None)

    def is_taken(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        """Whether another claim takes the volume."""
        taken = self._taken.get(volume.name)
        return taken is not None and taken[0] != claim.uid

    def note_event(self, uid: str, event: RecordEvent, period: float) -> bool:
        """Whether to record the event: the same one only once per period; 0: only once."""
        recorded = self._recorded.setdefault(uid, {})
        now, last = clock.now(), recorded.get((event.reason, event.message))
        if last is not None and (not period or now - last < period):
            return False
        recorded[event.reason, event.message] = now
        return True
