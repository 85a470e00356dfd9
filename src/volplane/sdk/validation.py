"""Checks requests for what the protocol requires, before the driver gets them."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.sdk.bounds import check_below
from volplane.sdk.errors import FailedPrecondition, InvalidArgument

REQUIRED: dict[str, tuple[str, ...]] = {
    "CreateVolume": ("name", "volume_capabilities"),
    "DeleteVolume": ("volume_id",),
    "ControllerPublishVolume": ("volume_id", "node_id", "volume_capability"),
    "ControllerUnpublishVolume": ("volume_id",),
    "ValidateVolumeCapabilities": ("volume_id", "volume_capabilities"),
    "ControllerExpandVolume": ("volume_id", "capacity_range"),
    "ControllerGetVolume": ("volume_id",),
    "ControllerModifyVolume": ("volume_id",),
    "CreateSnapshot": ("source_volume_id", "name"),
    "DeleteSnapshot": ("snapshot_id",),
    "GetSnapshot": ("snapshot_id",),
    "CreateVolumeGroupSnapshot": ("name", "source_volume_ids"),
    "DeleteVolumeGroupSnapshot": ("group_snapshot_id",),
    "GetVolumeGroupSnapshot": ("group_snapshot_id",),
    "GetMetadataAllocated": ("snapshot_id",),
    "GetMetadataDelta": ("base_snapshot_id", "target_snapshot_id"),
    "NodeStageVolume": ("volume_id", "staging_target_path", "volume_capability"),
    "NodeUnstageVolume": ("volume_id", "staging_target_path"),
    "NodePublishVolume": ("volume_id", "target_path", "volume_capability"),
    "NodeUnpublishVolume": ("volume_id", "target_path"),
    "NodeGetVolumeStats": ("volume_id", "volume_path"),
    "NodeExpandVolume": ("volume_id", "volume_path"),
}
EPHEMERAL = "csi.storage.k8s.io/ephemeral"  # in the volume context of an inline volume
_PATHS = (
    "staging_target_path",
    "target_path",
)  # created by drivers; a wrong volume_path is NOT_FOUND


def check(method: str, request: Message, *, stages: bool = False, root: str = "") -> None:
    """Check a request; with `root`, its paths must be below that directory.

    Raises InvalidArgument, or FailedPrecondition for a publish without a required stage.
    """
    for field in REQUIRED.get(method, ()):
        if not _present(request, field):
            raise InvalidArgument(f"{field} is missing in the request")
    for capability in _capabilities(request):
        _check_capability(capability)
    _check_numbers(request)
    for field in _PATHS:
        path = getattr(request, field, "")
        if path and not path.startswith("/"):
            raise InvalidArgument(f"{field} is not absolute: {path}")
    for field in (*_PATHS, "volume_path") if root else ():
        path = getattr(request, field, "")
        if path.startswith("/"):
            check_below(path, root, field)
    if method == "NodePublishVolume" and stages and not _is_staged(request):
        raise FailedPrecondition(
            "staging_target_path is missing: this driver stages volumes before it publishes them"
        )


def _present(request: Message, field: str) -> bool:
    value = getattr(request, field)
    return request.HasField(field) if isinstance(value, Message) else bool(value)


def _capabilities(request: Message) -> list[v1.VolumeCapability]:
    many = list(getattr(request, "volume_capabilities", ()))
    one = getattr(request, "volume_capability", None)
    return [*many, one] if one is not None and request.HasField("volume_capability") else many


def _check_capability(capability: v1.VolumeCapability) -> None:
    if capability.WhichOneof("access_type") is None:
        raise InvalidArgument("a volume capability has neither block nor mount")
    if capability.access_mode.mode == v1.VolumeCapability.AccessMode.UNKNOWN:
        raise InvalidArgument("a volume capability has no access mode")


def _check_numbers(request: Message) -> None:
    for field in ("max_entries", "max_results", "starting_offset"):
        if getattr(request, field, 0) < 0:
            raise InvalidArgument(f"{field} is negative")
    wanted = getattr(request, "capacity_range", None)
    if not isinstance(wanted, v1.CapacityRange):
        return
    if wanted.required_bytes < 0 or wanted.limit_bytes < 0:
        raise InvalidArgument("capacity_range is negative")
    if wanted.limit_bytes and wanted.required_bytes > wanted.limit_bytes:
        raise InvalidArgument("capacity_range requires more than its limit")


def _is_staged(request: Any) -> bool:
    """The request names a staging path, or is for an inline volume, which is never staged."""
    return bool(request.staging_target_path) or request.volume_context.get(EPHEMERAL) == "true"
