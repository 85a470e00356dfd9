"""What a container is to be, as the node wrote it; `containers.base.ContainerSpec` as it is read here."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]


def mounts_of(spec: Spec) -> list[Spec]:
    """Devices and volumes in the order in which they are mounted: outer ones first."""
    devices = [{**device, "device": True} for device in spec["devices"]]
    own = [{"source": "/dev", "target": "/dev", "propagation": "rslave"}] if spec["privileged"] else []
    return own + sorted([*devices, *spec["mounts"]], key=lambda mount: str(mount["target"]))
