"""Sysctls: spellings, namespaces, and which a pod may set."""

from __future__ import annotations

import pytest

from volplane.rules import sysctls


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("net.ipv4.tcp_rmem", True),
        ("net/ipv4/conf/eth0.1/rp_filter", True),
        ("a", True),
        ("", False),
        ("net..x", False),
        ("-a", False),
        ("a" * 254, False),
    ],
)
def test_names_are_segments_joined_by_dots_or_slashes(name: str, valid: bool) -> None:
    assert sysctls.is_name(name) is valid


@pytest.mark.parametrize(
    ("name", "dotted", "plain"),
    [
        ("kernel.msgmax", "kernel.msgmax", "kernel.msgmax"),
        ("kernel/msgmax", "kernel.msgmax", "kernel.msgmax"),
        (
            "net/ipv4/conf/eth0.1/rp_filter",
            "net.ipv4.conf.eth0/1.rp_filter",
            "net/ipv4/conf/eth0.1/rp_filter",
        ),
        ("plain", "plain", "plain"),
    ],
)
def test_there_are_two_spellings(name: str, dotted: str, plain: str) -> None:
    assert sysctls.with_dots(name) == dotted
    assert sysctls.plain(name) == plain


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("kernel.sem", "ipc"),
        ("kernel.semaphores", ""),
        ("kernel.shmmax", "ipc"),
        ("fs.mqueue.msg_max", "ipc"),
        ("net.core.somaxconn", "net"),
        ("vm.swappiness", ""),
    ],
)
def test_a_sysctl_belongs_to_a_kind_of_namespace(name: str, namespace: str) -> None:
    assert sysctls.namespace_of(name) == namespace


@pytest.mark.parametrize(
    ("name", "host_network", "host_ipc", "refusal"),
    [
        ("kernel.shm_rmid_forced", False, False, ""),
        ("kernel.shm_rmid_forced", False, True, '"kernel.shm_rmid_forced" not allowed with host ipc enabled'),
        ("net.core.somaxconn", False, False, ""),
        ("net.core.somaxconn", True, False, '"net.core.somaxconn" not allowed with host net enabled'),
        ("kernel.msgmax", True, True, '"kernel.msgmax" not allowed with host ipc enabled'),
        ("vm.swappiness", False, False, '"vm.swappiness" not allowlisted'),
    ],
)
def test_a_node_allows_safe_sysctls_and_its_own(
    name: str, host_network: bool, host_ipc: bool, refusal: str
) -> None:
    allowed = sysctls.allow(["kernel.msg*", "net.core.*", "kernel.sem"])
    assert allowed.refusal(name, host_network=host_network, host_ipc=host_ipc) == refusal


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("Net.*", "match regex"), ("vm.swappiness", "not known to be namespaced")],
)
def test_a_pattern_that_cannot_be_allowed_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sysctls.allow([pattern])
