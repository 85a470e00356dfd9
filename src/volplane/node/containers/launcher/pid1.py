"""Pid 1 of a container: sets it up, starts the command, forwards signals and reaps processes.

Pid 1 sets the container up with the machine's privileges, and drops them before it reads the container's
files: from `identity.drop_privileges` on it can do what the container can, and nothing else. It then asks
the shim for the go-ahead, and only with it starts the command.

A failure is reported over a pipe, as numbers; when the command runs, the pipe is closed without a report.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from typing import NoReturn

from . import command, identity, kernel, paths, rootfs, streams
from .command import SIGNALS
from .failures import FAILED, HOSTNAME, IDENTITY, NETWORK, ROOT, WORKDIR, SetupFailure, SetupProgress
from .rootfs import MountHandles, RootLayout
from .spec import SAMPLE, Spec, mounts_of

SPEC = b"s"  # comes with the descriptors of the spec, the streams, the network and the volumes
READY, GO = b"r", b"g"  # pid 1 has set up the container; the shim's go-ahead


def run(layout: RootLayout, control: socket.socket, reporting: int, *, plain: bool) -> NoReturn:
    """Run as pid 1, in a fork of the shim: in a new pid namespace, and in the machine's other namespaces."""
    code, progress = FAILED, SetupProgress()
    try:
        kernel.die_with_parent()
        kernel.make_undumpable()
        kernel.set_title("init")
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        os.umask(0o022)
        handles = _build_root(layout, None, progress) if plain and not layout.needs_spec else None
        if handles is not None:
            _rehearse(handles)
        spec, descriptors = _receive_spec(control)
        count = streams.count_descriptors(spec)
        stdio, trees = descriptors[:count], descriptors[count:]
        if spec["network"]:
            progress.reach(NETWORK)
            kernel.setns(trees[0], kernel.CLONE_NEWNET)
            os.close(trees.pop(0))
        if handles is None:
            handles = _build_root(layout, spec, progress)
        progress.reach(ROOT)
        layout.mount_sys(handles, privileged=spec["privileged"], masked=spec["proc_mount"] == "Default")
        _finish_setup(spec, trees, handles, progress)
        progress.reach(IDENTITY)
        user = identity.drop_privileges(spec)
        kernel.die_with_parent()  # again: changing the user resets it; a dead shim gives no go-ahead
        control.sendall(READY)
        argv = [*spec["command"], *spec["args"]]
        if argv:  # the shim answers while the program is looked for
            ready = command.prepare(spec, argv, user, stdio, _terminal_socket(spec, stdio), progress)
        _wait_for_go_ahead(control)
        main = ready.start() if argv else 0
        close_all_but(())
        code = _forward_to(main) if main else _pause()
    except BaseException as error:  # formatted outside: see `failures`
        with suppress(OSError):
            os.write(reporting, progress.pack(error))
    os._exit(code)


def _build_root(layout: RootLayout, spec: Spec | None, progress: SetupProgress) -> MountHandles:
    """Make the namespaces and the root, for this container or, without a spec, for any plain one."""
    progress.reach(ROOT)
    privileged = spec is not None and spec["privileged"]
    shared_ipc = spec is not None and spec["host_ipc"]
    masked = spec is None or spec["proc_mount"] == "Default"
    kernel.setns(layout.namespace, kernel.CLONE_NEWNS)
    os.close(layout.namespace)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | (0 if shared_ipc else kernel.CLONE_NEWIPC))
    secrets = spec is not None and not spec["cover_secrets"]
    targets = [str(mount["target"]) for mount in mounts_of(spec)] if spec is not None else []
    return layout.build(privileged=privileged, secrets=secrets, masked=masked, targets=targets)


def _rehearse(handles: MountHandles) -> None:
    """Run the code of a start once, on nothing: see `Shim.rehearse`. No file of a container is here yet."""
    spec: Spec = json.loads(json.dumps(SAMPLE).encode())
    progress = SetupProgress()
    with suppress(OSError):
        rootfs.mount_volumes(spec, [-1], handles, progress)
    rootfs.rehearse_mount(handles)
    enter_workdir(spec, progress)
    user = identity.find_user(spec)
    identity.capabilities(spec)
    kernel.capabilities()
    with suppress(SetupFailure):
        command.prepare(spec, spec["command"], user, [0, 0, 0], None, progress)


def _finish_setup(spec: Spec, trees: list[int], handles: MountHandles, progress: SetupProgress) -> None:
    """The last steps that need the machine's privileges.

    Paths of the container are opened by `paths` only.
    """
    rootfs.set_sysctls(spec, progress)
    makes_devices = not spec["privileged"] and bool(identity.capabilities(spec) & identity.MKNOD)
    rootfs.mount_volumes(spec, trees, handles, progress, private=makes_devices)
    progress.reach(HOSTNAME)
    if spec["hostname"]:
        kernel.set_hostname(spec["hostname"])
    enter_workdir(spec, progress)
    progress.reach(ROOT)
    if spec["readonly_root"]:
        rootfs.make_readonly(handles)
    if makes_devices:
        rootfs.make_dev_readonly(handles)
    handles.close()


def enter_workdir(spec: Spec, progress: SetupProgress) -> None:
    """Change to the working directory; create it if it is missing, as root."""
    progress.reach(WORKDIR)
    directory = paths.open_or_create(spec["workdir"] or "/", directory=True)
    os.fchdir(directory)
    os.close(directory)


def _receive_spec(control: socket.socket) -> tuple[Spec, list[int]]:
    word, received, _, _ = socket.recv_fds(control, 1, 253, socket.MSG_CMSG_CLOEXEC)
    if not word:
        os._exit(FAILED)  # the shim is gone
    stdio, *descriptors = received
    text = os.pread(stdio, os.fstat(stdio).st_size, 0)
    os.close(stdio)
    return json.loads(text), descriptors


def _wait_for_go_ahead(control: socket.socket) -> None:
    """Exit if the start was given up while the container was set up."""
    if control.recv(1) != GO:
        os._exit(FAILED)
    control.close()


def _terminal_socket(spec: Spec, stdio: list[int]) -> socket.socket | None:
    return socket.socket(fileno=stdio[0]) if spec["tty"] else None


def close_all_but(kept_descriptors: tuple[int, ...]) -> None:
    """Close all other descriptors."""
    low = 0
    for descriptor in sorted(kept_descriptors):
        if low < descriptor:  # an empty range would close everything
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 1 << 20)


def _pause() -> int:
    while signal.sigwait(SIGNALS) not in (signal.SIGTERM, signal.SIGINT):
        pass
    return 0


def _forward_to(main: int) -> int:
    while True:
        number = signal.sigwait(SIGNALS)
        if number != signal.SIGCHLD:
            with suppress(OSError):  # it may have changed to a user that we may not signal
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
