"""A soak run: start the driver, run random lives until the time is over, shrink the first that fails."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets as random_names
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct, field

from volplane.base import clock
from volplane.base.tasks import cancel_and_wait
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver.model import ExternalDriver
from volplane.csi.outcome import CallError
from volplane.testing.call_audit import Inventory
from volplane.testing.capabilities import CAPABILITY_NAMES
from volplane.testing.case import NotSupported
from volplane.testing.cases.controller import list_all_volumes
from volplane.testing.driver_process import DriverProcess, DriverStartError
from volplane.testing.driver_run import class_parameters, secret_values, working_directory
from volplane.testing.runner import text_redactor
from volplane.testing.soak.executor import LifeRun, Statistics, TraceLine
from volplane.testing.soak.generator import Menu, generate
from volplane.testing.soak.model import Limits
from volplane.testing.soak.requests import expandable_kinds
from volplane.testing.soak.shrink import shrink
from volplane.testing.soak.steps import NEEDS, Life, VolumeKind
from volplane.testing.soak.violation import Violation
from volplane.testing.socket_env import BLOCK, SHARED, SocketEnv, mounts_below

SHRINK_TIMEOUT = 120.0  # seconds
TRIES = 5  # reruns of a life with timed faults or concurrency, which may pass by chance
CLEANUP_TIMEOUT = 60.0  # seconds
MAX_COPIES = 3  # of the driver, on several CPUs: the calls of more would wait for this process


class SoakSettings(Struct, frozen=True, kw_only=True):
    seconds: float = 60.0
    seed: int = 0
    skip: str = ""  # regular expression for names of calls, faults and mistakes
    timeout: float = 60.0  # seconds for one call
    shrink_seconds: float = SHRINK_TIMEOUT
    max_lives: int = 0  # 0: until the time is over
    copies: int = 0  # of the driver, each with its own volumes; 0: as many as this machine can keep busy


class SoakFailure(Struct):
    violation: Violation
    number: int  # of the life; 0 in a replay
    found: Life  # as it was generated
    life: Life  # as short as possible
    is_reproduced: bool
    reruns: int
    trace: list[TraceLine]
    logs: dict[str, str]


class SoakRun(Struct):
    driver: str = ""
    version: str = ""
    capabilities: list[str] = []
    seed: int = 0
    command: list[str] = []
    skip: str = ""
    started: str = ""
    seconds: float = 0.0
    statistics: Statistics = field(default_factory=Statistics)
    failure: SoakFailure | None = None
    complete: bool = False  # not interrupted


class SoakProgress(Struct):
    """Called during a run."""

    on_start: Callable[[SoakRun], None] = lambda run: None
    on_life: Callable[[SoakRun], None] = lambda run: None
    on_violation: Callable[[Violation, int], None] = lambda violation, number: None


async def soak(
    external: ExternalDriver,
    settings: SoakSettings,
    progress: SoakProgress,
    *,
    replay: Life | None = None,
    command: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
    nodes: int = 2,
    directory: Path | None = None,
    api_server: bool = False,
) -> SoakRun:
    """Run lives, or only `replay`. Raises CannotStart, DriverStartError, or CallError of an identity call."""
    given: dict[str, Any] = {
        "secrets": {**secret_values(external), **(secrets or {})},
        "parameters": {**class_parameters(external), **(parameters or {})},
        "api_server": api_server,
        "file_lock": asyncio.Lock(),
    }
    run = SoakRun(seed=settings.seed, command=list(command), skip=settings.skip, started=clock.stamp())
    count = 1 if replay is not None else settings.copies or (MAX_COPIES if (os.cpu_count() or 1) > 1 else 1)
    async with working_directory(directory) as place, AsyncExitStack() as stack:
        envs = [
            await stack.enter_async_context(
                SocketEnv(
                    external,
                    place / f"{copy + 1}",
                    seed=settings.seed,
                    nodes=nodes,
                    first_node=copy * nodes + 1,
                    **given,
                )
            )
            for copy in range(count)
        ]
        first = envs[0]
        menu = await read_menu(first, settings.skip)
        if await _see_each_other(envs):
            envs = [first]  # what one copy creates would be a leftover for the other
        soakers = [_Soaker(env, settings, run, menu, progress) for env in envs]
        run.driver, run.version = first.capabilities.name, first.capabilities.version
        run.capabilities = sorted(first.capabilities.all_names())
        progress.on_start(run)
        await (soakers[0].replay(replay) if replay is not None else _run_lives(soakers))
    run.complete = True
    return run


async def _see_each_other(envs: Sequence[SocketEnv]) -> bool:
    """Whether copies of the driver list each other's volumes: they have the same storage system."""
    if len(envs) < 2 or not envs[0].capabilities.has("list"):
        return False
    try:
        volume = await envs[0].create()
        return volume.id in await list_all_volumes(envs[1])
    finally:
        await envs[0].clean()


