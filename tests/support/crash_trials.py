"""A cluster of separate processes for many crash trials: a role is killed, and its supervisor restarts it.

For each trial the failpoint is written to the file of the role (`VOLPLANE_FAILPOINT_FILE`), a user runs the
whole lifecycle, and the machine and the stores are checked. After a failed trial the cluster is discarded.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from threading import Event

from msgspec import Struct

from tests.support import machine
from tests.support.crash import Audit, Outcome, Phase, Point, collect_logs, lasting_traces, remove
from tests.support.journey import PATIENCE, journey
from tests.support.up import Up

ROOT = Path(__file__).parents[2]
APART = (sys.executable, "-m", "tests.support.separate_drivers")


class Trial(Struct, frozen=True):
    name: str
    role: str = ""  # the role to kill; "": the first one that reaches the failpoint

    def __str__(self) -> str:
        return f"{self.role or 'up'}-{self.name}"


class TrialCluster:
    def __init__(self, *, apart: bool) -> None:
        """`apart`: the driver and its sidecars are separate processes, too."""
        self.apart = apart
        self.up: Up | None = None

    async def attempt(self, trial: Trial) -> Outcome:
        began = time.monotonic()
        up = self.up or await self._start()
        audit = Audit(up.directory)
        audit.skip()
        armed = self._arm(up, trial)
        problems: list[str] = []
        async with journey(up.directory) as user:
            try:
                await user.run()
                problems += await lasting_traces(up.directory, await user.pods())
                problems += audit.problems()
            except (Exception, asyncio.CancelledError) as error:
                problems.append(f"{user.step}: {type(error).__name__}: {error}")
        assert up.process is not None
        if (code := up.process.poll()) is not None:
            problems.append(f"the cluster ended with {code}")
        died = not armed.exists()
        armed.unlink(missing_ok=True)
        log = collect_logs(up) if problems else ""
        if problems:
            await self.discard()
        return Outcome(Point(Phase.JOURNEY, trial.name), [], time.monotonic() - began, died, problems, log)

    async def _start(self) -> Up:
        self.up = up = Up(nodes=2, program=APART) if self.apart else Up("--separate", nodes=2)
        (up.directory / "arm").mkdir()
        env = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} if self.apart else {}
        env |= {} if self.apart else {"VOLPLANE_FAILPOINT_FILE": str(up.directory / "arm" / "any")}
        up.start(env, wait=False)
        async with asyncio.timeout(2 * PATIENCE):
            while not up.is_ready():  # noqa: ASYNC110 (another process says so)
                await asyncio.sleep(0.02)
        return up

    def _arm(self, up: Up, trial: Trial) -> Path:
        file = up.directory / "arm" / (trial.role or "any")
        beside = file.with_suffix(".new")
        beside.write_text(trial.name)
        beside.rename(file)
        return file

    async def end(self) -> list[str]:
        """Stop cleanly; returns the leftovers."""
        if (up := self.up) is None:
            return []
        code = await asyncio.to_thread(up.stop)
        problems = [f"it stopped with {code}:\n{collect_logs(up)}"] if code else []
        if left := await asyncio.to_thread(machine.leftovers, up.directory):
            problems.append(f"after the stop: {left}")
        await self.discard()
        return problems

    async def discard(self) -> None:
        up, self.up = self.up, None
        if up is not None:
            await asyncio.to_thread(remove, up)


Results = dict[Trial, Future[Outcome]]


async def attempt_all(
    trials: Iterable[Trial], results: Results, stopping: Event, *, apart: bool
) -> list[str]:
    """Run the trials on one cluster, or a new one after a failure; returns the leftovers of the last stop."""
    standing = TrialCluster(apart=apart)
    try:
        for trial in trials:
            if stopping.is_set():
                break
            try:
                results[trial].set_result(await standing.attempt(trial))
            except Exception as error:
                results[trial].set_exception(error)
                await standing.discard()
        return await standing.end()
    finally:
        await standing.discard()
