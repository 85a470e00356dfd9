"""The JSON argument of calls to a FlexVolume driver: what it needs to know about a volume.

The node and the controller build it in the same way:

    flex = find_flex_volume(pod_volume, persistent_volume, read_only=claim_reference.read_only)
    await driver.call("attach", build_options(flex), node_name)
    await driver.call("mount", directory, build_options(flex, mount_options(pod, secret.data, fs_group)))

The options of the user win over all others, as upstream; the API server refuses keys of kubernetes.io there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from msgspec import Struct

from volplane.api.core import (
    FlexPersistentVolumeSource,
    FlexVolumeSource,
    PersistentVolume,
    Pod,
    SecretReference,
    Volume,
)

VOLUME_PLUGIN_DIR = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
ATTACHER = "flexvolume.volplane.io"  # spec.attacher of the VolumeAttachments of FlexVolumes
DEVICE_PATH = "devicePath"  # in status.attachmentMetadata: the device that `attach` answered

FS_TYPE = "kubernetes.io/fsType"
READ_WRITE = "kubernetes.io/readwrite"
VOLUME_NAME = "kubernetes.io/pvOrVolumeName"
POD_NAME = "kubernetes.io/pod.name"
POD_NAMESPACE = "kubernetes.io/pod.namespace"
POD_UID = "kubernetes.io/pod.uid"
SERVICE_ACCOUNT = "kubernetes.io/serviceAccount.name"
FS_GROUP = "kubernetes.io/mounterArgs.FsGroup"
SECRET_PREFIX = "kubernetes.io/secret/"


class FlexVolume(Struct, frozen=True):
    """A FlexVolume, inline in a pod or behind a PersistentVolume."""

    name: str  # of the PersistentVolume, or of the volume in its pod
    driver: str  # vendor/driver, or driver
    fs_type: str = ""
    read_only: bool = False
    options: Mapping[str, str] = {}
    secret: SecretReference | None = None  # without a namespace: in the pod's

    @property
    def unique_name(self) -> str:
        """In volumesInUse and volumesAttached, for drivers that attach."""
        return f"{self.driver}/{self.name}"


def find_flex_volume(
    source: Volume | None, volume: PersistentVolume | None, *, read_only: bool = False
) -> FlexVolume | None:
    """The FlexVolume of a pod's volume, or of the PersistentVolume behind its claim; None if it is neither.

    `read_only` is that of the pod's reference to the claim: for a PersistentVolume it alone decides, and
    `spec.flexVolume.readOnly` does not.
    """
    if volume is not None:
        flex = volume.spec.flex_volume
        return read_source(flex, volume.name, read_only=read_only) if flex is not None else None
    if source is None or source.flex_volume is None:
        return None
    return read_source(source.flex_volume, source.name, read_only=source.flex_volume.read_only)


def read_source(
    source: FlexVolumeSource | FlexPersistentVolumeSource, name: str, *, read_only: bool
) -> FlexVolume:
    """From the source alone, as an attachment's inlineVolumeSpec has it."""
    reference = source.secret_ref
    namespace = reference.namespace if isinstance(reference, SecretReference) else ""
    return FlexVolume(
        name=name,
        driver=source.driver,
        fs_type=source.fs_type,
        read_only=read_only,
        options=source.options,
        secret=SecretReference(name=reference.name, namespace=namespace) if reference else None,
    )


def build_options(flex: FlexVolume, extra: Mapping[str, str] | None = None) -> str:
    """The JSON argument of a call; `extra` is what only `mount` has."""
    options = {
        FS_TYPE: flex.fs_type,
        READ_WRITE: "ro" if flex.read_only else "rw",
        VOLUME_NAME: flex.name,
        **(extra or {}),
        **flex.options,
    }
    return json.dumps(options, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def mount_options(pod: Pod, secret: Mapping[str, bytes], fs_group: int | None) -> dict[str, str]:
    """What only `mount` gets: the pod, the data of the volume's Secret, and the pod's fsGroup."""
    options = {
        POD_NAME: pod.name,
        POD_NAMESPACE: pod.namespace,
        POD_UID: pod.uid,
        SERVICE_ACCOUNT: pod.spec.service_account_name,
    }
    options |= {SECRET_PREFIX + key: base64.b64encode(value).decode() for key, value in secret.items()}
    return options if fs_group is None else {**options, FS_GROUP: str(fs_group)}
