"""Rotate the logs of containers: the runtime writes them, and is asked to open a new file after a rename."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress

from volplane.host import Host
from volplane.node.containers.cri.client import CriClient, CriError
from volplane.node.containers.cri.runtime import CriContainer, CriRuntime
from volplane.node.containers.launcher.log import list_rotated, rotated_name

log = logging.getLogger(__name__)

CHECK_INTERVAL = 10.0  # seconds, as upstream's --container-log-monitor-interval


class LogRotation:
    def __init__(
        self, cri: CriClient, runtime: CriRuntime, host: Host, *, max_size: int, max_files: int
    ) -> None:
        """`max_size`: bytes of one file; `max_files`: number of files, including the one being written."""
        self._cri, self._runtime, self._host = cri, runtime, host
        self._max_size, self._max_files = max_size, max_files

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            await self.rotate_logs()

    async def rotate_logs(self) -> None:
        """Rotate the logs that have reached their maximum size."""
        for container in self._runtime.running_containers():
            try:
                await self._rotate(container)
            except (OSError, CriError) as error:
                log.warning("log %s is not rotated: %s", container.log_path, error)

    async def _rotate(self, container: CriContainer) -> None:
        path = container.log_path
        if not path or not await self._host.call(_has_reached, path, self._max_size):
            return
        old = await self._host.call(_rename, path)
        try:
            await self._cri.reopen_log(container.cri_id)
        except CriError:
            await self._host.call(_restore, old, path)
            raise
        await self._host.call(_prune, path, self._max_files)


def _has_reached(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size >= size
    except FileNotFoundError:
        return False


def _rename(path: str) -> str:
    old = rotated_name(path)
    os.rename(path, old)
    return old


def _restore(old: str, path: str) -> None:
    """The runtime goes on writing to the old file: give it back its name."""
    if not os.path.exists(path):
        os.rename(old, path)


def _prune(path: str, max_files: int) -> None:
    for old in list_rotated(path)[: -(max_files - 1) or None]:
        with suppress(FileNotFoundError):
            os.unlink(old)