async def _run_lives(soakers: Sequence[_Soaker]) -> None:
    """Run lives on all copies until one fails; then only that copy goes on, to shorten it."""
    numbers = itertools.count(1)
    lives = [asyncio.ensure_future(soaker.run_lives(numbers)) for soaker in soakers]
    try:
        for ended in asyncio.as_completed(lives):
            if (shorten := await ended) is not None:
                break
        else:
            return
    finally:
        await cancel_and_wait(*lives)
    await shorten()


async def read_menu(env: SocketEnv, skip: str) -> Menu:
    """What lives may contain, by the driver's capabilities. Raises CannotStart."""
    if not env.capabilities.has("create"):
        raise CannotStart(f"--soak needs volumes that it can create: {CAPABILITY_NAMES['create']}")
    kinds = [VolumeKind.MOUNT]
    for kind, capability in ((VolumeKind.BLOCK, BLOCK), (VolumeKind.SHARED, SHARED)):
        if await env.supports(capability):
            kinds.append(kind)
    volume = await env.create()
    try:
        env.require_second_node(volume)
        usable = 2
    except NotSupported:
        usable = 1  # volumes stay on the first node
    finally:
        await env.clean()
    has = env.capabilities.has
    limits = Limits(
        attach=has("attach"),
        stage=has("stage"),
        online=has("expand-online"),
        nodes=usable,
        unit=env.size,
        volumes_per_node=env.nodes[0].most,
    )
    return Menu(
        limits,
        frozenset(call for call, needs in NEEDS.items() if all(map(has, needs))),
        tuple(kinds),
        has("clone"),
        skip,
        expandable_kinds() if has("expand-online") else frozenset(),
    )


