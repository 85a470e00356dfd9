"""The fields of the node's CSI requests. Pure.

The pod's data is added to a copy of the volume's attributes. Kubernetes merges it into the shared map, which
would show another pod's tokens to a later stage call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from volplane.api import names
from volplane.api.core import Pod
from volplane.api.storage import CSIDriver, VolumeAttachment
from volplane.csi import convert, v1
from volplane.volumes.base import PodVolumeSpec, VolumeMetrics, VolumeOperationError
from volplane.volumes.csi.drivers import Rpc

PERSISTENT, EPHEMERAL = "Persistent", "Ephemeral"
SELINUX_KEY = "seLinuxMountContext"  # in vol_data.json
TOKENS_KEY = "csi.storage.k8s.io/serviceAccount.tokens"


def is_inline(spec: PodVolumeSpec) -> bool:
    return spec.volume is None


def is_block(spec: PodVolumeSpec) -> bool:
    return spec.volume is not None and spec.volume.spec.volume_mode == "Block"


def driver_of(spec: PodVolumeSpec) -> str:
    if spec.volume is not None:
        assert spec.volume.spec.csi is not None
        return spec.volume.spec.csi.driver
    assert spec.source.csi is not None
    return spec.source.csi.driver


def handle_of(spec: PodVolumeSpec) -> str:
    if spec.volume is not None:
        assert spec.volume.spec.csi is not None
        return spec.volume.spec.csi.volume_handle
    return names.inline_volume_handle(spec.pod.uid, spec.name)


def lifecycle_of(spec: PodVolumeSpec) -> str:
    return EPHEMERAL if is_inline(spec) else PERSISTENT


def check_lifecycle(spec: PodVolumeSpec, driver: CSIDriver | None) -> None:
    """Raise if the driver does not support the volume's lifecycle mode.

    Without a CSIDriver object it supports persistent volumes only.
    """
    mode, name = lifecycle_of(spec), driver_of(spec)
    if driver is None:
        if mode == EPHEMERAL:
            raise VolumeOperationError(
                f'volume mode "{mode}" not supported by driver {name} (no CSIDriver object)'
            )
        return
    modes = driver.spec.volume_lifecycle_modes or (PERSISTENT,)
    if mode not in modes:
        listed = " ".join(f'"{m}"' for m in modes)
        raise VolumeOperationError(
            f'volume mode "{mode}" not supported by driver {name} (only supports [{listed}])'
        )


def capability(
    spec: PodVolumeSpec, capabilities: frozenset[int], *, group: int | None, label: str = ""
) -> v1.VolumeCapability:
    multi_writer = Rpc.SINGLE_NODE_MULTI_WRITER in capabilities
    passed = str(group) if group is not None and Rpc.VOLUME_MOUNT_GROUP in capabilities else ""
    if spec.volume is None:
        assert spec.source.csi is not None
        mode = convert.node_access_mode((), multi_writer=multi_writer)
        return convert.capability(mode, fs_type=spec.source.csi.fs_type or "", group=passed)
    volume = spec.volume.spec
    assert volume.csi is not None
    mode = convert.node_access_mode(volume.access_modes, multi_writer=multi_writer)
    if is_block(spec):
        return convert.capability(mode, block=True)
    # In quotes, because a level may contain a comma: s0:c1,c2.
    flags = (*volume.mount_options, f'context="{label}"') if label else volume.mount_options
    return convert.capability(mode, fs_type=volume.csi.fs_type, mount_flags=flags, group=passed)


def volume_attributes(spec: PodVolumeSpec) -> dict[str, str]:
    if spec.volume is not None:
        assert spec.volume.spec.csi is not None
        return dict(spec.volume.spec.csi.volume_attributes)
    assert spec.source.csi is not None
    return dict(spec.source.csi.volume_attributes)


def pod_attributes(pod: Pod, lifecycle: str) -> dict[str, str]:
    """The attributes for drivers with podInfoOnMount."""
    return {
        "csi.storage.k8s.io/pod.name": pod.name,
        "csi.storage.k8s.io/pod.namespace": pod.namespace,
        "csi.storage.k8s.io/pod.uid": pod.uid,
        "csi.storage.k8s.io/serviceAccount.name": pod.spec.service_account_name,
        "csi.storage.k8s.io/ephemeral": "true" if lifecycle == EPHEMERAL else "false",
    }


def token_attributes(held: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """The attribute with all tokens, each given as (audience, token, expiry)."""
    body = {audience: {"token": text, "expirationTimestamp": expiry} for audience, text, expiry in held}
    return {TOKENS_KEY: json.dumps(body, separators=(",", ":"))} if body else {}


def publish_context(attachment: VolumeAttachment | None) -> Mapping[str, str]:
    return attachment.status.attachment_metadata if attachment is not None else {}


def stage_data(spec: PodVolumeSpec) -> dict[str, str]:
    """vol_data.json of a staged volume."""
    return {"driverName": driver_of(spec), "volumeHandle": handle_of(spec)} | _label(spec)


def _label(spec: PodVolumeSpec) -> dict[str, str]:
    return {SELINUX_KEY: spec.selinux_label} if spec.selinux_label else {}


def pod_data(spec: PodVolumeSpec, node: str) -> dict[str, str]:
    """vol_data.json of a published volume."""
    handle, driver = handle_of(spec), driver_of(spec)
    return _label(spec) | {
        "attachmentID": names.attachment_name(handle, driver, node),
        "driverName": driver,
        "nodeName": node,
        "specVolID": spec.name,
        "volumeHandle": handle,
        "volumeLifecycleMode": lifecycle_of(spec),
    }


def node_applies_fs_group(
    spec: PodVolumeSpec, driver: CSIDriver | None, capabilities: frozenset[int]
) -> bool:
    """Whether the kubelet has to apply the pod's fsGroup to the volume's files."""
    if spec.fs_group is None or spec.readonly or Rpc.VOLUME_MOUNT_GROUP in capabilities:
        return False
    policy = driver.spec.fs_group_policy if driver is not None else None
    match policy or "ReadWriteOnceWithFSType":
        case "None":
            return False
        case "File":
            return True
    return bool(_fs_type(spec)) and _is_single_node(spec)


def _fs_type(spec: PodVolumeSpec) -> str:
    if spec.volume is not None:
        assert spec.volume.spec.csi is not None
        return spec.volume.spec.csi.fs_type
    assert spec.source.csi is not None
    return spec.source.csi.fs_type or ""


def _is_single_node(spec: PodVolumeSpec) -> bool:
    if spec.volume is None:
        return True  # an inline volume counts as ReadWriteOnce
    return bool({"ReadWriteOnce", "ReadWriteOncePod"} & set(spec.volume.spec.access_modes))


def volume_metrics(reply: v1.NodeGetVolumeStatsResponse, *, condition: bool) -> VolumeMetrics:
    """A reply without usage is an error, unless it reports the volume's condition."""
    found: dict[str, int] = {}
    for figures in reply.usage:
        if figures.unit == v1.VolumeUsage.BYTES:
            found |= {"capacity": figures.total, "available": figures.available, "used": figures.used}
        elif figures.unit == v1.VolumeUsage.INODES:
            found |= {
                "inodes": figures.total,
                "inodes_free": figures.available,
                "inodes_used": figures.used,
            }
    abnormal = reply.volume_condition.abnormal if condition else None
    if not found and abnormal is None:
        raise VolumeOperationError("failed to get usage from response. usage is nil")
    return VolumeMetrics(**found, abnormal=abnormal, message=reply.volume_condition.message)
