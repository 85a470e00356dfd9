"""The spec of a container as the launcher reads it: `containers.base.ContainerSpec` in JSON."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

_ADDED: Spec = {  # fields added since the first version: running containers may have been started by it
    "capabilities": None,
    "no_new_privs": False,
    "readonly_root": False,
    "seccomp": "",
    "sysctls": {},
    "proc_mount": "Default",
    "cover_secrets": True,
    "program": [],
}


# For rehearsals (see `Shim.rehearse`). Nothing can be opened below /dev/null.
SAMPLE: Spec = {
    **_ADDED,
    "id": "sample",
    "command": ["sh", "-c", "true"],
    "args": [],
    "env": {"NAME": "value"},
    "workdir": "",
    "hostname": "sample",
    "mounts": [{"source": "/dev/null/source", "target": "/", "readonly": False, "propagation": "private"}],
    "devices": [],
    "user": None,
    "group": None,
    "groups": [],
    "privileged": False,
    "log_path": "/dev/null/log/0.log",
    "log_max_size": 1,
    "log_max_files": 1,
    "host_ipc": False,
    "network": "",
    "cgroups": [],
    "stdin": False,
    "stdin_once": False,
    "tty": False,
}


def complete(spec: Spec) -> Spec:
    return {**_ADDED, **spec}


def mounts_of(spec: Spec) -> list[Spec]:
    """Devices and volumes in the order in which they are mounted: outer ones first."""
    devices = [{**device, "device": True} for device in spec["devices"]]
    own = [{"source": "/dev", "target": "/dev", "propagation": "rslave"}] if spec["privileged"] else []
    return own + sorted([*devices, *spec["mounts"]], key=lambda mount: str(mount["target"]))
