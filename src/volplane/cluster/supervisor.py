"""The supervisor of a cluster in the background: starts `volplane up`, and starts it again if it ends.

`python -m volplane.cluster.supervisor DIR`. A first start that fails is not repeated. SIGTERM stops the
cluster in order, and then the supervisor. If the supervisor is killed, the cluster continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from volplane.base import clock, log
from volplane.base.backoff import Backoff, Failures
from volplane.base.locks import LockHeld, lock
from volplane.base.tasks import cancel_and_wait
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import UP, load_start_options
from volplane.cluster.role_files import RoleFiles
from volplane.host import inotify
from volplane.host.inotify import Inotify
from volplane.host.processes import Process, spawn

logger = logging.getLogger(__name__)

RESTART = Backoff(1.0, 60.0)
LOOK = 1.0  # seconds between two looks at a file that cannot be watched
STABLE = 60.0  # seconds after which a start counts as successful, and the delay begins anew


class Supervisor:
    def __init__(self, layout: DataDirectory) -> None:
        self._layout = layout
        self._log = str(RoleFiles(layout.run).log(UP))
        self._stop = asyncio.Event()
        self._was_ready = False

    async def run(self) -> int:
        """Supervise until the cluster is stopped. Returns the exit code of its last process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        failures = Failures(RESTART)
        while True:
            began = clock.now()
            code = await self._run_once()
            was_killed = code < 0
            if code == 0 or not self._was_ready or (self._stop.is_set() and not was_killed):
                return code
            if clock.now() - began > STABLE:
                failures.reset()
            delay = failures.next_delay()
            logger.warning("the cluster ended with %d; starting it again in %g seconds", code, delay)
            if await self._is_stopped_within(delay):
                # What the process that ended has left, containers and mounts, only a start removes.
                return await self._run_once()

    async def _run_once(self) -> int:
        """Run the cluster to its end, or until this supervisor is to stop. Returns its exit code."""
        arguments = load_start_options(self._layout).arguments
        process = spawn(
            [sys.executable, "-m", "volplane", UP, "--data-dir", str(self._layout.directory), *arguments],
            log=self._log,
            env={**os.environ, log.FILE: self._log},
            blocked_signals=(signal.SIGTERM,),  # until it can stop in order
        )
        ended = asyncio.create_task(process.wait(), name=UP)
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        ready = asyncio.create_task(self._note_ready(process), name="ready")
        try:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                process.send(signal.SIGTERM)
            code = await ended
            self._was_ready = self._was_ready or self._is_ready(process)  # it may have been a short life
            return code
        finally:
            for task in (stopped, ready):
                await cancel_and_wait(task)

    async def _note_ready(self, process: Process) -> None:
        try:
            async with Inotify() as watch:
                watch.add(str(self._layout.directory), inotify.CREATE | inotify.CLOSE_WRITE)
                while not self._is_ready(process):
                    await watch.read()
        except OSError:
            while not self._is_ready(process):  # noqa: ASYNC110 - this user has too many watches already
                await asyncio.sleep(LOOK)
        self._was_ready = True

    def _is_ready(self, process: Process) -> bool:
        try:
            return self._layout.ready.read_text().strip() == str(process.pid)
        except OSError:
            return False

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True


def main() -> None:
    log.setup()
    layout = DataDirectory(sys.argv[1])
    try:
        lock(str(layout.supervisor_lock))
    except LockHeld as error:
        sys.exit(f"volplane: {error}")
    sys.exit(asyncio.run(Supervisor(layout).run()))


if __name__ == "__main__":
    main()
