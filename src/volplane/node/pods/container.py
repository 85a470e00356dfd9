"""The loop of one container: starts it, watches it, restarts it by its policy, until it has exited for good.

The plan decides each step from the record, so it makes no difference whether the container was started by
this process or by an earlier one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, assert_never

from msgspec import structs

from volplane.api.core import Container, LifecycleHandler, Pod
from volplane.base import clock, trace
from volplane.base.backoff import Backoff, Failures
from volplane.loops.events import EventRecorder
from volplane.node.containers.base import (
    START_ERROR,
    ContainerError,
    ContainerRunState,
    ImageNotAllowed,
)
from volplane.node.containers.cri.images import ImageError, Images, LocalImage
from volplane.node.image_overrides import image_repository
from volplane.node.network import NetworkAttachment, NetworkProvider
from volplane.node.pods import plan
from volplane.node.pods.container_spec import ContainerSpecBuilder
from volplane.node.pods.environment import ContainerConfigError
from volplane.node.pods.lifecycle_handlers import HandlerError, Handlers
from volplane.node.pods.plan import (
    MAX_BACKOFF,
    ContainerFinished,
    CrashLoopBackoff,
    StartAttempt,
    WatchAttempt,
)
from volplane.node.pods.probes import Prober, ProbeType, has_probes
from volplane.node.pods.records import ContainerAttempt, ContainerRecord, ContainerWaiting
from volplane.node.pods.runtimes import Runtimes, container_id, find_own_command, make_attempt
from volplane.node.volume_manager.manager import MountedVolume
from volplane.rules.waits import Wait

log = logging.getLogger(__name__)

T = TypeVar("T")

START_RETRY = Backoff(1.0, 30.0)  # between attempts to create a container
DEFAULT_GRACE = 30.0
MIN_GRACE = 2.0  # seconds of grace left for the container, however long its preStop hook took
KEPT_ATTEMPTS = 2  # attempts whose files are kept: the current one and the one of `logs --previous`


class ContainerDeps:
    """What the containers of all pods share."""

    def __init__(
        self,
        runtimes: Runtimes,
        builder: ContainerSpecBuilder,
        events: EventRecorder,
        network: NetworkProvider,
        *,
        images: Images | None = None,
        longest_backoff: float = MAX_BACKOFF,
    ) -> None:
        """`images`: those of a container runtime; without, only built-in images and commands can run."""
        self.images = images
        self.runtimes, self.builder, self.events, self.network = runtimes, builder, events, network
        self.longest_backoff = longest_backoff
        self.handlers = Handlers(runtimes)


class ContainerLoop:
    def __init__(
        self,
        deps: ContainerDeps,
        container: Container,
        *,
        policy: str,
        pod: Callable[[], Pod],
        record: ContainerRecord,
        changed: Callable[[str, ContainerRecord], None],
        volumes: Callable[[], Awaitable[dict[str, MountedVolume]]],
        attachment: Callable[[], Awaitable[NetworkAttachment]],
    ) -> None:
        self.deps, self.container, self.policy = deps, container, policy
        self.record = record
        self.started = asyncio.Event()
        self._pod, self._changed, self._volumes, self._attachment = pod, changed, volumes, attachment
        self._backoff = CrashLoopBackoff(0.0, deps.longest_backoff)
        self._pre_stop_ran = False  # the preStop hook has been run
        self._unhealthy = False  # a failed probe stops it
        self._starting = ""  # the id of an attempt whose start is unfinished
        self._retry_after: float | None = None  # seconds before the next try, if a failed start tells

    @property
    def id(self) -> str:
        """The id of the current attempt."""
        assert self.record.current is not None
        return container_id(self._pod().uid, self.container.name, self.record.current.number)

    async def run(self) -> bool:
        """Run until it has exited for good; return whether it succeeded."""
        failures = Failures(START_RETRY)
        while True:
            step = plan.plan(self.policy, self.record.current, self._backoff, self._ended_for())
            match step:
                case ContainerFinished(succeeded):
                    return succeeded
                case WatchAttempt():
                    if self.record.started:
                        self.started.set()
                    await self._watch()
                case Wait():
                    self._report_backoff(step.message)
                    await asyncio.sleep(step.seconds)
                case StartAttempt(number):
                    if await self._start(number):
                        failures.reset()
                    else:
                        delay = failures.next_delay()
                        await asyncio.sleep(delay if self._retry_after is None else self._retry_after)
                case _:
                    assert_never(step)

    def _set(self, **fields: object) -> None:
        self.record = structs.replace(self.record, **fields)
        self._changed(self.container.name, self.record)

    def _ended_for(self) -> float:
        ended = self.record.current.finished_at if self.record.current else ""
        return (clock.wall() - clock.parse(ended)).total_seconds() if ended else float("inf")

    # --- start

    async def _start(self, number: int) -> bool:
        builtin = self.deps.runtimes.is_builtin(self.container)
        self._retry_after = None
        attachment = await self._attachment()
        pod = self._pod()
        try:
            await self.deps.builder.write_container_files(
                pod, self.container, attachment=attachment, attempt=number, builtin=builtin
            )
        except OSError as error:  # for example a full disk: retried
            return self._report_start_failure("CreateContainerError", "Failed", f"Error: {error}", str(error))
        volumes = await self._volumes()
        pod = self._pod()
        subject = f"pod/{pod.namespace}/{pod.name}"
        try:
            attrs = {"container": self.container.name, "node": pod.spec.node_name}
            with trace.span("kubelet", "StartContainer", subject, **attrs):
                await self._launch(pod, volumes, attachment, number, builtin=builtin)
        except ImageError as error:
            self._retry_after = error.retry_after
            return self._report_start_failure(error.reason, "Failed", f"Error: {error.reason}", str(error))
        except ContainerConfigError as error:
            return self._report_start_failure(error.reason, "Failed", f"Error: {error}", str(error))
        except (ContainerError, OSError) as error:
            reason = error.reason if isinstance(error, ContainerError) else ContainerError.reason
            return self._report_start_failure(reason, "Failed", f"Error: {error}", str(error))
        await self._remove_old_attempt(pod.uid, number)
        await self._post_start()
        return True

    async def _launch(
        self,
        pod: Pod,
        volumes: dict[str, MountedVolume],
        attachment: NetworkAttachment,
        number: int,
        *,
        builtin: bool,
    ) -> None:
        name = self.container.name
        if not builtin and self.deps.network.lacks_own_network(pod):
            raise ImageNotAllowed(
                f'container "{name}" would run in the network of the node: the other containers of the pod '
                f"are built-in images, so the pod has no network of its own, and it has no hostNetwork"
            )
        images = await self._get_volume_images(pod, builtin)
        image = await self._get_image(pod, builtin)
        building = self.deps.builder.build(
            pod,
            self.container,
            volumes,
            attachment,
            id=container_id(pod.uid, name, number),
            attempt=number,
            builtin=builtin,
            image=image,
            volume_images=images,
            recursive_readonly=self.deps.runtimes.has_recursive_readonly(pod.uid),
        )
        spec = await finish_uncancelled(building)
        self._starting = spec.id
        # if we are cancelled it continues, until `stop` cancels it
        state = await self.deps.runtimes.start(spec)
        self._starting = ""
        self._note_start(pod, state)

    async def _get_volume_images(self, pod: Pod, builtin: bool) -> dict[str, LocalImage]:
        """The images of its image volumes. Raises ImageError, ContainerError."""
        if self.deps.images is None or builtin:
            return {}
        return await self.deps.images.ensure_volumes(pod, self.container)

    async def _get_image(self, pod: Pod, builtin: bool) -> LocalImage | None:
        """The container's image on a node with a container runtime. Raises ImageError."""
        if self.deps.images is None or builtin:
            self._report_image(pod, builtin)
            return None
        return await self.deps.images.ensure(pod, self.container)

    def _report_image(self, pod: Pod, builtin: bool) -> None:
        name, image = self.container.name, self.container.image
        events = self.deps.events
        if builtin:
            events.normal(pod, "Pulled", f'Container image "{image}" is built into this node')
        elif (program := self.deps.builder.programs.get(image)) and not program.is_own_image:
            events.normal(pod, "Pulled", f'Container image "{image}" is {program.argv[0]} of this machine')
        elif find_own_command(self.container):
            events.normal(pod, "Pulled", f'Container image "{image}" is not used: {_HOST_ROOT}')
        else:
            events.warning(
                pod,
                "ImageNotAvailable",
                f'Image "{image}" of container {name} is not available on this node and the container has no '
                f"command: a pause process runs instead, so that the pod's volumes can be used",
            )

    def _note_start(self, pod: Pod, state: ContainerRunState) -> None:
        scheme = self.deps.runtimes.scheme(self.container)
        previous = self.record.current or self.record.previous
        if previous is not None:
            self._backoff = self._backoff.after_restart()
        started = state.running and self.container.startup_probe is None and self._hook("start") is None
        self._pre_stop_ran = self._unhealthy = False
        self._set(
            current=make_attempt(state, scheme),
            previous=previous,
            waiting=None,
            started=started,
            ready=started and self.container.readiness_probe is None,
        )
        name = self.container.name
        self.deps.events.normal(pod, "Created", f"Created container: {name}")
        if state.reason == START_ERROR:
            self.deps.events.warning(pod, "Failed", f"Error: {state.message}")
        else:
            self.deps.events.normal(pod, "Started", f"Started container {name}")

    def _report_start_failure(self, reason: str, event: str, message: str, why: str) -> bool:
        self.deps.events.warning(self._pod(), event, message)
        log.warning("container %s of pod %s: %s", self.container.name, self._pod().key, why)
        self._set(waiting=ContainerWaiting(reason, self.deps.events.rewrite(why)), ready=False)
        return False

    async def _remove_old_attempt(self, pod: str, number: int) -> None:
        old = number - KEPT_ATTEMPTS
        if old >= 0:
            await self.deps.runtimes.remove(container_id(pod, self.container.name, old))
            await self.deps.builder.remove_attempt_files(self._pod(), self.container.name, old)

    # --- hooks and probes

    def _hook(self, when: str) -> LifecycleHandler | None:
        lifecycle = self.container.lifecycle
        if lifecycle is None:
            return None
        return lifecycle.post_start if when == "start" else lifecycle.pre_stop

    async def _run_hook(self, hook: LifecycleHandler) -> bool:
        try:
            outcome = await self.deps.handlers.run(hook, self.container, self.id, self._address, None)
            ok, why = outcome.ok, outcome.text
        except HandlerError as trouble:
            ok, why = False, str(trouble)
        if not ok:  # logged and not in the event, because the text may contain secrets
            log.info("hook of container %s of pod %s: %s", self.container.name, self._pod().key, why)
        return ok

    async def _post_start(self) -> None:
        hook = self._hook("start")
        if hook is None or not self.record.running:
            return
        if await self._run_hook(hook):
            if self.container.startup_probe is None:
                self._mark_started()
            return
        self.deps.events.warning(self._pod(), "FailedPostStartHook", "PostStartHook failed")
        await self.stop(self._grace, "FailedPostStartHook")

    async def _pre_stop(self, grace: float) -> float:
        """Run the preStop hook and return the remaining grace period."""
        hook = self._hook("stop")
        if hook is None or self._pre_stop_ran or grace <= 0:
            return grace
        self._pre_stop_ran = True
        begun = clock.now()
        try:
            async with asyncio.timeout(grace):
                ok = await self._run_hook(hook)
        except TimeoutError:
            log.info("preStop hook of container %s took its whole grace period", self.container.name)
            ok = True
        if not ok:
            self.deps.events.warning(self._pod(), "FailedPreStopHook", "PreStopHook failed")
        return max(grace - (clock.now() - begun), MIN_GRACE)

    def _mark_started(self) -> None:
        self._set(started=True, ready=self.container.readiness_probe is None)
        self.started.set()

    def _mark_ready(self, ready: bool) -> None:
        if self.record.running and self.record.ready != ready:
            self._set(ready=ready)

    @property
    def _grace(self) -> float:
        seconds = self._pod().spec.termination_grace_period_seconds
        return DEFAULT_GRACE if seconds is None else float(seconds)

    @property
    def _address(self) -> str:
        return self.deps.network.address(self._pod().uid, self._find_probed_container())

    def _find_probed_container(self) -> Container:
        """The container that answers probes: for a driver it may be our livenessprobe, in this process."""
        probe = self.container.liveness_probe
        if probe is not None and probe.http_get is not None:
            for beside in self._pod().spec.containers:
                is_sidecar = image_repository(beside.image).endswith("/livenessprobe")
                if is_sidecar and self.deps.runtimes.is_builtin(beside):
                    return beside
        return self.container

    def _prober(self) -> Prober:
        return Prober(
            self.container,
            self.id,
            pod=self._pod,
            handlers=self.deps.handlers,
            address=lambda: self._address,
            events=self.deps.events,
            started=self._mark_started,
            ready=self._mark_ready,
            kill=self._kill,
        )

    async def _kill(self, sort: ProbeType, grace: float | None) -> None:
        self._unhealthy = self.policy != "Never"
        again = ", will be restarted" if self._unhealthy else ""
        words = f"Container {self.container.name} failed {sort.lower()} probe{again}"
        await self._stop_attempt(self._grace if grace is None else grace, words)

    # --- run and end

    async def _watch(self) -> None:
        probing = None
        if has_probes(self.container):
            await self._attachment()  # after a restart of the node its network must be joined again first
            probes = self._prober().run(already_started=self.record.started)
            probing = asyncio.create_task(probes, name=f"probes of {self.id}")
        try:
            state = await self.deps.runtimes.wait(self.id)
        except ContainerError:  # its files were removed from outside
            state = None
        finally:
            if probing is not None:
                probing.cancel()
                await asyncio.wait({probing})
                if not probing.cancelled() and (error := probing.exception()) is not None:
                    log.error("probes of container %s", self.container.name, exc_info=error)
        await self.note_end(state)

    async def note_end(self, state: ContainerRunState | None) -> None:
        """Record the exit of the current attempt."""
        current = self.record.current
        assert current is not None
        ended = await self._make_ended_attempt(current, state)
        self._backoff = self._backoff.after_run(_ran_for(ended))
        self._set(current=ended, ready=False, started=False)

    async def _make_ended_attempt(
        self, current: ContainerAttempt, state: ContainerRunState | None
    ) -> ContainerAttempt:
        if state is None:
            return structs.replace(
                current,
                running=False,
                exit_code=137,
                reason="ContainerStatusUnknown",
                finished_at=clock.stamp(),
            )
        ended = make_attempt(state, self.deps.runtimes.scheme(self.container))
        words = await self.deps.builder.read_termination_message(self._pod(), self.container, current.number)
        return structs.replace(ended, message=words or ended.message, unhealthy=self._unhealthy)

    def _report_backoff(self, why: str) -> None:
        pod, name = self._pod(), self.container.name
        full = f"{pod.name}_{pod.namespace}({pod.uid})"
        self.deps.events.warning(pod, "BackOff", f"Back-off restarting failed container {name} in pod {full}")
        self._set(waiting=ContainerWaiting("CrashLoopBackOff", f"{why}={name} pod={full}"), ready=False)

    async def stop(self, grace: float, words: str = "") -> None:
        """Stop it if it runs, and record its exit; cancel an unfinished start."""
        if self._starting:
            await self._cancel_start()
        if self.record.running:
            await self.note_end(
                await self._stop_attempt(grace, words or f"Stopping container {self.container.name}")
            )

    async def _cancel_start(self) -> None:
        state = await self.deps.runtimes.cancel_start(self._starting)
        self._starting = ""
        if state is not None:  # it was started before it could be cancelled
            previous = self.record.current or self.record.previous
            current = make_attempt(state, self.deps.runtimes.scheme(self.container))
            self._set(current=current, previous=previous, waiting=None)

    async def _stop_attempt(self, grace: float, words: str) -> ContainerRunState | None:
        pod = self._pod()
        self.deps.events.normal(pod, "Killing", words)
        subject = f"pod/{pod.namespace}/{pod.name}"
        grace = await self._pre_stop(grace)
        try:
            attrs = {"container": self.container.name, "node": pod.spec.node_name}
            with trace.span("kubelet", "StopContainer", subject, **attrs):
                return await self.deps.runtimes.stop(self.id, grace)
        except ContainerError as error:
            log.warning("container %s of pod %s: %s", self.container.name, self._pod().key, error)
            return None


_HOST_ROOT = "its command runs on this machine's files"


def _ran_for(attempt: ContainerAttempt) -> float:
    if not attempt.started_at or not attempt.finished_at:
        return 0.0
    return (clock.parse(attempt.finished_at) - clock.parse(attempt.started_at)).total_seconds()


async def finish_uncancelled(work: Awaitable[T]) -> T:
    """Await the work to its end even if we are cancelled, so that nothing half done is left."""
    task = asyncio.ensure_future(work)
    end: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            end = error
    if end is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # mark it as retrieved
    raise end
