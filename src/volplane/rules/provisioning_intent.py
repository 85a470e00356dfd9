"""A provisioner's intent on a claim: a finalizer, and an annotation with the request of its CreateVolume.

A volume may exist without an object until the PersistentVolume that the request names is stored. From then on
the intent is not needed, and any writer of the claim may remove it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from volplane.api.core import PersistentVolumeClaim
from volplane.api.finalizers import PROVISIONING_INTENT_FINALIZER


class _Intent(Struct, frozen=True):
    """What concerns others of the request."""

    name: str = ""  # of the PersistentVolume


def has_intent(claim: PersistentVolumeClaim) -> bool:
    metadata = claim.metadata
    return (
        PROVISIONING_INTENT_FINALIZER in metadata.finalizers
        or PROVISIONING_INTENT_FINALIZER in metadata.annotations
    )


def is_fulfilled_by(claim: PersistentVolumeClaim, volume: str) -> bool:
    """Whether the claim has an intent, and this volume, which is stored, is the one that it is about."""
    request = claim.metadata.annotations.get(PROVISIONING_INTENT_FINALIZER)
    if request is None:
        return False
    try:
        return msgspec.json.decode(request, type=_Intent).name == volume
    except msgspec.MsgspecError:
        return False  # edited by hand: its provisioner decides


def removal_patch(claim: PersistentVolumeClaim) -> dict[str, Any]:
    """Metadata of a merge patch that removes the intent. It replaces the finalizers, so it needs the
    claim's resourceVersion as a precondition.
    """
    kept = [name for name in claim.metadata.finalizers if name != PROVISIONING_INTENT_FINALIZER]
    return {"finalizers": kept or None, "annotations": {PROVISIONING_INTENT_FINALIZER: None}}
