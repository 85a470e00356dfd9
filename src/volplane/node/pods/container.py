"""One container of a pod: started, watched, restarted by its policy, until it has ended for good.

The loop asks the plan what comes next, so that it makes no difference whether the container was started a
moment ago or by an earlier life of this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, assert_never

from msgspec import structs

from volplane.api.core import Container, LifecycleHandler, Pod
from volplane.base import clock, trace
from volplane.loops.events import Recorder
from volplane.node.containers.base import ContainerError, State
from volplane.node.manager import Mounted
from volplane.node.network import Place, PodNetwork
from volplane.node.pods import plan
from volplane.node.pods.building import Builder
from volplane.node.pods.environment import ConfigError
from volplane.node.pods.handlers import Handlers, Trouble
from volplane.node.pods.plan import LONGEST_BACKOFF, Backoff, Finished, Start, Watch
from volplane.node.pods.probes import Prober, Sort, has_probes
from volplane.node.pods.records import Attempt, Record, Waiting
from volplane.node.pods.runtimes import Runtimes, attempt_of, container_id, own_command
from volplane.node.programs import repository
from volplane.rules.steps import Wait

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # between attempts to make a container that cannot be made yet
DEFAULT_GRACE = 30.0
LEAST_GRACE = 2.0  # seconds that a container has to end however long its hook took
KEPT = 2  # attempts whose files stay: the current one and the one that `logs --previous` shows


class Kit:
    """What containers of all pods share."""

    def __init__(
        self,
        runtimes: Runtimes,
        builder: Builder,
        events: Recorder,
        network: PodNetwork,
        *,
        longest_backoff: float = LONGEST_BACKOFF,
    ) -> None:
        self.runtimes, self.builder, self.events, self.network = runtimes, builder, events, network
        self.longest_backoff = longest_backoff
        self.handlers = Handlers(runtimes)


class ContainerLoop:
    def __init__(
        self,
        kit: Kit,
        container: Container,
        *,
        policy: str,
        pod: Callable[[], Pod],
        record: Record,
        changed: Callable[[str, Record], None],
        volumes: Callable[[], Awaitable[dict[str, Mounted]]],
        place: Callable[[], Awaitable[Place]],
    ) -> None:
        self.kit, self.container, self.policy = kit, container, policy
        self.record = record
        self.started = asyncio.Event()
        self._pod, self._changed, self._volumes, self._place = pod, changed, volumes, place
        self._backoff = Backoff(0.0, kit.longest_backoff)
        self._asked = False  # its hook has been told that the end is near
        self._unhealthy = False  # a probe has decided that it is to end
        self._starting = ""  # the id of an attempt whose start has begun and was not seen to succeed

    @property
    def id(self) -> str:
        """Of the attempt that exists."""
        assert self.record.current is not None
        return container_id(self._pod().uid, self.container.name, self.record.current.number)

    async def run(self) -> bool:
        """Until it has ended for good; whether it succeeded."""
        pause = FIRST_PAUSE
        while True:
            step = plan.plan(self.policy, self.record.current, self._backoff, self._ended_for())
            match step:
                case Finished(succeeded):
                    return succeeded
                case Watch():
                    if self.record.started:
                        self.started.set()
                    await self._watch()
                case Wait(seconds, why):
                    self._hold_back(why)
                    await asyncio.sleep(seconds)
                case Start(number):
                    if await self._start(number):
                        pause = FIRST_PAUSE
                    else:
                        await asyncio.sleep(pause)
                        pause = min(pause * 2, LONGEST_PAUSE)
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
        builtin = self.kit.runtimes.is_builtin(self.container)
        place = await self._place()
        pod = self._pod()
        await self.kit.builder.furnish(pod, self.container, place=place, attempt=number, builtin=builtin)
        volumes = await self._volumes()
        pod = self._pod()
        subject = f"pod/{pod.namespace}/{pod.name}"
        try:
            with trace.span("kubelet", "StartContainer", subject, container=self.container.name):
                await self._launch(pod, volumes, place, number, builtin=builtin)
        except ConfigError as error:
            return self._cannot("CreateContainerConfigError", "Failed", f"Error: {error}", str(error))
        except (ContainerError, OSError) as error:
            return self._cannot("RunContainerError", "Failed", f"Error: {error}", str(error))
        await self._forget_old(pod.uid, number)
        await self._post_start()
        return True

    async def _launch(
        self, pod: Pod, volumes: dict[str, Mounted], place: Place, number: int, *, builtin: bool
    ) -> None:
        name = self.container.name
        self._tell_image(pod, builtin)
        building = self.kit.builder.build(
            pod,
            self.container,
            volumes,
            place,
            id=container_id(pod.uid, name, number),
            attempt=number,
            builtin=builtin,
        )
        spec = await finished(building)
        self._starting = spec.id
        state = await self.kit.runtimes.start(spec)  # goes on when we are cancelled, until `stop` ends it
        self._starting = ""
        self._note_start(pod, state)

    def _tell_image(self, pod: Pod, builtin: bool) -> None:
        name, image = self.container.name, self.container.image
        events = self.kit.events
        if builtin:
            events.normal(pod, "Pulled", f'Container image "{image}" is built into this node')
        elif program := self.kit.builder.programs.get(image):
            events.normal(pod, "Pulled", f'Container image "{image}" is {program.argv[0]} of this machine')
        elif own_command(self.container):
            events.normal(pod, "Pulled", f'Container image "{image}" is not used: {_HOST_ROOT}')
        else:
            events.warning(
                pod,
                "ImageNotAvailable",
                f'Image "{image}" of container {name} is not available on this node and the container has no '
                f"command: a pause process runs in its place, so that the pod's volumes can be used",
            )

    def _note_start(self, pod: Pod, state: State) -> None:
        scheme = self.kit.runtimes.scheme(self.container)
        previous = self.record.current or self.record.previous
        if previous is not None:
            self._backoff = self._backoff.restarted()
        started = state.running and self.container.startup_probe is None and self._hook("start") is None
        self._asked = self._unhealthy = False
        self._set(
            current=attempt_of(state, scheme),
            previous=previous,
            waiting=None,
            started=started,
            ready=started and self.container.readiness_probe is None,
        )
        name = self.container.name
        self.kit.events.normal(pod, "Created", f"Created container: {name}")
        self.kit.events.normal(pod, "Started", f"Started container {name}")

    def _cannot(self, reason: str, event: str, message: str, why: str) -> bool:
        self.kit.events.warning(self._pod(), event, message)
        log.warning("container %s of pod %s: %s", self.container.name, self._pod().key, why)
        self._set(waiting=Waiting(reason, why), ready=False)
        return False

    async def _forget_old(self, pod: str, number: int) -> None:
        old = number - KEPT
        if old >= 0:
            await self.kit.runtimes.remove(container_id(pod, self.container.name, old))
            await self.kit.builder.forget_files(self._pod(), self.container.name, old)

    # --- hooks and probes

    def _hook(self, when: str) -> LifecycleHandler | None:
        lifecycle = self.container.lifecycle
        if lifecycle is None:
            return None
        return lifecycle.post_start if when == "start" else lifecycle.pre_stop

    async def _ran(self, hook: LifecycleHandler) -> bool:
        try:
            outcome = await self.kit.handlers.run(hook, self.container, self.id, self._address, None)
            ok, why = outcome.ok, outcome.text
        except Trouble as trouble:
            ok, why = False, str(trouble)
        if not ok:  # the text may hold what is nobody's business, so that it is not in the event
            log.info("hook of container %s of pod %s: %s", self.container.name, self._pod().key, why)
        return ok

    async def _post_start(self) -> None:
        hook = self._hook("start")
        if hook is None or not self.record.running:
            return
        if await self._ran(hook):
            if self.container.startup_probe is None:
                self._is_started()
            return
        self.kit.events.warning(self._pod(), "FailedPostStartHook", "PostStartHook failed")
        await self.stop(self._grace, "FailedPostStartHook")

    async def _pre_stop(self, grace: float) -> float:
        """What is left of the grace."""
        hook = self._hook("stop")
        if hook is None or self._asked or grace <= 0:
            return grace
        self._asked = True
        begun = clock.now()
        try:
            async with asyncio.timeout(grace):
                ok = await self._ran(hook)
        except TimeoutError:
            log.info("hook of container %s took all of its grace", self.container.name)
            ok = True
        if not ok:
            self.kit.events.warning(self._pod(), "FailedPreStopHook", "PreStopHook failed")
        return max(grace - (clock.now() - begun), LEAST_GRACE)

    def _is_started(self) -> None:
        self._set(started=True, ready=self.container.readiness_probe is None)
        self.started.set()

    def _is_ready(self, ready: bool) -> None:
        if self.record.running and self.record.ready != ready:
            self._set(ready=ready)

    @property
    def _grace(self) -> float:
        asked = self._pod().spec.termination_grace_period_seconds
        return DEFAULT_GRACE if asked is None else float(asked)

    @property
    def _address(self) -> str:
        return self.kit.network.address(self._pod().uid, self._answering())

    def _answering(self) -> Container:
        """The container that answers probes: a driver has a sidecar for it, and ours is in this process."""
        probe = self.container.liveness_probe
        if probe is not None and probe.http_get is not None:
            for beside in self._pod().spec.containers:
                is_sidecar = repository(beside.image).endswith("/livenessprobe")
                if is_sidecar and self.kit.runtimes.is_builtin(beside):
                    return beside
        return self.container

    def _prober(self) -> Prober:
        return Prober(
            self.container,
            self.id,
            pod=self._pod,
            handlers=self.kit.handlers,
            address=lambda: self._address,
            events=self.kit.events,
            started=self._is_started,
            ready=self._is_ready,
            kill=self._kill,
        )

    async def _kill(self, sort: Sort, grace: float | None) -> None:
        self._unhealthy = self.policy != "Never"
        again = ", will be restarted" if self._unhealthy else ""
        words = f"Container {self.container.name} failed {sort.lower()} probe{again}"
        await self._end(self._grace if grace is None else grace, words)

    # --- run and end

    async def _watch(self) -> None:
        probing = None
        if has_probes(self.container):
            await self._place()  # after a restart of the node the way to it has to be found again
            probes = self._prober().run(already_started=self.record.started)
            probing = asyncio.create_task(probes, name=f"probes of {self.id}")
        try:
            state = await self.kit.runtimes.wait(self.id)
        except ContainerError:  # its files were removed behind our back
            state = None
        finally:
            if probing is not None:
                probing.cancel()
                await asyncio.wait({probing})
                if not probing.cancelled() and (error := probing.exception()) is not None:
                    log.error("probes of container %s", self.container.name, exc_info=error)
        await self.note_end(state)

    async def note_end(self, state: State | None) -> None:
        """Take the end over into the record; also used by whoever stops the container."""
        current = self.record.current
        assert current is not None
        ended = await self._end_of(current, state)
        self._backoff = self._backoff.ran(_ran_for(ended))
        self._set(current=ended, ready=False, started=False)

    async def _end_of(self, current: Attempt, state: State | None) -> Attempt:
        if state is None:
            return structs.replace(
                current,
                running=False,
                exit_code=137,
                reason="ContainerStatusUnknown",
                finished_at=clock.stamp(),
            )
        ended = attempt_of(state, self.kit.runtimes.scheme(self.container))
        words = await self.kit.builder.message(self._pod(), self.container, current.number)
        return structs.replace(ended, message=words or ended.message, unhealthy=self._unhealthy)

    def _hold_back(self, why: str) -> None:
        pod, name = self._pod(), self.container.name
        full = f"{pod.name}_{pod.namespace}({pod.uid})"
        self.kit.events.warning(pod, "BackOff", f"Back-off restarting failed container {name} in pod {full}")
        self._set(waiting=Waiting("CrashLoopBackOff", f"{why}={name} pod={full}"), ready=False)

    async def stop(self, grace: float, words: str = "") -> None:
        """End it if it runs, and know how it ended; a start that is under way is ended, too."""
        if self._starting:
            await self._cancel_start()
        if self.record.running:
            await self.note_end(await self._end(grace, words or f"Stopping container {self.container.name}"))

    async def _cancel_start(self) -> None:
        state = await self.kit.runtimes.cancel_start(self._starting)
        self._starting = ""
        if state is not None:  # it was quicker than we
            previous = self.record.current or self.record.previous
            current = attempt_of(state, self.kit.runtimes.scheme(self.container))
            self._set(current=current, previous=previous, waiting=None)

    async def _end(self, grace: float, words: str) -> State | None:
        pod = self._pod()
        self.kit.events.normal(pod, "Killing", words)
        subject = f"pod/{pod.namespace}/{pod.name}"
        grace = await self._pre_stop(grace)
        try:
            with trace.span("kubelet", "StopContainer", subject, container=self.container.name):
                return await self.kit.runtimes.stop(self.id, grace)
        except ContainerError as error:
            log.warning("container %s of pod %s: %s", self.container.name, self._pod().key, error)
            return None


_HOST_ROOT = "its command runs over this machine's own files"


def _ran_for(attempt: Attempt) -> float:
    if not attempt.started_at or not attempt.finished_at:
        return 0.0
    return (clock.parse(attempt.finished_at) - clock.parse(attempt.started_at)).total_seconds()


async def finished(work: Awaitable[T]) -> T:
    """To the end however often we are cancelled: what is half done would belong to nobody."""
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
        task.exception()  # nobody wants it any more
    raise end
