"""What claims use of a namespace's quotas: their number and size, in total and per storage class.

A claim whose request was lowered after a failed expansion still counts with its allocated size, because the
volume may have reached that size already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.rules.binding import claim_class

STORAGE, COUNT = "requests.storage", "persistentvolumeclaims"
OBJECTS = "count/persistentvolumeclaims"
OF_CLASS = ".storageclass.storage.k8s.io/"
ATTRIBUTES = "VolumeAttributesClass"


def usage(claim: PersistentVolumeClaim) -> dict[str, int]:
    """What a claim uses, by resource name of quotas."""
    size = quantity.value(claim.spec.resources.requests.get("storage", "0"))
    aside = quantity.value(claim.status.allocated_resources.get("storage", "0"))
    held = {COUNT: 1, OBJECTS: 1, STORAGE: max(size, aside)}
    if name := claim_class(claim):
        held[f"{name}{OF_CLASS}{STORAGE}"] = max(size, aside)
        held[f"{name}{OF_CLASS}{COUNT}"] = 1
    return held


def covers(quota: ResourceQuota, claim: PersistentVolumeClaim) -> bool:
    """Whether the quota's scopes include this claim."""
    selector = quota.spec.scope_selector
    needs = selector.match_expressions if selector is not None else ()
    if any(scope != ATTRIBUTES for scope in quota.spec.scopes):
        return False
    named = _attributes(claim)
    if quota.spec.scopes and not named:
        return False
    for need in needs:
        if need.scope_name != ATTRIBUTES:
            return False
        met = {
            "In": bool(named & set(need.values)),
            "NotIn": not named & set(need.values),
            "Exists": bool(named),
            "DoesNotExist": not named,
        }
        if not met.get(need.operator, False):
            return False
    return True


def _attributes(claim: PersistentVolumeClaim) -> set[str]:
    target = claim.status.modify_volume_status
    names = (
        claim.spec.volume_attributes_class_name,
        claim.status.current_volume_attributes_class_name,
        target.target_volume_attributes_class_name if target is not None else "",
    )
    return {name for name in names if name}


def compute_used(quota: ResourceQuota, claims: Iterable[PersistentVolumeClaim]) -> dict[str, int]:
    """What the claims use of the quota's resources."""
    total = {name: 0 for name in quota.spec.hard if is_of_claims(name)}
    for claim in claims:
        if total and covers(quota, claim):
            for name, amount in usage(claim).items():
                if name in total:
                    total[name] += amount
    return total


def is_of_claims(name: str) -> bool:
    return name in (STORAGE, COUNT, OBJECTS) or OF_CLASS in name


def format_amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {
        name: quantity.from_bytes(amount) if name.endswith(STORAGE) else str(amount)
        for name, amount in amounts.items()
    }
