"""Which labels a node may set on itself: descriptive ones, but none that could attract workloads."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.labels import (
    ARCH_LABEL,
    BETA_ARCH_LABEL,
    BETA_INSTANCE_TYPE_LABEL,
    BETA_OS_LABEL,
    BETA_REGION_LABEL,
    BETA_ZONE_LABEL,
    HOSTNAME_LABEL,
    INSTANCE_TYPE_LABEL,
    OS_LABEL,
    REGION_LABEL,
    ZONE_LABEL,
)

_KUBELET = frozenset({
    HOSTNAME_LABEL, OS_LABEL, ARCH_LABEL, ZONE_LABEL,
    REGION_LABEL, BETA_ZONE_LABEL,
    BETA_REGION_LABEL, INSTANCE_TYPE_LABEL,
    BETA_INSTANCE_TYPE_LABEL, BETA_OS_LABEL, BETA_ARCH_LABEL,
})  # fmt: skip
_KUBELET_SPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
_RESERVED = ("kubernetes.io", "k8s.io")
_RESTRICTED = ("node-restriction.kubernetes.io",)


def forbidden_labels(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the changed labels that a node may not change."""
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return sorted(key for key in changed if not _may_set(key))


def _may_set(key: str) -> bool:
    space, slash, _ = key.partition("/")
    if not slash:
        return True
    if _under(space, _RESTRICTED):
        return False
    return not _under(space, _RESERVED) or key in _KUBELET or _under(space, _KUBELET_SPACES)


def _under(space: str, tops: tuple[str, ...]) -> bool:
    return any(space == top or space.endswith(f".{top}") for top in tops)
