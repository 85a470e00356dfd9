"""The worker of one pod: mounts its volumes, runs its containers, and stops all of it in reverse order.

A worker lives as long as its pod is known here. Other components rely on the order of the stop: the
containers exit, the status is written, the volumes are unmounted, and only when nothing is mounted any more
is the pod removed from the API. When the node itself stops (`suspend`), containers and mounts go but the API
is not changed, so that the next start finds the pod as it was and runs it again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from enum import StrEnum

from volplane.api.core import Container, Pod, PodCondition, PodStatus
from volplane.api.errors import APIError, Conflict
from volplane.base import clock, trace
from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.client.client import Client
from volplane.host import Host
from volplane.node.admission import PodAdmission
from volplane.node.containers.base import ContainerRunState
from volplane.node.network import NetworkAttachment, NetworkProvider, PodNetworkError
from volplane.node.pod_directories import remove_pod_directory
from volplane.node.pods import plan
from volplane.node.pods.container import ContainerDeps, ContainerLoop
from volplane.node.pods.records import (
    NO_RECORD,
    ContainerRecord,
    all_containers,
    ephemeral_containers,
    is_sidecar,
)
from volplane.node.pods.restart_recovery import MARKER, recover_records, write_marker
from volplane.node.pods.security_context import find_sandbox_problem
from volplane.node.pods.status import PodStatusInputs, make_pod_status
from volplane.node.pods.status_writer import PodStatusWriter
from volplane.node.volume_manager.manager import MountedVolume, VolumeManager
from volplane.rules import pods as rules
from volplane.rules.waits import Wait, WaitReason

log = logging.getLogger(__name__)

DEFAULT_GRACE = 30.0
FORCED_GRACE = 2.0
RETRY = Backoff(0.1, 10.0)
DELETE_TIMEOUT = 10.0
EVICTED_GRACE = 1.0  # seconds: a pod that fills the disk goes on doing so until it has exited
FLUSH_TIMEOUT = 5.0
OVER_LIMIT = "VolumeAttachmentLimitExceeded"
EVICTED = "Evicted"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


class StopReason(StrEnum):
    NO = "no"
    DELETED = "deleted"  # the pod is removed here and from the API
    SUSPENDED = "suspended"  # the node stops; the pod runs again when the node starts again


# Takes a pod's uid; returns why its volumes cannot be mounted on this node, "" if they still may be.
MountFailureCheck = Callable[[str], Awaitable[str]]


class PodDeps:
    """What the workers of all pods of a node share."""

    def __init__(
        self,
        client: Client,
        volumes: VolumeManager,
        containers: ContainerDeps,
        *,
        host_ip: str,
        mount_timeout: float,
        admission: PodAdmission,
        find_mount_failure: MountFailureCheck,
    ) -> None:
        self.client, self.volumes, self.containers, self.host_ip = client, volumes, containers, host_ip
        self.mount_timeout = mount_timeout  # seconds before `find_mount_failure` is called
        self.network: NetworkProvider = containers.network
        self.admission, self.find_mount_failure = admission, find_mount_failure
        # Attempts that the node itself stopped, by pod and container.
        self.interrupted: dict[str, dict[str, int]] = {}


class PodWorker:
    def __init__(self, shared: PodDeps, pod: Pod) -> None:
        self.deps, self.pod = shared, pod
        self.uid = pod.uid
        self.records: dict[str, ContainerRecord] = {}
        self.waiting: Wait | None = None
        self.since = 0.0  # when it began to wait
        self.done = False  # nothing of it is left on this node
        self._loops: dict[str, ContainerLoop] = {}
        self._ephemeral_tasks: tuple[asyncio.TaskGroup, list[asyncio.Task[bool]]] | None = None
        self._ephemeral_started: set[str] = set()  # ephemeral containers that have a loop
        self._stop_reason = StopReason.NO
        self._stop_requested = asyncio.Event()
        self._rejected = asyncio.Event()
        self._volumes_ready = asyncio.Event()
        self._network_ready = asyncio.Event()
        self._network: NetworkAttachment | None = None
        self._has_run = (
            False  # an earlier kubelet process has started its containers, whatever its status says
        )
        self._pids: list[int] = []  # of containers that an earlier kubelet process has started
        self.ended = asyncio.Event()  # its containers have exited for good
        self.unmounted = asyncio.Event()
        self._released_volumes: frozenset[str] = frozenset()
        self._evicted = self._forced = False
        self._longest_grace = math.inf  # seconds that a node that stops can wait
        self._deadline = 0.0  # of the stop in progress
        self._tasks: asyncio.TaskGroup | None = None
        self._reason = self._message = ""
        self._is_rejected = False
        self._started_at = pod.status.start_time or clock.stamp()
        self._status_writer = PodStatusWriter(shared.client, pod, self._status)
        shared.volumes.expect_pod(pod.uid)
        if pod.is_deleting:
            self.request_stop()

    def create_replacement(self) -> PodWorker:
        """A new worker for the same pod, after this one failed with an unexpected error."""
        fresh = PodWorker(self.deps, self.pod)
        if self._stop_reason is not StopReason.NO:
            fresh.request_stop(self._stop_reason)
        return fresh

    # --- changes from outside

    def update(self, pod: Pod) -> None:
        self.pod = pod
        self.deps.volumes.update_pod(pod)
        self._status_writer.observe(pod)
        self._start_ephemeral_containers()
        if pod.is_deleting:
            self.request_stop()
            self._shorten_grace()
        elif pod.spec.readiness_gates:
            self._status_writer.request_write()

    def request_stop(self, how: StopReason = StopReason.DELETED) -> None:
        if self._stop_reason is not StopReason.DELETED:
            self._stop_reason = how
            self._stop_requested.set()

    def request_suspend(self, longest_grace: float) -> None:
        """Stop, because the node stops: a longer grace period of the pod is cut short."""
        self._longest_grace = longest_grace
        self.request_stop(StopReason.SUSPENDED)
        self._shorten_grace()

    def force_delete(self) -> None:
        """The API no longer has the pod, so it was deleted by force: stop it with a short grace period."""
        self._forced = True
        self.request_stop()
        self._shorten_grace()

    def _shorten_grace(self) -> None:
        """A second delete may have shortened the grace period of the stop in progress."""
        if self._tasks is not None and self._deadline > clock.now() + self.grace:
            self._deadline = clock.now() + self.grace
            self._tasks.create_task(self._stop_containers(self.grace), name=f"end of pod {self.pod.key}")

    @property
    def may_be_evicted(self) -> bool:
        return not (self._reason or self._stop_requested.is_set() or self.ended.is_set())

    def evict(self, message: str) -> None:
        """Fail the pod with this message and stop it soon."""
        self._evicted = True
        self._fail(EVICTED, message, message)

    def _fail(self, reason: str, message: str, event: str) -> None:
        self._reason, self._message = reason, message
        self.deps.containers.events.warning(self.pod, reason, event)
        self._rejected.set()

    @property
    def grace(self) -> float:
        if self._evicted:
            return EVICTED_GRACE
        if self._forced:
            return FORCED_GRACE
        seconds = self.pod.metadata.deletion_grace_period_seconds
        if seconds is None:
            seconds = self.pod.spec.termination_grace_period_seconds
        return min(DEFAULT_GRACE if seconds is None else float(seconds), self._longest_grace)

    # --- running

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                writing = tasks.create_task(self._status_writer.run(), name=f"status of pod {self.pod.key}")
                await self._run()
                writing.cancel()
        finally:
            self._tasks = None
            self.deps.admission.pod_ended(self.uid)
        if self.done:  # break reference cycles, because the garbage collector runs rarely
            self._loops.clear()
            self._status_writer.discard()

    async def _run(self) -> None:
        await self._adopt()
        running = any(r.running for r in self.records.values())
        if running or not rules.has_ended(self.pod):
            if not self._stop_requested.is_set() and not self._reject():
                await self._run_until_stopped(self._run_until_deadline())
            if self._stop_reason is StopReason.SUSPENDED:
                return await self._suspend()
            self._set_waiting(WaitReason.STOPPING_CONTAINERS)
            await self._stop_containers(self.grace)
            self.deps.admission.pod_stopped(self.uid)
            self.ended.set()
            self._status_writer.request_write()
        await self._unmount(forget=True)
        self.unmounted.set()
        await self._stop_requested.wait()
        if self._stop_reason is StopReason.DELETED:
            await self._remove()

    def _reject(self) -> bool:
        """Whether the node rejects the pod. A pod that has run here is not checked again."""
        if self._has_run:
            self.deps.admission.pod_admitted(self.pod)
            return False
        reported = any(record.current is not None for record in self.records.values())
        begun = reported or self.pod.status.phase not in ("", "Pending")
        rejection = self.deps.admission.check(self.pod, begun=begun)
        if rejection is None:
            return False
        self._is_rejected = True
        self._fail(rejection.reason, f"Pod was rejected: {rejection.message}", rejection.message)
        log.warning("rejected pod %s: %s", self.pod.key, rejection.message)
        return True

    async def _run_until_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Run until the containers have finished, or until the pod is stopped or rejected."""
        running = asyncio.create_task(work, name=f"pod {self.pod.key}")
        ends = [asyncio.create_task(event.wait()) for event in (self._stop_requested, self._rejected)]
        try:
            await asyncio.wait({running, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, *ends):
                task.cancel()
            await asyncio.wait({running, *ends})
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error

    async def _adopt(self) -> None:
        states = await self._states()
        interrupted = self.deps.interrupted.get(self.uid, {})
        self._has_run = bool(states)
        self._pids = [state.pid for state in states if state.running and state.pid]
        self.records = recover_records(
            self.pod, states, interrupted, self.deps.containers.runtimes, clock.stamp()
        )
        init = {c.name for c in self.pod.spec.init_containers}
        for container in all_containers(self.pod):
            self._loops[container.name] = self._loop(container, init=container.name in init)

    async def _states(self) -> list[ContainerRunState]:
        runtimes = self.deps.containers.runtimes
        builtin = all(map(runtimes.is_builtin, all_containers(self.pod)))
        return await runtimes.states_of_pod(self.uid, builtin=builtin)

    def _loop(self, container: Container, *, init: bool) -> ContainerLoop:
        return ContainerLoop(
            self.deps.containers,
            container,
            policy=plan.policy_of(self.pod, container, init=init),
            pod=lambda: self.pod,
            record=self.records.get(container.name, NO_RECORD),
            changed=self._record_changed,
            volumes=self._await_volumes,
            attachment=self._await_network,
        )

    async def _run_until_deadline(self) -> None:
        self._status_writer.request_write(urgent=False)
        try:
            async with asyncio.timeout(self._time_left()):
                await self._run_containers()
        except TimeoutError:
            self._reason, self._message = "DeadlineExceeded", DEADLINE_MESSAGE
            self.deps.containers.events.warning(self.pod, "DeadlineExceeded", DEADLINE_MESSAGE)
        except asyncio.CancelledError as end:
            # The task group's frame and its exception refer to each other, and keep all of the pod's objects.
            raise end.with_traceback(None) from None

    def _time_left(self) -> float | None:
        limit = self.pod.spec.active_deadline_seconds
        if limit is None:
            return None
        return max(0.0, limit - (clock.wall() - clock.parse(self._started_at)).total_seconds())

    async def _run_containers(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(self._join_network(), name=f"network of pod {self.pod.key}")
            mounting = tasks.create_task(self._mount(), name=f"volumes of pod {self.pod.key}")
            others: list[asyncio.Task[bool]] = []
            self._ephemeral_tasks = (tasks, others)
            self._start_ephemeral_containers()
            try:
                if await self._initialize(tasks, others):
                    mains = [self._loops[c.name] for c in self.pod.spec.containers]
                    await asyncio.gather(*(tasks.create_task(loop.run()) for loop in mains))
            finally:
                self._ephemeral_tasks = None
                for task in (joining, mounting, *others):
                    task.cancel()

    def _start_ephemeral_containers(self) -> None:
        """Start ephemeral containers that were added to the pod; the pod does not wait for their exit."""
        if self._ephemeral_tasks is None:
            return
        tasks, others = self._ephemeral_tasks
        for container in ephemeral_containers(self.pod):
            if container.name not in self._ephemeral_started:
                self._ephemeral_started.add(container.name)
                loop = self._loops.setdefault(container.name, self._loop(container, init=False))
                others.append(tasks.create_task(loop.run(), name=f"debugger {container.name}"))

    async def _initialize(self, tasks: asyncio.TaskGroup, others: list[asyncio.Task[bool]]) -> bool:
        """Run the init containers in order; False if one has failed for good."""
        begun = any(self.records.get(c.name, NO_RECORD).current for c in self.pod.spec.containers)
        for container in self.pod.spec.init_containers:
            loop = self._loops[container.name]
            if is_sidecar(container):
                others.append(tasks.create_task(loop.run(), name=f"sidecar {container.name}"))
                await loop.started.wait()
            elif not begun and not await loop.run():
                return False
        return True

    async def _ensure_network(self) -> NetworkAttachment:
        """Join the pod's network, or find it joined; a sandbox that was lost is replaced."""

        def report(error: Exception) -> None:
            text = f"Failed to create pod sandbox: {error}"
            self.deps.containers.events.warning(self.pod, "FailedCreatePodSandBox", text)

        async def join() -> NetworkAttachment:
            if why := find_sandbox_problem(self.pod, as_processes=self._has_processes()):
                raise PodNetworkError(why)
            return await self.deps.network.join(self.pod, self._pids)

        self._network = await retry(join, on=PodNetworkError, backoff=RETRY, report=report)
        return self._network

    def _has_processes(self) -> bool:
        """Whether containers of the pod run as processes: neither built-in images nor in a runtime."""
        deps = self.deps.containers
        if deps.images is not None:
            return False
        own = (*self.pod.spec.init_containers, *self.pod.spec.containers)
        return not all(map(deps.runtimes.is_builtin, own))

    async def _join_network(self) -> None:
        await self._ensure_network()
        if self.deps.network.unavailable_reason and not self.pod.spec.host_network:
            why = f"{self.deps.network.unavailable_reason}: the pod shares the node's network"
            self.deps.containers.events.warning(self.pod, "PodNetworkUnavailable", why)
        self._network_ready.set()
        self._status_writer.request_write(urgent=False)

    async def _await_network(self) -> NetworkAttachment:
        await self._network_ready.wait()
        return await self._ensure_network()

    async def _mount(self) -> None:
        subject = f"pod/{self.pod.namespace}/{self.pod.name}"
        with trace.span("kubelet", "MountVolumes", subject, node=self.pod.spec.node_name):
            self._set_waiting(WaitReason.MOUNTING_VOLUMES)
            await self._mount_volumes()
            self._set_waiting(None)
        self._volumes_ready.set()
        self._status_writer.request_write(urgent=False)

    async def _mount_volumes(self) -> None:
        """Mount the volumes; after each timeout, fail the pod if they cannot be mounted at all."""
        while True:
            try:
                async with asyncio.timeout(self.deps.mount_timeout):
                    return await self.deps.volumes.wait_for_attach_and_mount(self.pod)
            except TimeoutError:
                if why := await self.deps.find_mount_failure(self.uid):
                    self._fail(OVER_LIMIT, why, why)

    async def _await_volumes(self) -> dict[str, MountedVolume]:
        await self._volumes_ready.wait()
        return self.deps.volumes.mounted_volumes(self.uid)

    # --- stopping

    async def _unmount(self, *, forget: bool) -> None:
        """`forget`: release the pod's address, too."""
        await self.deps.containers.runtimes.cancel_starts(self.uid)
        await self.deps.network.leave(self.uid, forget=forget)
        self._set_waiting(WaitReason.UNMOUNTING_VOLUMES)
        self._released_volumes = self.deps.volumes.release_pod(self.uid)
        await self.deps.volumes.wait_for_unmount(self.uid)
        self._set_waiting(None)

    async def _stop_containers(self, grace: float) -> None:
        """Stop sidecars after the other containers, in reverse order, because they serve the others."""
        self._deadline = deadline = clock.now() + grace
        others = [self._loops[c.name] for c in ephemeral_containers(self.pod) if c.name in self._loops]
        mains = [*(self._loops[c.name] for c in self.pod.spec.containers), *others]
        init = [self._loops[c.name] for c in self.pod.spec.init_containers]
        await asyncio.gather(*(loop.stop(grace) for loop in mains))
        for loop in reversed(init):
            await loop.stop(max(0.0, deadline - clock.now()))
        # Starts of an earlier kubelet process, which have no loop here.
        await self.deps.containers.runtimes.cancel_starts(self.uid)

    async def _remove(self) -> None:
        """Remove everything that is left of the pod, here and in the API, after the last unmount."""
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await self._status_writer.flush()
        except TimeoutError:
            log.warning("the last status of pod %s was not written", self.pod.key)
        self._set_waiting(WaitReason.UNMOUNTING_VOLUMES)
        await self.deps.volumes.wait_for_first_unstage(self._released_volumes)
        self._set_waiting(None)
        await self._delete()
        for state in await self._states():
            await self.deps.containers.runtimes.remove(state.id)
        paths = self.deps.volumes.context.paths
        if left := await remove_pod_directory(self._host, paths, self.uid):
            log.warning("%s", left)
        await self._host.call(_remove_logs, paths.real(paths.log_directory(*self._names)))
        self.deps.volumes.context.subpaths.discard(self.uid)
        if self.deps.containers.images is not None:
            self.deps.containers.images.forget_pod(self.uid)
        self.deps.interrupted.pop(self.uid, None)
        self.done = True

    async def _delete(self) -> None:
        async def delete() -> None:
            if self._status_writer.is_pod_gone:
                return
            with suppress(Conflict):  # the name belongs to another pod by now
                await self.deps.client.delete(
                    Pod, self.pod.name, self.pod.namespace, uid=self.uid, grace=0, missing_ok=True
                )

        await retry(
            delete,
            on=(APIError, TimeoutError),
            backoff=RETRY,
            report=lambda error: log.warning("pod %s was not removed from the API: %s", self.pod.key, error),
            timeout=DELETE_TIMEOUT,
        )

    async def _suspend(self) -> None:
        try:
            await self._host.call(write_marker, self._marker, self.records)
        except OSError as error:  # a full disk must not keep its containers running and its volumes mounted
            log.warning("pod %s: its containers will count as exited by themselves: %s", self.pod.key, error)
        self._set_waiting(WaitReason.STOPPING_CONTAINERS)
        await self._stop_containers(self.grace)
        await self._unmount(forget=False)

    # --- status

    def _set_waiting(self, reason: WaitReason | None) -> None:
        self.waiting = Wait(reason) if reason is not None else None
        self.since = clock.now()

    def _record_changed(self, name: str, record: ContainerRecord) -> None:
        self.records[name] = record
        if self._has_begun():
            self.deps.admission.pod_started(self.uid)
        if self._stop_reason is not StopReason.SUSPENDED:
            # The final status of a pod that stops follows soon.
            self._status_writer.request_write(urgent=self._stop_reason is StopReason.NO)

    def _has_begun(self) -> bool:
        return all(self.records.get(c.name, NO_RECORD).current for c in self.pod.spec.containers)

    def _status(self, before: Sequence[PodCondition]) -> PodStatus:
        inputs = PodStatusInputs(
            records=self.records,
            started_at=self._started_at,
            volumes_ready=self._volumes_ready.is_set() or any(r.running for r in self.records.values()),
            host_ip=self.deps.host_ip,
            pod_ip=self._address,
            ended=self.ended.is_set(),
            evicted=self._evicted,
            reason=self._reason,
            message=self._message,
            rejected=self._is_rejected,
            no_recursive_readonly=self._without_recursive_readonly(),
        )
        return make_pod_status(self.pod, inputs, clock.stamp(), before)

    def _without_recursive_readonly(self) -> frozenset[str]:
        runtimes = self.deps.containers.runtimes
        if runtimes.has_recursive_readonly(self.uid):
            return frozenset()
        return frozenset(c.name for c in all_containers(self.pod) if not runtimes.is_builtin(c))

    @property
    def _address(self) -> str:
        """The pod's address; a reported address stays after the pod has left its network."""
        if self._network is not None and self._network.namespace:
            return self._network.address
        shown = self.pod.status.pod_ip
        return shown or (self.deps.host_ip if any(r.current for r in self.records.values()) else "")

    # --- helpers

    @property
    def _host(self) -> Host:
        return self.deps.volumes.context.host

    @property
    def _names(self) -> tuple[str, str, str]:
        return self.pod.namespace, self.pod.name, self.uid

    @property
    def _marker(self) -> str:
        paths = self.deps.volumes.context.paths
        return paths.real(f"{paths.pod(self.uid)}/{MARKER}")


def _remove_logs(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
