"""The objects that the measurements create."""

from __future__ import annotations

from volplane.api.core import (
    Container,
    HostPathVolumeSource,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
    VolumeResourceRequirements,
)
from volplane.api.meta import ObjectMeta

NAMESPACE = "default"
IMMEDIATE, WAITING = "standard", "gp3"  # classes that `volplane up` brings

# Writes to the volume, reports it, and ends on SIGTERM: a shell that is process 1 ignores SIGTERM unless it
# has a trap, and a foreground child would delay the trap.
SCRIPT = 'trap "exit 0" TERM; echo $POD > /data/line && echo $POD > /signal/written; sleep 100000 & wait'


def claim(name: str, storage_class: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE),
        spec=PersistentVolumeClaimSpec(
            access_modes=("ReadWriteOnce",),
            resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
            storage_class_name=storage_class,
        ),
    )


def pod(name: str, claim: str, signals: str) -> Pod:
    """A pod that writes its name to the volume and then into the pipe."""
    return Pod(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE),
        spec=PodSpec(
            containers=(
                Container(
                    name="writer",
                    image="busybox",
                    command=("sh", "-c", SCRIPT.replace("$POD", name)),
                    volume_mounts=(
                        VolumeMount("data", mount_path="/data"),
                        VolumeMount("signal", mount_path="/signal"),
                    ),
                ),
            ),
            volumes=(
                Volume("data", persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim)),
                Volume("signal", host_path=HostPathVolumeSource(signals, "Directory")),
            ),
        ),
    )
