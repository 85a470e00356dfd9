"""Dropping privileges: a process gives up, for good, everything that the container may not have.

This comes before the container's own files are read: its passwd file, its programs, its terminals. So they
are read with no more privileges than the container's own.
"""

from __future__ import annotations

import binascii
import os
from typing import Any

from . import failures, kernel, paths

_NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
_BITS = {f"CAP_{name}": 1 << number for number, name in enumerate(_NAMES)}
MKNOD = _BITS["CAP_MKNOD"]
_USER_SWITCH_CAPABILITIES = _BITS["CAP_SETUID"] | _BITS["CAP_SETGID"]
# The same as `containers.base.DEFAULT_CAPABILITIES`, which says why MKNOD is missing.
_DEFAULT = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
    "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
)  # fmt: skip

_PASSWD = "/etc/passwd"
_LONGEST_FILE, _LONGEST_LINE = 1 << 20, 4096
_FIELDS = 7  # name, password, uid, gid, comment, home, shell
_LARGEST_ID = (1 << 32) - 2


class ContainerProcessUser:
    """Who runs a container's command, as numbers, and the home directory its passwd file gives."""

    def __init__(self, uid: int, gid: int, groups: list[int], home: str) -> None:
        self.uid, self.gid, self.groups, self.home = uid, gid, groups, home


def drop_privileges(spec: dict[str, Any]) -> ContainerProcessUser:
    """Take the container's capabilities, seccomp filter and user. It cannot be undone: no saved id is left.

    Call it in the container's root, after everything that needs the machine's privileges.
    """
    allowed = capabilities(spec)
    early, late = _filters(spec)
    for number in range(64):  # before the filter is installed, because a filter can fake results
        if not allowed >> number & 1 and not kernel.drop_capability(number):
            break  # the kernel has no more capabilities
    if early:  # without no_new_privs, installing a filter needs CAP_SYS_ADMIN
        kernel.filter_calls(early)
    kernel.set_capabilities((allowed | _USER_SWITCH_CAPABILITIES) & kernel.capabilities())
    user = find_user(spec)
    try:
        _set_groups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)  # from root to another user this clears all capabilities
    except OSError:
        if kernel.IN_USER_NAMESPACE:
            raise failures.SetupFailure(failures.NO_SUCH_ID) from None
        raise
    kernel.set_capabilities(allowed & kernel.capabilities())
    kernel.make_undumpable()  # again: changing the user has reset it to /proc/sys/fs/suid_dumpable
    if spec["no_new_privs"]:
        kernel.forbid_new_privileges()
    if late:
        kernel.filter_calls(late)
    return user


def _set_groups(groups: list[int]) -> None:
    """A user namespace of an ordinary user may forbid to change the groups; then there are none to drop."""
    try:
        os.setgroups(groups)
    except PermissionError:
        if groups or not kernel.IN_USER_NAMESPACE:
            raise


def capabilities(spec: dict[str, Any]) -> int:
    """The mask of capabilities the container may have; names that this kernel does not know are ignored."""
    if spec["privileged"]:
        return kernel.capabilities()
    names = _DEFAULT if spec["capabilities"] is None else spec["capabilities"]
    mask = 0
    for name in names:
        mask |= _BITS.get(name, 0)
    return mask


def _filters(spec: dict[str, Any]) -> tuple[bytes, bytes]:
    """The seccomp filter, to be installed before or after privileges are dropped; the other one is empty."""
    if spec["privileged"] or not spec["seccomp"]:
        return b"", b""
    try:
        program = binascii.a2b_base64(spec["seccomp"])
    except ValueError:
        raise failures.SetupFailure(failures.BAD_FILTER) from None
    if not program or len(program) % 8:
        raise failures.SetupFailure(failures.BAD_FILTER)
    return (b"", program) if spec["no_new_privs"] else (program, b"")


def find_user(spec: dict[str, Any]) -> ContainerProcessUser:
    """The user of the spec; group and home come from /etc/passwd where the spec does not give them."""
    uid, gid, groups = spec["user"] or 0, spec["group"], list(spec["groups"])
    if not uid:
        return ContainerProcessUser(0, gid or 0, groups, "/root")
    entry = find_passwd_entry(paths.read_file(_PASSWD, _LONGEST_FILE), uid)
    if entry is None:
        return ContainerProcessUser(uid, gid or 0, groups, "/")
    return ContainerProcessUser(uid, entry[0] if gid is None else gid, groups, entry[1])


def find_passwd_entry(passwd: bytes, uid: int) -> tuple[int, str] | None:
    """Group and home of the first user with this uid.

    Parsed here, because the C library would read /etc/nsswitch.conf and load a library from the container.
    """
    uid_text = str(uid).encode()
    for line in passwd.split(b"\n"):
        fields = line.split(b":") if len(line) <= _LONGEST_LINE else []
        if len(fields) == _FIELDS and fields[2] == uid_text and fields[3].isdigit():
            gid, home = int(fields[3][:20]), fields[5]
            if gid <= _LARGEST_ID and home.startswith(b"/") and b"\0" not in home:
                return gid, os.fsdecode(home)
    return None
