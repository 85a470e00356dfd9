"""Root without root: a user namespace, in which an ordinary user may mount and create namespaces.

`python -m volplane.base.user_namespace [--join PID] -- COMMAND…` creates a user and a mount namespace, or
joins those of another process of this user, and runs the command (with an absolute path) there as root. It is
a program of its own, because only a process with one thread may do that. With newuidmap and an entry in
/etc/subuid the namespace has many users, otherwise only root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_WHOLE = ["0", "0", "4294967295"]  # the map of the machine's own user namespace
_libc = ctypes.CDLL(None, use_errno=True)

OR_ROOT = "or run the command as root, with sudo"


def is_user_namespace() -> bool:
    """Whether this process is in a user namespace that is not the machine's: root has fewer rights in it."""
    try:
        with open("/proc/self/uid_map") as file:
            return file.read().split() != _WHOLE
    except OSError:
        return False


def count_users() -> int:
    """The number of user ids that this namespace has."""
    try:
        with open("/proc/self/uid_map") as file:
            return sum(int(line.split()[2]) for line in file)
    except OSError:
        return 1


def reexec_as_root(join: int = 0) -> NoReturn:
    """Run this command again, as root of a user namespace. `join`: a process in it; 0: a new namespace."""
    run_as_root([sys.executable, *sys.orig_argv[1:]], join)


def run_as_root(command: Sequence[str], join: int = 0) -> NoReturn:
    """Replace this program by a command in a user namespace. Its first word is an absolute path."""
    words = ["--join", str(join)] if join else []
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", __name__, *words, "--", *command])


def try_user_namespace() -> str:
    """Why this user gets no user namespace, and what to do; "" if it gets one."""
    reading, writing = os.pipe()
    argv = [sys.executable, "-m", __name__, "--", sys.executable, "-c", ""]
    child = os.posix_spawn(sys.executable, argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 2)])
    os.close(writing)
    with open(reading, errors="replace") as errors:
        text = errors.read().strip().removeprefix("volplane: ")
    failed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return text if failed else ""


def has_ranges() -> bool:
    """Whether a new user namespace of this user has more users than root."""
    uid = os.getuid()
    found = bool(_find_ranges("/etc/subuid", uid) and _find_ranges("/etc/subgid", uid))
    return found and shutil.which("newuidmap") is not None


def describe_refusal(error: OSError) -> str:
    """Why an ordinary user gets no user namespace, and what to do."""
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        why, what = "kernel.unprivileged_userns_clone is 0", "set it to 1 with sysctl"
    elif error.errno in (errno.ENOSPC, errno.EUSERS) or _read("/proc/sys/user/max_user_namespaces") == "0":
        why, what = "user.max_user_namespaces is too low", "raise it with sysctl, for example to 10000"
    elif _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        why = "AppArmor forbids it (kernel.apparmor_restrict_unprivileged_userns is 1)"
        what = "set it to 0 with sysctl"
    elif error.errno == errno.ENOSYS:
        why, what = "this kernel has none", "use another kernel"
    else:
        why = f"{error.strerror or error}; perhaps this is a container whose seccomp profile forbids it"
        what = "start the container with --security-opt seccomp=unconfined"
    return (
        "without root it needs a user namespace, which this machine does not permit:"
        f" {why}.\n  {what[0].upper()}{what[1:]}, {OR_ROOT}."
    )


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def main() -> None:
    words = sys.argv[1:]
    join = 0
    if words[0] == "--join":
        join, words = int(words[1]), words[2:]
    try:
        _join(join) if join else _create()
    except OSError as error:
        sys.exit(f"volplane: {describe_refusal(error)}")
    os.execv(words[1], words[1:])


def _create() -> None:
    uid, gid = os.getuid(), os.getgid()
    ranges = [_find_ranges("/etc/subuid", uid), _find_ranges("/etc/subgid", uid)]
    helper = _start_helper(uid, gid, *ranges) if all(ranges) else None
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    if helper is None or not helper.map_ranges():
        _write(
            "/proc/self/setgroups", "deny"
        )  # else the kernel lets no ordinary user write the map of groups
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


class _Helper:
    """A child in the old namespace, which runs newuidmap and newgidmap for its parent."""

    def __init__(self, pid: int, go: int) -> None:
        self._pid, self._go = pid, go

    def map_ranges(self) -> bool:
        """Returns False if the programs fail, or are not installed."""
        os.close(self._go)
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status) == 0


def _start_helper(uid: int, gid: int, users: list[str], groups: list[str]) -> _Helper:
    parent = os.getpid()
    ready, go = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready)
        return _Helper(pid, go)
    os.close(go)
    code = 1
    try:
        os.read(ready, 1)  # returns when the parent has its namespace
        silent = os.open(os.devnull, os.O_WRONLY)
        actions = [(os.POSIX_SPAWN_DUP2, silent, number) for number in (1, 2)]
        code = 0
        for program, own, ranges in (("newuidmap", uid, users), ("newgidmap", gid, groups)):
            argv = [program, str(parent), "0", str(own), "1", *ranges]
            child = os.posix_spawnp(program, argv, os.environ, file_actions=actions)
            code = code or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except OSError:
        code = 1
    os._exit(min(abs(code), 1))


def _find_ranges(path: str, uid: int) -> list[str]:
    """Arguments of newuidmap for the ranges of a user: first id inside, first id outside, count."""
    names = {str(uid)}
    with suppress(KeyError):
        names.add(pwd.getpwuid(uid).pw_name)
    found, inside = [], 1
    for line in _read(path).splitlines():
        name, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if name in names and first.isdigit() and count.isdigit():
            found += [str(inside), first, count]
            inside += int(count)
    return found


def _join(pid: int) -> None:
    """Join the namespaces of a process. The order matters: rights in the one come with the other."""
    for kind, flag in (("user", _CLONE_NEWUSER), ("mnt", _CLONE_NEWNS)):
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        _check(_libc.setns(descriptor, flag), "setns")
        os.close(descriptor)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    main()
