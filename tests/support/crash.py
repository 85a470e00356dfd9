"""Kill a cluster at one failpoint of a volume's lifecycle, restart it, and check the result.

The user's program (`journey`) only notices that the API server does not respond for a while. At the end the
machine and both stores are searched for leftovers and wrong states: the stores have every revision, so that a
disk that was attached to two nodes for a moment is found.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from tests.support import machine
from tests.support.cri.cluster import CriUp
from tests.support.cri.containerd import Containerd
from tests.support.journey import PATIENCE, Journey, journey
from tests.support.up import Up
from volplane.api import codec
from volplane.api.storage import VolumeAttachment
from volplane.cloud.model import CloudVolume, VolumeState
from volplane.host.processes import wait_for_exit

CLEANING, LOOK = 400, 0.05  # checks, and seconds between two
INCOMPLETE_STOP = "not everything was unmounted and released"


class Phase(StrEnum):
    START = "start"  # of a new cluster
    JOURNEY = "journey"  # from the creation of the claim until nothing of it is left
    STOP = "stop"  # a clean stop while a pod uses the volume


class Point(Struct, frozen=True, order=True):
    """A failpoint `name#count`, counted in one process from the start of the phase."""

    phase: Phase
    name: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.phase}-{self.name}#{self.count}"


class Outcome(Struct):
    point: Point
    passed: list[Point]  # the failpoints of the phase that were reached
    seconds: float
    died: bool = False
    problems: list[str] = []
    log: str = ""


class CrashRun:
    """One lifecycle with a kill: at a failpoint, or when the user waits for `kill_at`.

    With more than one death, the restarted process is killed at the same failpoint, which it may reach during
    its recovery.
    """

    def __init__(
        self,
        point: Point,
        *,
        separate: bool = False,
        kill_at: str = "",
        deaths: int = 1,
        runtime: Containerd | None = None,  # that runs the containers
    ) -> None:
        self.point, self.kill_at, self.deaths = point, kill_at, deaths
        arguments = ["--separate"] if separate else []
        self.up = Up(*arguments, nodes=2) if runtime is None else CriUp(runtime, *arguments, nodes=2)
        self.directory = self.up.directory
        self.logs = self.directory / "points"
        self.stopping = self.directory / "stopping"
        self.logs.mkdir()

    async def run(self) -> Outcome:
        began = time.monotonic()
        problems: list[str] = []
        log = ""
        try:
            async with journey(self.directory) as user:
                user.on_step = self._step
                try:
                    await self._live(user)
                    problems += await self._end(await user.pods())
                except (Exception, asyncio.CancelledError) as error:
                    problems.append(f"{user.step}: {type(error).__name__}: {error}")
            passed = list(self.passed_points())
            died = self.point in passed
            problems += list(Audit(self.directory).problems()) if not problems else []
            if problems:
                log = collect_logs(self.up)
            return Outcome(self.point, passed, time.monotonic() - began, died, problems, log)
        finally:
            await asyncio.to_thread(self.remove)

    # --- the run

    async def _live(self, user: Journey) -> None:
        self.start()
        keeping = asyncio.create_task(self._keep())
        travelling = asyncio.create_task(self._travel(user))
        try:
            await asyncio.wait({keeping, travelling}, return_when=asyncio.FIRST_COMPLETED)
            if not travelling.done():
                keeping.result()  # raises if another process died
            await travelling
        finally:
            for task in (keeping, travelling):
                task.cancel()
            await asyncio.gather(keeping, travelling, return_exceptions=True)

    def _step(self, step: str) -> None:
        if step == self.kill_at and self.deaths:
            self.up.send(signal.SIGKILL)

    async def _travel(self, user: Journey) -> None:
        await self.ready()
        await user.write()
        if self.point.phase is Phase.STOP:
            self.stopping.touch()
            self.up.send(signal.SIGTERM)
        await user.move()
        await user.clean_up()

    async def ready(self) -> None:
        async with asyncio.timeout(2 * PATIENCE):
            while not self.up.is_ready():  # noqa: ASYNC110 (another process says so)
                await asyncio.sleep(0.02)

    async def _keep(self) -> None:
        """Restart it after the expected kill, or after a clean stop."""
        while True:
            process = self.up.process
            assert process is not None
            await wait_for_exit(process.pid)
            code = process.wait()
            if not self.deaths or not self._is_expected(code):
                raise AssertionError(f"volplane up ended with {code}")
            self._start_again()

    def _is_expected(self, code: int) -> bool:
        """A kill; or a stop, which reports what it has left if one of its processes was killed meanwhile."""
        if not self.stopping.exists():
            return code == -signal.SIGKILL
        since_ready = self.up.log().rpartition("ready in")[2]  # an earlier run may have reported the same
        return code in (-signal.SIGKILL, 0) or (code == 1 and INCOMPLETE_STOP in since_ready)

    def _start_again(self) -> None:
        self.deaths -= 1
        self.stopping.unlink(missing_ok=True)
        self.start()

    def start(self) -> None:
        env = {}
        if self.deaths:
            env = {
                "VOLPLANE_FAILPOINT": f"{self.point.name}#{self.point.count}",
                "VOLPLANE_FAILPOINT_AFTER": self._from,
                "VOLPLANE_FAILPOINT_LOG": str(self.logs / "%p"),
            }
        self.up.start(env, wait=False)

    @property
    def _from(self) -> str:
        match self.point.phase:
            case Phase.START:
                return ""
            case Phase.JOURNEY:
                return str(self.directory / "ready")
            case Phase.STOP:
                return str(self.stopping)

    def passed_points(self) -> Iterator[Point]:
        for log in self.logs.iterdir():
            counts: dict[str, int] = {}
            for name in log.read_text().splitlines():
                counts[name] = counts.get(name, 0) + 1
                yield Point(self.point.phase, name, counts[name])

    # --- the checks

    async def _end(self, pods: set[str]) -> list[str]:
        """Check that nothing of the volume is left while it runs, and nothing at all after a clean stop."""
        found = await lasting_traces(self.directory, pods, self.up.list_containers)
        problems = [f"while it runs: {trace}" for trace in found]
        code = await asyncio.to_thread(self.up.stop)
        while code == -signal.SIGKILL and self.deaths:  # at a failpoint of the stop
            self._start_again()
            await self.ready()
            code = await asyncio.to_thread(self.up.stop)
        if code:
            problems.append(f"it stopped with {code}")
        if left := await asyncio.to_thread(machine.leftovers, self.directory):
            problems.append(f"after the stop: {left}")
        if containers := await asyncio.to_thread(self.up.list_containers):
            problems.append(f"after the stop: {containers}")
        return problems

    def remove(self) -> None:
        remove(self.up)


async def list_points(
    phase: Phase, *, separate: bool = False, expected: Set[str] = frozenset()
) -> list[Point]:
    """Every failpoint that a run without a crash reaches in this phase; a start may continue after ready."""
    run = CrashRun(Point(phase, "none"), separate=separate)
    if phase is not Phase.START:
        outcome = await run.run()
        assert not outcome.problems, f"{outcome.problems}\n{outcome.log}"
        return sorted(set(outcome.passed))
    try:
        run.start()
        await run.ready()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while expected - {point.name for point in run.passed_points()}:  # noqa: ASYNC110 (a file tells)
                    await asyncio.sleep(0.1)
        return sorted(set(run.passed_points()))
    finally:
        await asyncio.to_thread(run.remove)


def collect_logs(up: Up) -> str:
    shown = up.log(200)
    for log in sorted((up.directory / "run").glob("*.log")):
        shown += f"\n--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-60:])
    if keep := os.environ.get("VOLPLANE_CRASH_KEEP"):
        shutil.copytree(
            up.directory,
            f"{keep}/{up.directory.name}",
            ignore=shutil.ignore_patterns("*.img", "*.sock", "n"),
        )
    return shown


def selected_params(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """The values of a parameter in the selected tests of the module that use this fixture."""
    return [
        item.callspec.params[name]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and request.fixturename in item.fixturenames
    ]


def remove(up: Up) -> None:
    if up.process is not None and up.process.poll() is None:
        up.kill()
    up.remove_containers()
    machine.purge(up.directory)
    shutil.rmtree(up.directory, ignore_errors=True)


# --- leftovers


async def lasting_traces(
    directory: Path, pods: set[str], list_containers: Callable[[], list[str]] = list
) -> list[str]:
    """Leftovers that remain: a node that was killed last may still be recovering."""
    for _ in range(CLEANING):
        found = await asyncio.to_thread(traces, directory, pods)
        found += await asyncio.to_thread(list_containers)
        if not found:
            break
        await asyncio.sleep(LOOK)
    return found


def traces(directory: Path, pods: set[str]) -> list[str]:
    """Leftovers of a volume and its pods while the cluster runs `pods`."""
    found = [f"loop device {entry}" for entry in machine.loop_devices(directory)]
    found += [f"disk {file.name}" for file in (directory / "cloud" / "disks").iterdir()]
    for node in (directory / "n").iterdir():
        found += [f"pod {entry.name}" for entry in (node / "pods").iterdir() if entry.name not in pods]
        theirs = tuple(f"{node}/pods/{uid}/" for uid in pods)
        found += [f"mount {m}" for m in machine.mounts(node) if m != str(node) and not m.startswith(theirs)]
        found += [f"container {entry.name}" for entry in (node / "containers").iterdir() if entry.is_dir()]
        found += [f"staged {entry}" for entry in (node / "plugins" / "kubernetes.io" / "csi").glob("*/*")]
        links = (entry for entry in (node / "dev").rglob("*") if entry.is_symlink())
        disks = (entry for entry in links if os.readlink(entry).startswith("/dev/loop"))
        found += [f"device link {entry}" for entry in disks]  # the others are the machine's
        found += [f"log of {entry.name}" for entry in (node / "logs").glob("default_*")]
    return found


class Audit:
    """Problems in the histories of the stores since the last check."""

    def __init__(self, directory: Path) -> None:
        self.cloud, self.state = directory / "cloud" / "state.db", directory / "state.db"
        self.logs = (directory / "up.log", directory / "run" / "cloud.log")
        self._revisions = {self.cloud: 0, self.state: 0}
        self._read: dict[Path, int] = {}

    def skip(self) -> None:
        """Ignore the history until now."""
        self._revisions = {database: _revision(database) for database in self._revisions}
        self._read = {log: log.stat().st_size for log in self.logs if log.exists()}

    def problems(self) -> Iterator[str]:
        yield from _disk_problems(self.cloud, self._revisions[self.cloud])
        yield from _attachment_problems(self.state, self._revisions[self.state])
        for log in filter(Path.exists, self.logs):
            text = log.read_bytes()[self._read.get(log, 0) :].decode(errors="replace")
            yield from (f"in {log.name}: {line}" for line in text.splitlines() if _BAD.search(line))


_BAD = re.compile(
    r"refused: .* is attached to|refused: .* is still bound|Traceback \(most recent|never retrieved"
)


def _revision(database: Path) -> int:
    ((newest,),) = _rows(database, "SELECT coalesce(max(revision), 0) FROM log")
    return int(newest)


def history(database: Path, prefix: str, since: int = 0) -> list[tuple[str, bytes | None]]:
    """Every later revision of the keys, in order; None where one was deleted."""
    query = "SELECT key, value, deleted FROM log WHERE key GLOB ? AND revision > ? ORDER BY revision"
    rows = _rows(database, query, f"{prefix}*", since)
    return [(key, None if deleted else value) for key, value, deleted in rows]


def _rows(database: Path, query: str, *arguments: object) -> list[Any]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60)
    try:
        return connection.execute(query, arguments).fetchall()
    finally:
        connection.close()


def _disk_problems(database: Path, since: int) -> Iterator[str]:
    """Only one disk was created, and it was detached from a node before it was attached to the next."""
    given, holder = set(), ""
    live = set()
    for key, value in history(database, "/cloud/volumes/", since):
        if value is None:
            live.discard(key)
            continue
        live.add(key)
        volume = msgspec.json.decode(value, type=CloudVolume)
        if volume.state not in (VolumeState.CREATING, VolumeState.DELETING):
            given.add(key)
        now = ",".join(sorted(a.instance for a in volume.attachments))
        if holder and now and now != holder:
            yield f"{key} went from {holder} to {now} without a detach"
        holder = now
    if len(given) != 1:
        yield f"disks given out: {sorted(given)}"
    if live:
        yield f"disks left in the disk service: {sorted(live)}"


def _attachment_problems(database: Path, since: int) -> Iterator[str]:
    """The volume was never attached to two nodes at the same revision, and only one was created."""
    attached: set[str] = set()
    prefix = "/registry/volumeattachments.storage.k8s.io/"
    for key, value in history(database, prefix, since):
        if value is not None and codec.load(VolumeAttachment, value, 1).status.attached:
            attached.add(key)
        else:
            attached.discard(key)
        if len(attached) > 1:
            yield f"attached at the same time: {sorted(attached)}"
    volumes = {key for key, _ in history(database, "/registry/persistentvolumes/", since)}
    if len(volumes) != 1:
        yield f"volumes that were made: {sorted(volumes)}"
