"""The programs beside a driver: whether the one that has to act runs, and where its log is.

Only their Leases and pods are looked at, which every deployment of a CSI driver has.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from volplane.api.coordination import Lease
from volplane.api.core import Pod
from volplane.api.names import sanitize_driver
from volplane.explain.cluster_state import ClusterState, format_duration, parse_time

# The names under which they lead, upstream's and those of older versions.
LEASES = {
    "csi-provisioner": ("{}",),
    "csi-attacher": ("external-attacher-leader-{}",),
    "csi-resizer": ("external-resizer-{}",),
    "csi-snapshotter": ("external-snapshotter-leader-{}",),
}
LATE = 2  # lease durations without a renewal: whoever held it is down


class SidecarStatus(Struct, frozen=True):
    facts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


async def find_sidecar(scene: ClusterState, name: str, driver: str) -> SidecarStatus:
    """`name` as its container is called: csi-attacher."""
    leases = await scene.cache(Lease)
    names = {pattern.format(text) for pattern in LEASES[name] for text in (driver, sanitize_driver(driver))}
    found = [lease for each in sorted(names) for lease in leases.list_by_name(each)]
    lease = max(found, key=lambda lease: lease.spec.renew_time or "", default=None)
    here = await _pods(scene, name, lease)
    logs = tuple(_logs(pod, name) for pod in here[:2])
    if lease is not None:
        down = _describe_lost_leader(scene, lease)
        start = f"nobody is {name} for {driver}: start its controller in namespace {lease.namespace}"
        told = down or f"{lease.spec.holder_identity} leads"
        return SidecarStatus((f"{name}: {told}",), (start,) if down else logs)
    if here:
        return SidecarStatus((), logs)
    known = f"no {name} is to be seen: there is neither its Lease nor a pod with a container of that name"
    return SidecarStatus((known,), (f"deploy {driver} with its {name}, or see why it does not run",))


def _describe_lost_leader(scene: ClusterState, lease: Lease) -> str:
    """Why nobody leads; "" where somebody does."""
    holder, renewed = lease.spec.holder_identity or "", parse_time(lease.spec.renew_time)
    if not holder:
        return f"nobody holds its lease {lease.key}"
    if renewed is None:
        return ""
    silent = scene.now - renewed
    if silent <= timedelta(seconds=LATE * (lease.spec.lease_duration_seconds or 15)):
        return ""
    return f"{holder} holds its lease {lease.key}, last renewed {format_duration(silent)} ago: it is down"


async def _pods(scene: ClusterState, name: str, lease: Lease | None) -> Sequence[Pod]:
    """The leader's own pod if it can be told, else those that may lead."""
    pods = await scene.cache(Pod)
    near = pods.namespace(lease.namespace) if lease is not None else pods.all()
    fitting = [pod for pod in near if any(c.name == name for c in pod.spec.containers)]
    leading = [pod for pod in fitting if lease is not None and pod.name == lease.spec.holder_identity]
    return leading or sorted(fitting, key=lambda pod: pod.name)


def _logs(pod: Pod, container: str) -> str:
    return f"kubectl logs -n {pod.namespace} {pod.name} -c {container} --tail=50"
