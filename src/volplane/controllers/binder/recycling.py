"""Recycle: a volume's files are deleted by a pod, and the volume is free again.

Deprecated for years, and only for hostPath and NFS, where a directory is all there is to scrub. The subtle
thing: the pod is found again by its name, so that a controller that dies in between waits for the one there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volplane.api.core import (
    Container,
    HostPathVolumeSource,
    NFSVolumeSource,
    PersistentVolume,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from volplane.api.meta import ObjectMeta
from volplane.controllers.binder.steps import Scrub, Sweep, Turn, Unbind, VolumeStep
from volplane.rules.steps import UNTIL_CHANGED, Wait, normal, warning

NAMESPACE = "default"
PREFIX = "recycler-for-"
SCRUB = 'test -e /scrub && find /scrub -mindepth 1 -delete && test -z "$(ls -A /scrub)" || exit 1'
DEADLINE = 300  # seconds that a pod gets for it


def is_scrubbable(volume: PersistentVolume) -> bool:
    return volume.spec.host_path is not None or volume.spec.nfs is not None


def recycle(volume: PersistentVolume, users: Sequence[str], scrubber: Pod | None) -> Iterator[VolumeStep]:
    """`users` are pods that still use the claim's name, `scrubber` the pod that is at it."""
    phase = scrubber.status.phase if scrubber is not None else ""
    if users:
        # 5.51 a pod of the claim's name may still write
        message = f"Volume is used by pods: {', '.join(sorted(users))}"
        yield normal("VolumeFailedRecycle", message)
        yield Wait(UNTIL_CHANGED, message)
    elif scrubber is None:
        # 5.52 nobody is at it yet
        yield Scrub(pod_for(volume))
        yield Wait(UNTIL_CHANGED, "its files are being deleted")
    elif phase == "Succeeded":
        # 5.53 it is empty
        yield Sweep(scrubber)
        yield normal("VolumeRecycled", "Volume recycled")
        yield Unbind(volume)
        yield Turn(volume, "Available")
    elif phase == "Failed":
        # 5.54 it could not be emptied; the next round tries again
        yield Sweep(scrubber)
        message = f"Recycle failed: {scrubber.status.message or 'the pod that deletes its files failed'}"
        if volume.status.phase != "Failed":
            yield Turn(volume, "Failed", message)
        yield warning("VolumeFailedRecycle", message)
        yield Wait(UNTIL_CHANGED, message)
    else:
        # 5.55 somebody is at it
        yield Wait(UNTIL_CHANGED, f"pod {scrubber.name} deletes its files")


def pod_for(volume: PersistentVolume) -> Pod:
    path, nfs = volume.spec.host_path, volume.spec.nfs
    source = Volume(
        name="vol",
        host_path=HostPathVolumeSource(path=path.path) if path is not None else None,
        nfs=NFSVolumeSource(server=nfs.server, path=nfs.path) if nfs is not None else None,
    )
    container = Container(
        name="pv-recycler",
        image="busybox:1.27",
        command=("/bin/sh",),
        args=("-c", SCRUB),
        volume_mounts=(VolumeMount(name="vol", mount_path="/scrub"),),
    )
    spec = PodSpec(
        restart_policy="Never",
        active_deadline_seconds=DEADLINE,
        containers=(container,),
        volumes=(source,),
    )
    return Pod(metadata=ObjectMeta(name=f"{PREFIX}{volume.name}", namespace=NAMESPACE), spec=spec)


def scrubbed_by(pod: Pod) -> str:
    """The volume that a pod is there to scrub, or ""."""
    mine = pod.namespace == NAMESPACE and pod.name.startswith(PREFIX)
    return pod.name.removeprefix(PREFIX) if mine else ""
