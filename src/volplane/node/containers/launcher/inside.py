"""The container from within: pid 1, which forwards signals and reaps, and the command it runs.

Everything that can fail is reported over a pipe that is closed without a word once the command runs. The
command is started without a copy of this process, so it is prepared from here: pid 1 takes the command's
directory, limits and, for a moment, its user.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import signal
import socket
import stat
import struct
from contextlib import suppress
from typing import NoReturn

from . import kernel, root, streams
from .root import Layout, Spec

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a container's root keeps: changing owners and modes, switching users, low ports, chroot, audit. No
# mounting, no device nodes, no raw disks.
_KEPT = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31})
_ALL = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_FAILED = 128
_TIOCSPTLCK, _TIOCGPTN = 0x40045431, 0x80045430


class CannotRun(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def run(layout: Layout, cover: list[str], control: socket.socket, reporting: int, *, plain: bool) -> NoReturn:
    """Become pid 1, in a fork of the shim: in the new pid namespace, and still in the machine's others."""
    code = _FAILED
    try:
        kernel.die_with_parent()
        kernel.set_title("init")
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        if plain:
            _make_namespaces(layout, cover, ipc=True)
            root.furnish(privileged=False)
        spec, descriptors = _await_order(control)
        given = streams.count(spec)
        trees = descriptors[given:]
        if spec["network"]:
            kernel.setns(trees[0], kernel.CLONE_NEWNET)
            os.close(trees.pop(0))
        if not plain:
            _make_namespaces(layout, cover, ipc=not spec["host_ipc"])
            root.furnish(privileged=spec["privileged"])
        elif spec["network"]:
            root.renew_sys()
        root.place_volumes(spec, trees)
        if spec["hostname"]:
            kernel.set_hostname(spec["hostname"])
        code = _run_command(spec, descriptors[:given])
    except CannotRun as error:
        code = error.code
        report(reporting, "exec", code, str(error))
    except BaseException as error:
        report(reporting, "setup", code, str(error))
    os._exit(code)


def report(descriptor: int, stage: str, code: int, message: str) -> None:
    with suppress(OSError):  # in a fork there is nobody else to tell
        os.write(descriptor, json.dumps({"stage": stage, "code": code, "message": message}).encode())


def _make_namespaces(layout: Layout, cover: list[str], *, ipc: bool) -> None:
    kernel.setns(layout.namespace, kernel.CLONE_NEWNS)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | (kernel.CLONE_NEWIPC if ipc else 0))
    root.build(layout, cover)


def _await_order(control: socket.socket) -> tuple[Spec, list[int]]:
    text, descriptors, _, _ = socket.recv_fds(control, 64 << 10, 253)
    while chunk := control.recv(64 << 10) if text else b"":
        text += chunk
    if not text:
        os._exit(_FAILED)  # the shim is gone
    control.close()
    return json.loads(text), descriptors


def _run_command(spec: Spec, given: list[int]) -> int:
    argv = [*spec["command"], *spec["args"]]
    if not argv:
        keep_only(())
        return _pause()
    main = start(spec, argv, _streams(spec, given))
    keep_only(())
    return _forward_to(main)


def _streams(spec: Spec, given: list[int]) -> Actions:
    if spec["tty"]:
        spec["env"] = {"TERM": "xterm", **spec["env"]}
        return open_terminal(socket.socket(fileno=given[0]))
    stdout, stderr, *rest = given
    stdin = rest[0] if rest else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    return [(os.POSIX_SPAWN_DUP2, d, n) for n, d in enumerate((stdin, stdout, stderr))]


def open_terminal(way_out: socket.socket) -> Actions:
    """A terminal of the container's own; our end goes to who asked for it, theirs becomes the command's."""
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    (number,) = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))
    socket.send_fds(way_out, [b'{"terminal": true}\n'], [master])
    os.close(master)
    # Opened by the leader of a new session, it becomes that session's controlling terminal.
    return [(os.POSIX_SPAWN_OPEN, n, f"/dev/pts/{number}", os.O_RDWR, 0) for n in range(3)]


def keep_only(kept: tuple[int, ...]) -> None:
    """Close all descriptors but these."""
    low = 0
    for descriptor in sorted(kept):
        if low < descriptor:  # an empty range would close everything
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 1 << 20)


def _pause() -> int:
    while signal.sigwait(_ALL) not in (signal.SIGTERM, signal.SIGINT):
        pass
    return 0


def _forward_to(main: int) -> int:
    while True:
        number = signal.sigwait(_ALL)
        if number != signal.SIGCHLD:
            os.kill(main, number)
            continue
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == main:
                return exit_code(status)
            if pid == 0:
                break


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


Actions = list[tuple[int, int, int]] | list[tuple[int, int, str, int, int]]


def start(spec: Spec, argv: list[str], actions: Actions) -> int:
    """Start the command in a session of its own, as the container's user; CannotRun says why it did not."""
    env = environment(spec)
    try:
        _go_to(spec["workdir"] or "/")
        os.umask(0o022)
        if not spec["privileged"]:
            _limit_capabilities()
        _become(spec)
        program = find(argv[0], env["PATH"])
        return os.posix_spawn(
            program, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_ALL
        )
    except FileNotFoundError as error:
        raise CannotRun(_NOT_FOUND, f'exec: "{argv[0]}": {_reason(error)}') from error
    except OSError as error:
        raise CannotRun(_NOT_EXECUTABLE, f'exec: "{argv[0]}": {_reason(error)}') from error
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.chdir("/")


def _go_to(directory: str) -> None:
    try:
        os.chdir(directory)
    except FileNotFoundError:
        os.makedirs(directory)
        os.chdir(directory)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower() if error.errno else str(error)


def find(program: str, path: str) -> str:
    if "/" in program:
        return program
    denied = False
    for directory in path.split(":"):
        candidate = f"{directory or '.'}/{program}"
        try:
            info = os.stat(candidate)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and os.access(candidate, os.X_OK):
            return candidate
        denied = True
    if denied:
        raise PermissionError(13, "permission denied")
    raise FileNotFoundError("executable file not found in $PATH")


def environment(spec: Spec) -> dict[str, str]:
    home = "/root"
    if spec["user"]:
        try:
            home = pwd.getpwuid(spec["user"]).pw_dir
        except KeyError:
            home = "/"
    return {"PATH": PATH, "HOME": home, "HOSTNAME": spec["hostname"], **spec["env"]}


def _limit_capabilities() -> None:
    """For everything executed from here on; this process itself keeps what it has."""
    number = 0
    while number in _KEPT or kernel.drop_capability(number):
        number += 1


def _become(spec: Spec) -> None:
    """Take the user's identity, with a way back that ends at the exec, which overwrites the saved ids."""
    user, group = spec["user"] or 0, spec["group"]
    if group is None:
        group = _primary_group(user) if user else 0
    os.setgroups(spec["groups"])
    os.setresgid(group, group, 0)
    os.setresuid(user, user, 0)


def _primary_group(user: int) -> int:
    try:
        return pwd.getpwuid(user).pw_gid
    except KeyError:
        return 0
