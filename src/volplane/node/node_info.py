"""What the Node's status says of this machine, read from /proc and /etc."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from volplane.api.core import NodeSystemInfo
from volplane.base.version import package_version

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def system_info(instance: str) -> NodeSystemInfo:
    kernel = os.uname()
    return NodeSystemInfo(
        machine_id=_read_line("/etc/machine-id") or instance,
        system_uuid=instance or _read_line("/etc/machine-id"),
        boot_id=_read_line("/proc/sys/kernel/random/boot_id"),
        kernel_version=kernel.release,
        os_image=_os_image(),
        container_runtime_version=f"volplane://{package_version()}",
        kubelet_version=f"v1.35.0-volplane.{package_version()}",
        operating_system="linux",
        architecture=architecture(),
    )


def has_app_armor() -> bool:
    return _read_line("/sys/module/apparmor/parameters/enabled").startswith("Y")


def capacity(root: str, max_pods: int, overrides: Mapping[str, str]) -> dict[str, str]:
    disk = os.statvfs(root)
    found = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{_memory_kib()}Ki",
        "ephemeral-storage": f"{disk.f_blocks * disk.f_frsize // 1024}Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": str(max_pods),
    }
    return {**found, **overrides}


def _memory_kib() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemTotal:"):
                return int(line.split()[1])
    return 0


def _os_image() -> str:
    try:
        with open("/etc/os-release") as file:
            entries = dict(line.rstrip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return "Linux"
    return entries.get("PRETTY_NAME", "Linux").strip('"')


def _read_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""
