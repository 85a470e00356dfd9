"""Run a life against the driver's sockets, and check every answer, the data and the mounts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec import Struct, field

from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.call_audit import Inventory
from volplane.testing.cases.faults import take_inventory
from volplane.testing.driver_process import DriverStartError
from volplane.testing.soak import rules
from volplane.testing.soak.checks import LifeChecks
from volplane.testing.soak.concurrency import UNMOUNTS, keeps_target_busy, select_steps
from volplane.testing.soak.model import Answer, Limits, Model
from volplane.testing.soak.requests import LifeVolumes
from volplane.testing.soak.send import hits, send
from volplane.testing.soak.steps import WRITE, Fault, Life, Step
from volplane.testing.soak.violation import Rule, Violation, ViolationFound
from volplane.testing.socket_env import SocketEnv

LONGEST_TEARDOWN = 100  # calls
BUSY_MOUNT = frozenset({Code.INTERNAL, Code.UNKNOWN, Code.FAILED_PRECONDITION})  # for EBUSY
SETTLE_TRIES, SETTLE_PAUSE = 20, 0.1  # seconds; a device is released when the last process closes it


class Statistics(Struct):
    lives: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)  # by gRPC code; "unknown" without an answer
    faults: Counter[str] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)
    concurrent: int = 0  # moments with several calls
    left_out: int = 0  # steps that made no sense any more
    checks: int = 0  # of data


class TraceLine(Struct, frozen=True):
    moment: int
    step: str
    answer: str


class LifeRun:
    """One life on fresh volumes. Use it once."""

    def __init__(
        self,
        env: SocketEnv,
        life: Life,
        limits: Limits,
        *,
        name: str,
        timeout: float,
        statistics: Statistics,
        inventory: Inventory | None = None,
    ) -> None:
        """`inventory`: what exists now, if it is known."""
        self._env, self._life, self._timeout, self._statistics = env, life, timeout, statistics
        self.inventory = inventory  # after a life that left nothing: what exists then
        self.model = Model(life.volumes, limits)
        self.volumes = LifeVolumes(env, self.model, name)
        self.trace: list[TraceLine] = []
        self._checks = LifeChecks(env, self.model, self.volumes)
        self._random = Random(name)
        self._at = -1

    async def run(self) -> Violation | None:
        """Run the life to its end, then take everything down and look for leftovers."""
        try:
            before, self.inventory = self.inventory or await self._take_inventory(), None
            for at, moment in enumerate(self._life.moments):
                self._at = at
                await self._run_moment(moment)
            self._at = -1
            await self._verify_data()
            await self._take_down()
            await self._check_leftovers(before)
        except ViolationFound as found:
            return found.violation
        self._statistics.lives += 1
        return None

    async def _take_inventory(self) -> Inventory:
        try:
            return await take_inventory(self._env)
        except CallError as error:
            raise self._violation(Rule.ANSWER, "ListVolumes", f"between two lives: {error}") from None

    # --- moments

    async def _run_moment(self, moment: Sequence[Step]) -> None:
        steps = select_steps(self.model, moment)
        self._statistics.left_out += len(moment) - len(steps)
        self._count(steps)
        tasks = [asyncio.ensure_future(self._run_step(step, steps)) for step in steps]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answered = [(s, a) for s, a in zip(steps, answers, strict=True) if s.call != WRITE]
        for step, answer in answered:
            text = answer.code.name if answer.code is not None else "no answer"
            self._statistics.answers[text] += 1
            self.trace.append(TraceLine(self._at, str(step), f"{text} {answer.message[:200]}".strip()))
        await self._judge(answered)
        self.model.learn(answered)
        await self._checks.after(answered, self._at)
        self._statistics.checks += self._checks.take_count()

    async def _judge(self, answered: Sequence[tuple[Step, Answer]]) -> None:
        for instance in self._env.instances:
            if not instance.running:
                tail = instance.log_tail(1000)
                call = answered[0][0].call if answered else "Supervised Lifecycle Management"
                raise self._violation(Rule.CRASH, call, f"{instance.name} has ended: {tail or 'no output'}")
        if (wrong := rules.judge_moment(self.model, answered)) is None:
            return
        step, text = wrong
        code = next(answer.code for s, answer in answered if s is step)
        rule = {Code.UNAVAILABLE: Rule.CRASH, Code.DEADLINE_EXCEEDED: Rule.HANG}.get(
            code or Code.OK, Rule.ANSWER
        )
        raise self._violation(rule, step.call, text)

    async def _run_step(self, step: Step, all_steps: Sequence[Step]) -> Answer:
        if step.call == WRITE:
            await self._write(step)
            return Answer(Code.OK)
        remote, request = self.volumes.remote(step), self.volumes.request(step)
        self.volumes.note_request(step)
        disturbed = any(
            hits(other, self.volumes.remote(other).instance, remote.instance)
            for other in all_steps
            if other is not step
        )
        try:
            answer, reply = await send(
                remote,
                step,
                request,
                timeout=self._timeout,
                disturbed=disturbed,
                busy=self._busy_codes(step, all_steps),
            )
        except DriverStartError as error:
            raise self._violation(
                Rule.CRASH, "Supervised Lifecycle Management", f"the driver does not restart: {error}"
            ) from None
        if answer.code is Code.OK:
            self.volumes.note_answer(step, reply)
            self._check_ready(step, reply)
        return answer

    def _busy_codes(self, step: Step, all_steps: Sequence[Step]) -> frozenset[Code]:
        """Codes that every caller repeats: a disk may be busy for a moment after it was unmounted, and a
        mount while its statistics are read, or its file system is frozen for a copy.
        """
        busy = {Code.ABORTED}
        is_copied = step.call in UNMOUNTS and self.model.may_be_copied(step.volume)
        if is_copied or keeps_target_busy(step, all_steps):
            busy |= BUSY_MOUNT
        if step.call == "ControllerUnpublishVolume" and not self.model.used_on(step.volume, step.node):
            busy.add(Code.FAILED_PRECONDITION)
        return frozenset(busy) - rules.allowed_codes(self.model, step)

    def _check_ready(self, step: Step, reply: Any) -> None:
        if (
            isinstance(reply, v1.CreateSnapshotResponse)
            and not step.fault
            and not reply.snapshot.ready_to_use
        ):
            raise self._violation(Rule.HANG, step.call, f"{step}: not ready to use after 30 s")

    async def _write(self, step: Step) -> None:
        data = f"{self._life.volumes[step.volume]} {self._at} ".encode() + self._random.randbytes(8192)
        path = self.volumes.target(step.volume, step.node, step.target)
        try:
            async with self._env.file_lock:
                await self.volumes.volume(step.volume).write(path, data)
        except OSError as error:
            raise self._violation(
                Rule.MOUNT, "NodePublishVolume", f"{step}: {error.strerror} at a published target"
            ) from None
        self.trace.append(TraceLine(self._at, str(step), f"{len(data)} bytes"))
        self.model.wrote(step.volume, data)

    def _count(self, steps: Sequence[Step]) -> None:
        self._statistics.concurrent += len(steps) > 1
        for step in steps:
            self._statistics.calls[step.call] += 1
            if step.fault is not Fault.NONE:
                self._statistics.faults[step.fault] += 1
            if step.mistake:
                self._statistics.mistakes[step.mistake] += 1

    # --- the end

    async def _verify_data(self) -> None:
        """Take each volume with data off its nodes, bring it to one again, and read it."""
        for volume in self.model.volumes_with_data():
            for next_step in (self.model.next_removal_step, self.model.next_verify_step):
                for _ in range(LONGEST_TEARDOWN):
                    if (step := next_step(volume)) is None:
                        break
                    await self._run_moment((step,))

    async def _take_down(self) -> None:
        for _ in range(LONGEST_TEARDOWN):
            if (step := self.model.next_teardown_step()) is None:
                return
            await self._run_moment((step,))
        last = self.trace[-1]
        raise self._violation(Rule.LEFTOVER, "DeleteVolume", f"{last.step}: {last.answer}, again and again")

    async def _check_leftovers(self, before: Inventory) -> None:
        if self.model.abandoned:  # deleted while in use: what is left is the caller's mistake
            return
        for _ in range(SETTLE_TRIES):
            now = await self._take_inventory()
            left = list(now.leftovers_since(before))
            if not left:
                self.inventory = now
                return
            await asyncio.sleep(SETTLE_PAUSE)
        raise self._violation(Rule.LEFTOVER, left[0].section, left[0].what)

    async def clean(self) -> None:
        """Remove everything of the life in any state, without judging the answers."""
        for instance in self._env.instances:
            if not instance.running:
                await instance.start()
        self._env.volumes = self.volumes.with_unknown_ids()
        self._env.snapshots = list(self.model.snapshot_ids.values())
        await self._env.clean()
        self._env.not_removed.clear()  # the next life has a driver without a past
        await self._env.host.call(self.volumes.remove_directories)

    def _violation(self, rule: Rule, call: str, text: str) -> ViolationFound:
        return ViolationFound(Violation(rule, call, text, self._at))