class _Soaker:
    def __init__(
        self, env: SocketEnv, settings: SoakSettings, run: SoakRun, menu: Menu, progress: SoakProgress
    ) -> None:
        self._env, self._settings, self._run, self._menu = env, settings, run, menu
        self._progress, self._began = progress, time.monotonic()
        self._token = random_names.token_hex(4)  # names of this run, if volumes of another one are left
        self._attempts = 0
        self._inventory: Inventory | None = None  # after the last life, if nothing was changed since

    async def run_lives(self, numbers: Iterator[int]) -> Callable[[], Awaitable[None]] | None:
        """Run lives until the time is over, or one fails; returns how to shorten that."""
        while not self._has_failed() and time.monotonic() < self._began + self._settings.seconds:
            number = next(numbers)
            if 0 < self._settings.max_lives < number:
                break
            life = generate(Random(f"{self._settings.seed}/{number}"), self._menu)
            violation, _ = await self._live(life, self._run.statistics, number)
            self._run.seconds = time.monotonic() - self._began
            self._progress.on_life(self._run)
            if violation is not None and self._has_failed(number):
                return partial(self._shorten, violation, number, life)
        return None

    def _has_failed(self, number: int = 0) -> bool:
        """Whether a life, or the one with the number, was the first that failed."""
        failure = self._run.failure
        return failure is not None and number in (0, failure.number)

    async def replay(self, life: Life) -> None:
        """Run one life until it fails, a few times if it has timed faults."""
        for _ in range(tries_for(life)):
            violation, lived = await self._live(life, self._run.statistics)
            self._run.seconds = time.monotonic() - self._began
            if violation is not None:
                self._run.failure = self._failure(violation, 0, life, life, lived)
                return

    async def _live(
        self, life: Life, statistics: Statistics, number: int = 0
    ) -> tuple[Violation | None, tuple[LifeRun, dict[str, str]]]:
        """Run a life and clean up after it; the run, and the driver's logs if it has failed.

        A life with a number is one of the run, and the first failure of one is recorded.
        """
        self._attempts += 1
        name, marks = f"{self._token}-{self._attempts}", self._env.log_positions()
        run = LifeRun(
            self._env,
            life,
            self._menu.limits,
            name=name,
            timeout=self._settings.timeout,
            statistics=statistics,
            inventory=self._inventory,
        )
        self._inventory = None
        violation, clean, logs = None, False, {}
        try:
            violation = await run.run()
            clean = violation is None and not run.model.abandoned
            logs = self._env.logs(marks) if violation is not None else {}
            if violation is not None and number and self._run.failure is None:
                # Before the cleanup and the search, which may be interrupted.
                failure = self._failure(violation, number, life, life, (run, logs))
                self._run.failure, failure.is_reproduced = failure, False
                self._progress.on_violation(violation, number)
        finally:
            if clean:
                self._inventory = run.inventory
                await self._env.host.call(run.volumes.remove_directories)
            else:
                await self._clean_up(run, reset=violation is not None)
            for instance in self._env.instances:
                await instance.close_old_channels()
        return violation, (run, logs)

    async def _clean_up(self, run: LifeRun, *, reset: bool) -> None:
        with suppress(TimeoutError, CallError, DriverStartError, OSError):
            async with asyncio.timeout(CLEANUP_TIMEOUT):
                await run.clean()
        if reset:
            await self._reset()

    async def _reset(self) -> None:
        """A driver without a past, so that a failure has its cause in its own life."""
        env = self._env
        for instance in env.instances:
            await instance.kill()
        await env.force_unmount()
        for device in await env.host.loops_below(str(env.directory)):
            with suppress(OSError):
                await env.host.loop_detach(device)
        shared = env.directory / "shared"
        if not mounts_below(str(shared)):
            await env.host.call(shutil.rmtree, shared, True)
        for instance in env.instances:
            await instance.delete_state()
            await env.host.call(Path(instance.socket).unlink, missing_ok=True)
        await asyncio.gather(*(self._start(instance) for instance in env.instances))

    async def _start(self, instance: DriverProcess) -> None:
        # The reruns report a driver that does not start: the violation that was found is not lost.
        with suppress(DriverStartError):
            await instance.start()

    # --- shrink

    async def _shorten(self, violation: Violation, number: int, life: Life) -> None:
        """Search for a shorter life that fails in the same way."""
        assert self._run.failure is not None
        failure = self._run.failure
        last_moment = violation.moment if violation.moment >= 0 else len(life.moments)
        shorter = Life(life.volumes, life.moments[: last_moment + 1])
        end = time.monotonic() + self._settings.shrink_seconds

        async def fails(candidate: Life) -> bool:
            nonlocal failure
            for _ in range(tries_for(candidate)):
                found, again = await self._live(candidate, Statistics())
                failure.reruns += 1
                if violation.is_like(found):
                    assert found is not None
                    reruns = failure.reruns
                    failure = self._failure(found, number, life, candidate, again, reruns=reruns)
                    self._run.failure = failure
                    return True
                if time.monotonic() > end:
                    break
            return False

        if await fails(shorter):
            await shrink(shorter, fails, lambda: time.monotonic() > end)
        self._run.seconds = time.monotonic() - self._began

    def _failure(
        self,
        violation: Violation,
        number: int,
        found: Life,
        life: Life,
        lived: tuple[LifeRun, dict[str, str]],
        *,
        reruns: int = 0,
    ) -> SoakFailure:
        redact = text_redactor(self._env.secrets.values())
        run, logs = lived
        return SoakFailure(
            Violation(violation.rule, violation.call, redact(violation.text), violation.moment),
            number,
            found,
            life,
            True,
            reruns,
            [TraceLine(line.moment, line.step, redact(line.answer)) for line in run.trace],
            {name: redact(text) for name, text in logs.items()},
        )


def tries_for(life: Life) -> int:
    """How often a life is rerun before it counts as passed."""
    timed = any(step.delay for step in life.steps()) or any(len(m) > 1 for m in life.moments)
    return TRIES if timed else 1
