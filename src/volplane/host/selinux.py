"""SELinux on this machine: whether it is enabled, and the default labels of its policy for containers."""

from __future__ import annotations

from pathlib import Path

from volplane.host import mounts
from volplane.host.mounts import MountTable
from volplane.rules.selinux import SELinuxPolicy

KERNEL = "kernel"  # the label of every process before a policy has been loaded


def policy(root: Path = Path("/"), table: MountTable | None = None) -> SELinuxPolicy | None:
    """None on a machine without SELinux."""
    mounted = (mounts.read_table() if table is None else table).filter_lines(" - selinuxfs ")
    if all(entry.fstype != "selinuxfs" or entry.readonly for entry in mounted):
        return None
    current = _text(root / "proc/self/attr/current").rstrip("\0\n")
    return None if current == KERNEL else _containers(root)


def _containers(root: Path) -> SELinuxPolicy:
    given = _settings(_text(root / "usr/share/containers/selinux/contexts"))
    if not given:
        kind = _settings(_text(root / "etc/selinux/config")).get("SELINUXTYPE", "")
        given = _settings(_text(root / "etc/selinux" / kind / "contexts/lxc_contexts"))
    return SELinuxPolicy(given.get("process", ""), given.get("file", ""))


def _settings(text: str) -> dict[str, str]:
    """`key = "value"` line by line."""
    found = {}
    for line in map(str.strip, text.splitlines()):
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found[key.strip()] = value.strip().strip('"')
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
