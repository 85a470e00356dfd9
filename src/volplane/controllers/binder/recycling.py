"""Recycle: a pod deletes a volume's files, and the volume becomes Available again.

Deprecated in Kubernetes, and only for hostPath and NFS volumes, which are directories. The pod's name is
derived from the volume's, so that a controller that is restarted finds the pod again.
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
from volplane.controllers.binder.steps import (
    CreateRecycler,
    DeleteRecycler,
    SetVolumePhase,
    UnbindVolume,
    VolumeStep,
)
from volplane.rules.steps import CommonStep, normal, warning
from volplane.rules.waits import Wait, WaitData, WaitReason

NAMESPACE = "default"
PREFIX = "recycler-for-"
SCRUB_COMMAND = 'test -e /scrub && find /scrub -mindepth 1 -delete && test -z "$(ls -A /scrub)" || exit 1'
DEADLINE = 300  # activeDeadlineSeconds of the pod


def is_recyclable(volume: PersistentVolume) -> bool:
    return volume.spec.host_path is not None or volume.spec.nfs is not None


def recycle(
    volume: PersistentVolume, users: Sequence[str], recycler: Pod | None
) -> Iterator[VolumeStep | CommonStep]:
    """`users` are pods that still use a claim of that name, `recycler` the pod that deletes the files."""
    phase = recycler.status.phase if recycler is not None else ""
    if users:
        # 5.51 a pod that uses a claim of that name may still write
        message = f"Volume is used by pods: {', '.join(sorted(users))}"
        yield normal("VolumeFailedRecycle", message)
        yield Wait(WaitReason.RECYCLED_VOLUME_IN_USE, WaitData(pods=tuple(sorted(users))))
    elif recycler is None:
        # 5.52 there is no recycler yet
        created = pod_for(volume)
        yield CreateRecycler(created)
        yield Wait(WaitReason.RECYCLING, WaitData(pods=(created.name,)))
    elif phase == "Succeeded":
        # 5.53 it is empty
        yield DeleteRecycler(recycler)
        yield normal("VolumeRecycled", "Volume recycled")
        yield UnbindVolume(volume)
        yield SetVolumePhase(volume, "Available")
    elif phase == "Failed":
        # 5.54 it could not be emptied; retried with a new pod
        yield DeleteRecycler(recycler)
        message = f"Recycle failed: {recycler.status.message or 'the pod that deletes its files failed'}"
        if volume.status.phase != "Failed":
            yield SetVolumePhase(volume, "Failed", message)
        yield warning("VolumeFailedRecycle", message)
        yield Wait(WaitReason.RECLAIM_FAILED, message=message)
    else:
        # 5.55 the recycler is running
        yield Wait(WaitReason.RECYCLING, WaitData(pods=(recycler.name,)))


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
        args=("-c", SCRUB_COMMAND),
        volume_mounts=(VolumeMount(name="vol", mount_path="/scrub"),),
    )
    spec = PodSpec(
        restart_policy="Never",
        active_deadline_seconds=DEADLINE,
        containers=(container,),
        volumes=(source,),
    )
    return Pod(metadata=ObjectMeta(name=f"{PREFIX}{volume.name}", namespace=NAMESPACE), spec=spec)


def recycled_by(pod: Pod) -> str:
    """The volume that a recycler pod is for, or ""."""
    is_recycler = pod.namespace == NAMESPACE and pod.name.startswith(PREFIX)
    return pod.name.removeprefix(PREFIX) if is_recycler else ""
