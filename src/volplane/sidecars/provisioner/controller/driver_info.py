"""What the plans must know of the driver and of the options."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.sidecars.base import DriverClient
from volplane.sidecars.provisioner import plan as plans
from volplane.sidecars.provisioner.settings import ProvisionerOptions


def build_driver_info(
    driver: DriverClient,
    settings: ProvisionerOptions,
    node: str = "",
    segments: Mapping[str, str] | None = None,
) -> plans.ProvisionerDriverInfo:
    return plans.ProvisionerDriverInfo(
        driver.name,
        plugin=driver.plugin,
        controller=driver.controller,
        prefix=settings.volume_name_prefix,
        uuid_length=settings.volume_name_uuid_length,
        default_fstype=settings.default_fstype,
        extra_metadata=settings.extra_create_metadata,
        publish_readonly=settings.controller_publish_readonly,
        strict_topology=settings.strict_topology,
        immediate_topology=settings.immediate_topology,
        prevent_mode_change=settings.prevent_volume_mode_conversion,
        node=node,
        topology_segments=segments,
    )
