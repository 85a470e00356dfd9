"""Detection of SELinux, and the labels of its policy for containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.host import Host, selinux
from volplane.host.mounts import MountTable
from volplane.rules.selinux import SELinuxPolicy

LINE = "25 24 0:21 / /sys/fs/selinux %s,relatime shared:8 - selinuxfs selinuxfs %s"
MOUNTED, READONLY = (MountTable([LINE % (mode, mode)]) for mode in ("rw", "ro"))
CONTEXTS = """
# of container-selinux
process = "system_u:system_r:container_t:s0"
content = "system_u:object_r:virt_var_lib_t:s0"
file = "system_u:object_r:container_file_t:s0"
"""
FEDORA = SELinuxPolicy("system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "proc/self/attr/current": "system_u:system_r:kubelet_t:s0\0",
        "etc/selinux/config": "# comment\nSELINUX=enforcing\nSELINUXTYPE=targeted\n",
        "etc/selinux/targeted/contexts/lxc_contexts": CONTEXTS,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_a_machine_with_a_policy(root: Path) -> None:
    assert selinux.policy(root, MOUNTED) == FEDORA


def test_containers_have_a_file_of_their_own(root: Path) -> None:
    path = root / "usr/share/containers/selinux/contexts"
    path.parent.mkdir(parents=True)
    path.write_text(CONTEXTS.replace("container_file_t", "other_file_t"))
    assert selinux.policy(root, MOUNTED) == SELinuxPolicy(FEDORA.process, "system_u:object_r:other_file_t:s0")


def test_a_policy_that_says_nothing_of_containers(root: Path) -> None:
    (root / "etc/selinux/config").unlink()
    assert selinux.policy(root, MOUNTED) == SELinuxPolicy()


def test_without_its_file_system_there_is_no_selinux(root: Path) -> None:
    assert selinux.policy(root, MountTable([])) is None
    assert selinux.policy(root, READONLY) is None


def test_without_a_loaded_policy_there_is_no_selinux(root: Path) -> None:
    (root / "proc/self/attr/current").write_text("kernel\0")
    assert selinux.policy(root, MOUNTED) is None


async def test_the_host_says_what_its_mount_table_shows() -> None:
    host = Host()
    try:
        there = any(e.fstype == "selinuxfs" and not e.readonly for e in await host.mounts())
        assert (await host.selinux() is not None) is there
        assert await host.selinux() is await host.selinux()
    finally:
        await host.close()
