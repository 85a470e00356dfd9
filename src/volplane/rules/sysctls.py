"""Sysctls: spellings, namespaces, and which ones a pod may set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

Namespace = Literal["ipc", "net", ""]

LONGEST_NAME = 253
NAME_REGEX = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
_SWAPPED = str.maketrans("./", "/.")
_SEGMENT = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?")

# Namespaced, and harmless to other pods and the node. The list is that of upstream's kubelet.
SAFE = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)
_PREFIXES: Mapping[str, Namespace] = {
    "kernel.sem": "ipc",
    "kernel.shm": "ipc",
    "kernel.msg": "ipc",
    "fs.mqueue.": "ipc",
    "net.": "net",
}


def is_name(name: str) -> bool:
    """Whether it is a valid name: segments joined by dots or slashes."""
    return len(name) <= LONGEST_NAME and all(map(_SEGMENT.fullmatch, name.replace("/", ".").split(".")))


def with_dots(name: str) -> str:
    """The name with dots between segments; in `net/ipv4/conf/eth0.1/x` the dot becomes a slash."""
    first = next((letter for letter in name if letter in "./"), ".")
    return name if first == "." else name.translate(_SWAPPED)


def plain(name: str) -> str:
    """The name with dots only, or the path below /proc/sys if a segment contains a dot."""
    dotted = with_dots(name)
    return dotted.translate(_SWAPPED) if "/" in dotted else dotted


def namespace_of(name: str) -> Namespace:
    """The kind of namespace that isolates the sysctl; "" if none is known."""
    dotted = with_dots(name)
    for prefix, namespace in _PREFIXES.items():
        if dotted == prefix or (prefix != "kernel.sem" and dotted.startswith(prefix)):
            return namespace
    return ""


class AllowedSysctls(Struct, frozen=True):
    """The sysctls that pods may set on a node: names and prefixes."""

    names: frozenset[str] = frozenset(SAFE)
    prefixes: tuple[str, ...] = ()

    def refusal(self, name: str, *, host_network: bool, host_ipc: bool) -> str:
        """Upstream's message if a pod may not set it; "" if it may."""
        dotted = with_dots(name)
        if dotted not in self.names and not dotted.startswith(self.prefixes):
            return f'"{dotted}" not allowlisted'
        namespace = namespace_of(dotted)
        if (namespace == "ipc" and host_ipc) or (namespace == "net" and host_network):
            return f'"{dotted}" not allowed with host {namespace} enabled'
        return ""


def allow(patterns: Iterable[str]) -> AllowedSysctls:
    """The safe sysctls plus those of the patterns, which may end in `*`. Raises ValueError."""
    names, prefixes = set(SAFE), []
    for pattern in patterns:
        is_prefix = pattern.endswith("*")
        stem = pattern.removesuffix("*")
        # A pattern may end with a separator before its star, as net.* does.
        if not is_name(stem.rstrip("./") if is_prefix else stem):
            raise ValueError(
                f"sysctl {pattern!r} must have at most {LONGEST_NAME} characters and match regex {NAME_REGEX}"
            )
        dotted = with_dots(stem)
        if not namespace_of(dotted):
            raise ValueError(f"the sysctl {pattern!r} is not known to be namespaced")
        if is_prefix:
            prefixes.append(dotted)
        else:
            names.add(dotted)
    return AllowedSysctls(frozenset(names), tuple(prefixes))
