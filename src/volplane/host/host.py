"""All blocking calls to the operating system, run on separate threads.

A hung file system blocks one of these threads and nothing else. A cancelled caller stops waiting, but a
mount or mkfs in progress is finished, because half of one would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ParamSpec, TypeVar

from volplane.base import failpoint, trace
from volplane.base.files import atomic_write
from volplane.host import devices, files, filesystems, mounts, processes, selinux
from volplane.host.files import FilesystemStats
from volplane.host.filesystems import Filesystem
from volplane.host.mounts import MountTable
from volplane.host.processes import CompletedCommand, HostCommandFailed, Process, RunningCommand
from volplane.host.worker_threads import WorkerThreads
from volplane.rules.selinux import SELinuxPolicy

THREADS = 16
MOUNT_TIMEOUT = 120.0

_NOT_READ = SELinuxPolicy("?")

P = ParamSpec("P")
T = TypeVar("T")


class Host:
    def __init__(self, *, threads: int = THREADS) -> None:
        self._threads = WorkerThreads(threads, "host")
        self._selinux: SELinuxPolicy | None = _NOT_READ

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run any blocking function on the host's threads."""
        return await self._threads.start(function, *args, **kwargs)

    async def close(self) -> None:
        """Wait for calls in progress."""
        self._threads.close()
        await asyncio.get_running_loop().run_in_executor(None, self._threads.join)

    # Mounts

    async def mount(self, source: str, target: str, fstype: str, options: Sequence[str] = ()) -> None:
        if helper := await self.call(mounts.helper_for, fstype):
            chosen = ["-o", ",".join(options)] if options else []
            with trace.span("host", "mount", source), failpoint.around("host:mount"):
                await self.run([helper, source, target, *chosen], timeout=MOUNT_TIMEOUT)
        else:
            await self.call(mounts.mount, source, target, fstype, options)

    async def bind(self, source: str, target: str, *, readonly: bool = False, recursive: bool = True) -> None:
        await self.call(mounts.bind, source, target, readonly=readonly, recursive=recursive)

    async def remount_readonly(self, target: str) -> None:
        await self.call(mounts.remount_readonly, target)

    async def make_shared(self, path: str) -> None:
        """Make `path` a shared mount: mounts propagate between the machine and containers."""
        await self.call(mounts.make_shared, path)

    async def unmount(self, path: str, *, force: bool = False, detach: bool = False) -> bool:
        """Unmount the topmost mount; False if nothing was mounted there."""
        return await self.call(mounts.unmount, path, force=force, detach=detach)

    async def mounts(self) -> MountTable:
        return await self.call(mounts.read_table)

    async def is_mount(self, path: str) -> bool:
        return await self.call(mounts.is_mount, path)

    async def selinux(self) -> SELinuxPolicy | None:
        """The SELinux policy, None without SELinux. Read once: it does not change while we run."""
        if self._selinux is _NOT_READ:
            self._selinux = await self.call(selinux.policy)
        return self._selinux

    # Devices

    async def loop_attach(self, file: str, *, readonly: bool = False, direct: bool = False) -> str:
        """Bind the file to a loop device and return it; a bound file keeps its device."""
        return await self.call(devices.loop_attach, file, readonly=readonly, direct=direct)

    async def loop_detach(self, device: str, file: str = "") -> bool:
        """Unbind; False if it was not bound, or not to `file`. Raises DeviceBusy while it is in use."""
        return await self.call(devices.loop_detach, device, file)

    async def loop_resize(self, device: str) -> None:
        await self.call(devices.loop_resize, device)

    async def loops(self) -> dict[str, str]:
        return await self.call(devices.loops)

    async def loops_below(self, directory: str) -> dict[str, str]:
        """Bound loop devices whose files are below the directory, whatever namespace they were bound in."""
        return await self.call(devices.loops_below, directory)

    async def backing_file(self, device: str) -> str:
        return await self.call(devices.backing_file, device)

    async def size_of(self, device: str) -> int:
        return await self.call(devices.size_of, device)

    # File systems

    async def probe(self, device: str) -> Filesystem | None:
        """The file system on the device; None only if it is proven blank, or unfinished."""
        return await self.call(filesystems.probe, device)

    async def mkfs(self, device: str, fstype: str, *, label: str = "", options: Sequence[str] = ()) -> None:
        await self.call(filesystems.mkfs, device, fstype, label=label, options=options)

    async def fsck(self, device: str, fstype: str) -> None:
        await self.call(filesystems.fsck, device, fstype)

    async def grow(self, device: str, path: str, fstype: str) -> None:
        await self.call(filesystems.grow, device, path, fstype)

    async def stats(self, path: str) -> FilesystemStats:
        return await self.call(files.stats, path)

    # Files inside volumes

    async def atomic_write(self, path: str, data: bytes, mode: int = 0o600, *, durable: bool = False) -> None:
        await self.call(atomic_write, path, data, mode, durable=durable)

    async def make_below(self, root: str, subpath: str) -> None:
        """Create a missing subPath directory, never through a link."""
        await self.call(files.make_directory, root, subpath)

    async def bind_below(self, root: str, subpath: str, target: str, *, readonly: bool = False) -> None:
        """Bind-mount a subPath of a volume, safe against symbolic links that appear meanwhile."""
        await self.call(files.bind_below, root, subpath, target, readonly=readonly)

    async def apply_fs_group(
        self, root: str, gid: int, *, readonly: bool = False, only_if_root_differs: bool = False
    ) -> int:
        """Change ownership for fsGroup; return the number of files changed."""
        return await self.call(
            files.apply_fs_group, root, gid, readonly=readonly, only_if_root_differs=only_if_root_differs
        )

    # Processes

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = 120,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> CompletedCommand:
        """Run a command to its end; kill it if the caller is cancelled.

        Raises HostCommandFailed (with `check`), TimeoutError.
        """
        running = RunningCommand(argv, env)
        try:
            completed = await self.call(running.finish, timeout, input)
        except asyncio.CancelledError:
            running.kill()
            raise
        if check and completed.code:
            raise HostCommandFailed(completed)
        return completed

    async def capture(
        self, argv: Sequence[str], *, timeout: float | None, max_output: int
    ) -> CompletedCommand:
        """Run a program that may hang, without holding a thread; see `processes.capture`."""
        return await processes.capture(argv, start=self.call, timeout=timeout, max_output=max_output)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        fds: Sequence[int] = (),
        log: str = "/dev/null",
        env: Mapping[str, str] | None = None,
        blocked_signals: Collection[int] = (),
    ) -> Process:
        return await self.call(
            processes.spawn, argv, fds=fds, log=log, env=env, blocked_signals=blocked_signals
        )
