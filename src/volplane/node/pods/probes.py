"""Startup, readiness and liveness probes of one attempt of a container.

The startup probe runs alone until it has succeeded. Then the readiness probe sets whether the container is
ready, and the liveness probe kills it. `count_result` is pure: it counts equal results in a row against the
thresholds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum

from msgspec import Struct

from volplane.api.core import Container, Pod, Probe
from volplane.loops.events import EventRecorder
from volplane.node.pods.lifecycle_handlers import HandlerError, HandlerOutcome, Handlers

log = logging.getLogger(__name__)

LONGEST_TEXT = 1024


class ProbeType(StrEnum):
    STARTUP = "Startup"
    READINESS = "Readiness"
    LIVENESS = "Liveness"


class ProbeTally(Struct, frozen=True):
    """The last result, how often it came in a row, and the verdict by the thresholds."""

    verdict: bool | None = None  # None: no threshold reached yet
    last_result: bool = False
    repetitions: int = 0


def count_result(before: ProbeTally, ok: bool, *, successes: int, failures: int) -> ProbeTally:
    times = before.repetitions + 1 if before.repetitions and before.last_result == ok else 1
    counts = ok if times >= (successes if ok else failures) else before.verdict
    return ProbeTally(counts, ok, times)


class Prober:
    """The probes of one attempt: `run` ends after the last probe, or is cancelled with the attempt."""

    def __init__(
        self,
        container: Container,
        id: str,
        *,
        pod: Callable[[], Pod],
        handlers: Handlers,
        address: Callable[[], str],
        events: EventRecorder,
        started: Callable[[], None],
        ready: Callable[[bool], None],
        kill: Callable[[ProbeType, float | None], Awaitable[None]],
    ) -> None:
        self.container, self.id = container, id
        self._pod, self._handlers, self._address, self._events = pod, handlers, address, events
        self._started, self._ready, self._kill = started, ready, kill

    async def run(self, *, already_started: bool) -> None:
        container = self.container
        if container.startup_probe is not None and not already_started:
            if not await self._probe_until(ProbeType.STARTUP, container.startup_probe, settled=(True, False)):
                await self._kill_container(ProbeType.STARTUP, container.startup_probe)
                return
            self._started()
        async with asyncio.TaskGroup() as tasks:
            if container.readiness_probe is not None:
                tasks.create_task(self._watch_readiness(container.readiness_probe))
            if container.liveness_probe is not None:
                tasks.create_task(self._watch_liveness(container.liveness_probe))

    async def _watch_liveness(self, probe: Probe) -> None:
        await self._probe_until(ProbeType.LIVENESS, probe, settled=(False,))
        await self._kill_container(ProbeType.LIVENESS, probe)

    async def _watch_readiness(self, probe: Probe) -> None:
        await self._probe_until(ProbeType.READINESS, probe, settled=(), changed=self._ready)

    async def _kill_container(self, sort: ProbeType, probe: Probe) -> None:
        await self._kill(sort, probe.termination_grace_period_seconds)

    async def _probe_until(
        self,
        sort: ProbeType,
        probe: Probe,
        *,
        settled: tuple[bool, ...],
        changed: Callable[[bool], None] = lambda ok: None,
    ) -> bool:
        """Probe every period until the verdict is one of `settled`."""
        tally = ProbeTally()
        await asyncio.sleep(probe.initial_delay_seconds)
        while True:
            ok = await self._probe_once(sort, probe)
            before = tally.verdict
            if ok is not None:
                tally = count_result(
                    tally, ok, successes=probe.success_threshold or 1, failures=probe.failure_threshold or 3
                )
            if tally.verdict is not None and tally.verdict != before:
                changed(tally.verdict)
            if tally.verdict in settled and tally.verdict is not None:
                return tally.verdict
            await asyncio.sleep(probe.period_seconds or 10)

    async def _probe_once(self, sort: ProbeType, probe: Probe) -> bool | None:
        """The result; None if the probe could not be run, which counts neither as success nor as failure."""
        try:
            outcome = await self._handlers.run(
                probe, self.container, self.id, self._address(), probe.timeout_seconds or 1
            )
        except HandlerError as trouble:
            words = f"{sort} probe errored and resulted in unknown state: {trouble}"
            self._events.warning(self._pod(), "Unhealthy", words)
            return None
        if not outcome.ok:
            self._report_failure(sort, outcome)
        return outcome.ok

    def _report_failure(self, sort: ProbeType, outcome: HandlerOutcome) -> None:
        log.info("%s probe of container %s of pod %s failed", sort, self.container.name, self._pod().key)
        text = outcome.text[:LONGEST_TEXT]
        self._events.warning(self._pod(), "Unhealthy", f"{sort} probe failed: {text}")


def has_probes(container: Container) -> bool:
    probes = (container.startup_probe, container.readiness_probe, container.liveness_probe)
    return any(probe is not None for probe in probes)
