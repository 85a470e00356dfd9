"""Change the group of a volume's files to the pod's fsGroup, and report it to the pod if it takes long."""

from __future__ import annotations

import asyncio

from volplane.host import files
from volplane.volumes.base import NodeContext, PodVolumeSpec


async def apply_fs_group(context: NodeContext, spec: PodVolumeSpec, path: str) -> None:
    """Raises OSError."""
    security = spec.pod.spec.security_context
    on_root_mismatch = security is not None and security.fs_group_change_policy == "OnRootMismatch"
    assert spec.fs_group is not None
    touched = [0]
    reporting = asyncio.create_task(_report_slow_ownership(context, spec, touched))
    try:
        await context.host.call(
            files.apply_fs_group,
            path,
            spec.fs_group,
            only_if_root_differs=on_root_mismatch,
            progress=lambda count: touched.__setitem__(0, count),
        )
    finally:
        reporting.cancel()


async def _report_slow_ownership(context: NodeContext, spec: PodVolumeSpec, touched: list[int]) -> None:
    """Report to the pod why it waits: a volume with many files takes long."""
    pause = context.ownership_notice
    while True:
        await asyncio.sleep(pause)
        pause = 2 * context.ownership_notice
        text = (
            f"Setting the group of all files in volume {spec.source.name} takes long: {touched[0]} files "
            "so far. Set fsGroupChangePolicy to OnRootMismatch to do it only once"
        )
        context.warn(spec.pod, "VolumePermissionChangeInProgress", text)
