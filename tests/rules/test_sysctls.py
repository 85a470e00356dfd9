"""Names of sysctls, their namespaces, and which of them a node allows."""

from __future__ import annotations

import pytest

from volplane.rules import sysctls


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("net.ipv4.tcp_syncookies", True),
        ("net/ipv4/conf/eth0.1/arp_accept", True),
        ("kernel.shm_rmid_forced", True),
        ("Kernel.x", False),
        ("net..x", False),
        ("a" * 254, False),
    ],
)
def test_names(name: str, valid: bool) -> None:
    assert sysctls.is_name(name) is valid


@pytest.mark.parametrize(
    ("name", "dotted", "plain"),
    [
        ("net.ipv4.x", "net.ipv4.x", "net.ipv4.x"),
        ("net/ipv4/x", "net.ipv4.x", "net.ipv4.x"),
        ("net/ipv4/conf/eth0.1/x", "net.ipv4.conf.eth0/1.x", "net/ipv4/conf/eth0.1/x"),
        ("kernel", "kernel", "kernel"),
    ],
)
def test_spellings(name: str, dotted: str, plain: str) -> None:
    assert (sysctls.with_dots(name), sysctls.plain(name)) == (dotted, plain)


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("kernel.sem", "ipc"),
        ("kernel.semaphores", ""),
        ("kernel.shmmax", "ipc"),
        ("fs.mqueue.msg_max", "ipc"),
        ("net/ipv4/x", "net"),
        ("vm.swappiness", ""),
    ],
)
def test_namespaces(name: str, namespace: str) -> None:
    assert sysctls.namespace_of(name) == namespace


def test_a_node_allows_the_safe_ones_and_those_of_its_flag() -> None:
    allowed = sysctls.allow(["net.core.*", "kernel.msgmax"])
    pod = {"host_network": False, "host_ipc": False}
    for name in ("net.ipv4.tcp_syncookies", "net/core/somaxconn", "kernel.msgmax"):
        assert allowed.refusal(name, **pod) == ""
    assert allowed.refusal("kernel.msgmnb", **pod) == '"kernel.msgmnb" not allowlisted'
    on_host = allowed.refusal("net.core.somaxconn", host_network=True, host_ipc=False)
    assert on_host == '"net.core.somaxconn" not allowed with host net enabled'
    with_ipc = allowed.refusal("kernel.msgmax", host_network=False, host_ipc=True)
    assert with_ipc == '"kernel.msgmax" not allowed with host ipc enabled'


@pytest.mark.parametrize(
    ("pattern", "why"), [("Net.*", "match regex"), ("vm.swappiness", "not known to be namespaced")]
)
def test_patterns_that_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sysctls.allow([pattern])
