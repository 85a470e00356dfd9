"""The CSI sidecars of a driver: whether the one that has to act is running, and where its log is.

Only Leases and pods are read, which every deployment of a CSI driver has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from msgspec import Struct

from volplane.api.coordination import Lease
from volplane.api.core import Pod
from volplane.api.names import sanitize_driver
from volplane.explain.cluster_state import ClusterState, format_duration, parse_time

# Names of their Leases, those of older versions included.
LEASES = {
    "csi-provisioner": ("{}",),
    "csi-attacher": ("external-attacher-leader-{}",),
    "csi-resizer": ("external-resizer-{}",),
    "csi-snapshotter": ("external-snapshotter-leader-{}",),
}
MAX_MISSED = 2  # lease durations without a renewal before the holder counts as down


class SidecarStatus(Struct, frozen=True):
    facts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


async def find_sidecar(state: ClusterState, name: str, driver: str) -> SidecarStatus:
    """`name` is that of its container: csi-attacher."""
    lease = await _find_lease(state, name, driver)
    pods = await _pods(state, name, lease)
    logs = tuple(_logs(pod, name) for pod in pods[:2])
    if lease is not None:
        down = _describe_lost_leader(state, lease)
        start = f"no {name} is running for {driver}: start its controller in namespace {lease.namespace}"
        fact = down or f"leader is {lease.spec.holder_identity}"
        return SidecarStatus((f"{name}: {fact}",), (start,) if down else logs)
    if pods:
        return SidecarStatus((), logs)
    missing = f"no {name} found: neither its Lease nor a pod with a container of that name exists"
    return SidecarStatus((missing,), (f"deploy {driver} with its {name}, or check why it is not running",))


async def find_leaders(state: ClusterState, driver: str) -> Mapping[str, str]:
    """For each sidecar of the driver that has a Lease: why it has no leader; "" if it has one."""
    leases = {name: await _find_lease(state, name, driver) for name in LEASES}
    return {name: _describe_lost_leader(state, lease) for name, lease in leases.items() if lease is not None}


async def _find_lease(state: ClusterState, name: str, driver: str) -> Lease | None:
    leases = await state.cache(Lease)
    names = {pattern.format(text) for pattern in LEASES[name] for text in (driver, sanitize_driver(driver))}
    found = [lease for each in sorted(names) for lease in leases.list_by_name(each)]
    return max(found, key=lambda lease: lease.spec.renew_time or "", default=None)


def _describe_lost_leader(state: ClusterState, lease: Lease) -> str:
    """Why there is no leader; "" if there is one."""
    holder, renewed = lease.spec.holder_identity or "", parse_time(lease.spec.renew_time)
    if not holder:
        return f"its Lease {lease.key} has no holder"
    if renewed is None:
        return ""
    silent = state.now - renewed
    if silent <= timedelta(seconds=MAX_MISSED * (lease.spec.lease_duration_seconds or 15)):
        return ""
    return f"{holder} holds its Lease {lease.key}, last renewed {format_duration(silent)} ago: it is down"


async def _pods(state: ClusterState, name: str, lease: Lease | None) -> Sequence[Pod]:
    """The leader's pod if the Lease names it, else all pods with such a container."""
    pods = await state.cache(Pod)
    candidates = pods.namespace(lease.namespace) if lease is not None else pods.all()
    fitting = [pod for pod in candidates if any(c.name == name for c in pod.spec.containers)]
    leading = [pod for pod in fitting if lease is not None and pod.name == lease.spec.holder_identity]
    return leading or sorted(fitting, key=lambda pod: pod.name)


def _logs(pod: Pod, container: str) -> str:
    return f"kubectl logs -n {pod.namespace} {pod.name} -c {container} --tail=50"
