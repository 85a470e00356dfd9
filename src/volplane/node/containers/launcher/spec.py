"""What a container is to be, as the node wrote it; `containers.base.ContainerSpec` as it is read here."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

_ADDED: Spec = {  # since the first version; a container that runs may have been started by that one
    "capabilities": None,
    "no_new_privs": False,
    "readonly_root": False,
    "seccomp": "",
    "sysctls": {},
    "proc_mount": "Default",
    "cover_secrets": True,
}


def complete(spec: Spec) -> Spec:
    return {**_ADDED, **spec}


def mounts_of(spec: Spec) -> list[Spec]:
    """Devices and volumes in the order in which they are mounted: outer ones first."""
    devices = [{**device, "device": True} for device in spec["devices"]]
    own = [{"source": "/dev", "target": "/dev", "propagation": "rslave"}] if spec["privileged"] else []
    return own + sorted([*devices, *spec["mounts"]], key=lambda mount: str(mount["target"]))
