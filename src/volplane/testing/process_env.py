"""The environment of crash cases: a cluster of several processes, each of which can be killed at a failpoint.

A file per role names the failpoint (`base.failpoint`) at which the role kills itself, before or after a step;
then it is restarted. The processes write their calls to the driver to files, which are read here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.errors import Timeout, Unavailable
from volplane.api.meta import Resource
from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.base.tasks import background
from volplane.cluster.multi_process import MultiProcessCluster
from volplane.cluster.single_process import ClusterOptions
from volplane.cluster.user_drivers import UserDrivers
from volplane.csi import call_recorder
from volplane.csi.call_interceptor import CsiCall
from volplane.node.containers import records
from volplane.node.containers.cri import labels, v1
from volplane.node.containers.cri.client import CriClient
from volplane.testing.case import CaseFailure
from volplane.testing.cluster_env import ClusterEnv

CONTROL_PLANE = ("apiserver", "controller-manager", "scheduler")
READ_INTERVAL = 1.0  # seconds between two reads of the calls, to detect a livelock
PAUSE = 0.05  # seconds between two tries, while the API server restarts

REMOVE_TIMEOUT = 60.0  # seconds to remove the pod that survives all cases

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T", bound=Resource)
# Creates the survivor: returns claim, pod, and the checksum of the data.
StartSurvivor = Callable[[ClusterEnv], Awaitable[tuple[str, str, str]]]


class RoleProcesses(MultiProcessCluster):
    """Each role has a file for its failpoint, and one for its calls to drivers."""

    def __init__(self, settings: ClusterOptions, drivers: UserDrivers, directory: Path) -> None:
        super().__init__(settings, drivers)
        self._directory = directory
        self._kill_group: tuple[str, ...] = ()

    def _environment(self, role: str, *, again: bool) -> dict[str, str]:
        return {
            **super()._environment(role, again=again),
            "VOLPLANE_FAILPOINT_FILE": str(self.failpoint_file(role)),
            call_recorder.FILE: str(self._directory / f"{_file_name(role)}{call_recorder.SUFFIX}"),
        }

    def failpoint_file(self, role: str) -> Path:
        return self._directory / f"{_file_name(role)}.arm"

    def kill_together(self, *roles: str) -> None:
        """When the first of these roles dies, kill the others."""
        self._kill_group = roles

    def _handle_role_exit(self, role: str) -> None:
        if role not in self._kill_group[:1]:
            return
        for other in self._kill_group[1:]:
            if (process := self._processes.get(other)) is not None and process.running:
                process.kill()


class ProcessEnv(ClusterEnv):
    cluster: RoleProcesses

    def _make_cluster(self) -> RoleProcesses:
        place = self.directory / "roles"
        place.mkdir(exist_ok=True)
        self._reader = call_recorder.CallRecordReader(place)
        return RoleProcesses(self._settings, self._user_drivers, place)

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._remove_survivor()
        finally:
            await super().__aexit__()

    def calls(self) -> list[CsiCall]:
        self.tap.calls += self._reader.read_new_calls(self.livelock.observe_call)
        return self.tap.calls

    async def request(self, work: Callable[[], Awaitable[R]]) -> R:
        """Send a request, and repeat it while the API server restarts."""
        return await retry(work, on=(Unavailable, Timeout), backoff=constant(PAUSE))

    async def until(self, kind: type[T], holds: Callable[[], object], what: str) -> None:
        """Watch until `holds()`, and read the recorded calls meanwhile."""
        async with background(self._read_calls()):
            await super().until(kind, holds, what)

    async def _read_calls(self) -> None:
        while True:
            await asyncio.sleep(READ_INTERVAL)
            self.calls()

    # --- kill

    def kill_at_failpoints(self, role: str, *places: str) -> None:
        """Kill the role at the first failpoint, and after its restart at the second."""
        file = self.cluster.failpoint_file(role)
        file.with_suffix(".new").write_text("\n".join(places))
        file.with_suffix(".new").rename(file)

    def failpoints_not_reached(self, role: str) -> list[str]:
        """The failpoints that the role has not reached yet."""
        try:
            return self.cluster.failpoint_file(role).read_text().split("\n")
        except FileNotFoundError:
            return []

    def _clear_backoff(self) -> None:
        """Do nothing: the backoff of another process cannot be cleared."""

    def _still_mounted(self, call: CsiCall) -> bool:
        return False  # the call ended a while ago; the mount may be a new one

    async def clean(self) -> list[str]:
        self.cluster.kill_together()
        if self.livelock.has_livelock:
            self._give_up_survivor()
        for role in (*CONTROL_PLANE, *(f"node/{m.name}" for m in self.cluster.members)):
            self.cluster.failpoint_file(role).unlink(missing_ok=True)
        try:
            return await super().clean()
        finally:
            self.calls()

    async def _start_anew(self) -> list[str]:
        self._survivor = None
        return await super()._start_anew()

    async def recover(self) -> None:
        """Kill drivers that hang."""
        self.cluster.kill_together()
        await super().recover()

    # --- a container that must survive all kills

    @asynccontextmanager
    async def survivor_pod(self, start: StartSurvivor) -> AsyncIterator[SurvivorPod]:
        """A running pod on worker-1 that has written data: one for all cases, until one fails.

        A failed case may have damaged it, so it is deleted with that case, and the next case creates another
        one.
        """
        if self._survivor is None:
            claim, pod, written = await start(self)
            self._known -= {(PersistentVolumeClaim, claim), (Pod, pod)}  # it must survive the case
            self._survivor = SurvivorPod(self, claim, pod, written)
        survivor = self._survivor
        try:
            if not survivor.was_seen:
                await survivor.check()
            yield survivor
        except BaseException:
            self._give_up_survivor()
            raise

    _survivor: SurvivorPod | None = None

    def _give_up_survivor(self) -> None:
        """Delete it with the case."""
        if self._survivor is not None:
            self._known |= {(PersistentVolumeClaim, self._survivor.claim), (Pod, self._survivor.pod)}
            self._survivor = None

    async def _remove_survivor(self) -> None:
        if self._survivor is None:
            return
        try:
            async with asyncio.timeout(REMOVE_TIMEOUT):
                await self.remove_pod(self._survivor.pod)
                await self.remove_claim(self._survivor.claim)
        except (CaseFailure, TimeoutError) as error:
            # The results are valid anyway; the machine is cleaned up by force.
            why = str(error) or f"not within {REMOVE_TIMEOUT:g} s: {self.waiting}"
            log.error("pod %s and its volume cannot be removed: %s", self._survivor.pod, why)


class SurvivorPod:
    def __init__(self, env: ProcessEnv, claim: str, pod: str, written: str) -> None:
        self._env, self.claim, self.pod, self.written = env, claim, pod, written
        self._process = ""

    @property
    def was_seen(self) -> bool:
        return bool(self._process)

    async def check(self) -> None:
        """Raise CaseFailure unless its container still runs as the same process."""
        pod = self._env.get_pod(self.pod)
        if pod is None:
            raise CaseFailure(f"pod {self.pod} is gone, and was not deleted")
        if self._env.runtime:
            now = await self._find_container(pod.uid)
        else:
            now = await self._env.cluster.host.call(self._find_process, pod.uid)
        if not now:
            raise CaseFailure(f"the container of pod {self.pod} ended with the node's process")
        if self.was_seen and self._process != now:
            raise CaseFailure(f"the container of pod {self.pod} was restarted: {now}")
        self._process = now

    async def _find_container(self, uid: str) -> str:
        """The runtime's id of the running container; "" if there is none."""
        cri = CriClient(self._env.runtime)
        wanted = {labels.POD_UID: uid, labels.CONTAINER_NAME: "main"}
        try:
            found = await cri.list_containers(wanted)
        finally:
            await cri.close()
        return next((each.id for each in found if each.state == v1.CONTAINER_RUNNING), "")

    def _find_process(self, uid: str) -> str:
        """The process with its start time; "" if it does not run."""
        for member in self._env.cluster.members:
            for record in records.load_all(str(member.root / "containers")):
                spec, started = record.started.spec, record.started
                if (spec.pod_uid, spec.name) == (uid, "main") and record.ending is None and record.is_alive:
                    return f"process {started.pid}, started at {started.pid_start}"
        return ""


def _file_name(role: str) -> str:
    return role.replace("/", "-")
