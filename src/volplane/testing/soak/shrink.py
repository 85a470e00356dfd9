"""Make a failing life short: remove moments, calls and faults as long as it still fails (delta debugging)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from msgspec import json, structs

from volplane.testing.soak.steps import Fault, Life, Moment, Source, Step, VolumeKind

Fails = Callable[[Life], Awaitable[bool]]


async def shrink(life: Life, fails: Fails, is_over: Callable[[], bool] = lambda: False) -> Life:
    """The shortest life found that fails, too; `life` must fail. Ends when `is_over`, or nothing can go."""
    return await _Shrinker(fails, is_over).shrink(life)


class _Shrinker:
    def __init__(self, fails: Fails, is_over: Callable[[], bool]) -> None:
        self._fails, self._is_over = fails, is_over
        self._tried: set[bytes] = set()

    async def shrink(self, life: Life) -> Life:
        while True:
            before = life
            # Without timing a life fails always or never, and one rerun tells.
            life = await self._try_each(life, _without_timing)
            life = await self._remove_chunks(life)
            life = await self._try_each(life, _without_a_step)
            life = await self._try_each(life, _simpler)
            life = await self._try_each(life, _fewer_volumes)
            if life == before or self._is_over():
                return life

    async def _still_fails(self, life: Life) -> bool:
        key = json.encode(life)
        if self._is_over() or not life.moments or key in self._tried:
            return False
        self._tried.add(key)
        return await self._fails(life)

    async def _remove_chunks(self, life: Life) -> Life:
        """Remove moments: first large parts, then single ones, from the end."""
        size = max(1, len(life.moments) // 2)
        while True:
            end = len(life.moments)
            while end > 0:
                start = max(0, end - size)
                shorter = structs.replace(life, moments=life.moments[:start] + life.moments[end:])
                if await self._still_fails(shorter):
                    life = shorter
                end = start
            if size == 1:
                return life
            size //= 2

    async def _try_each(self, life: Life, variants: Callable[[Life], Iterator[Life]]) -> Life:
        """Replace the life by its first variant that fails, until none does."""
        while True:
            for variant in variants(life):
                if await self._still_fails(variant):
                    life = variant
                    break
            else:
                return life


def _without_timing(life: Life) -> Iterator[Life]:
    """One call after the other, and no faults."""
    single: tuple[Moment, ...] = tuple((step,) for step in life.steps())
    calm = tuple((structs.replace(step, fault=Fault.NONE, delay=0.0),) for step in life.steps())
    for moments in (calm, single):
        if moments != life.moments:
            yield structs.replace(life, moments=moments)


def _without_a_step(life: Life) -> Iterator[Life]:
    for at, moment in enumerate(life.moments):
        if len(moment) > 1:
            for number in range(len(moment)):
                yield _with_moment(life, at, moment[:number] + moment[number + 1 :])


def _simpler(life: Life) -> Iterator[Life]:
    for at, moment in enumerate(life.moments):
        for number, step in enumerate(moment):
            for easier in _simpler_steps(step):
                yield _with_moment(life, at, (*moment[:number], easier, *moment[number + 1 :]))
    for field in ("node", "target", "snapshot"):
        if any(getattr(step, field) for step in life.steps()):
            yield Life(
                life.volumes,
                tuple(tuple(structs.replace(step, **{field: 0}) for step in m) for m in life.moments),
            )
            # The other way round: 1 becomes 0, and 0 becomes 1, if that is simpler.
            turned = _turn_around(life, field)
            if _sum(turned, field) < _sum(life, field):
                yield turned
    if any(kind is not VolumeKind.MOUNT for kind in life.volumes):
        yield structs.replace(life, volumes=tuple(VolumeKind.MOUNT for _ in life.volumes))


def _turn_around(life: Life, field: str) -> Life:
    def turn(step: Step) -> Step:
        return structs.replace(step, **{field: 1 - min(1, getattr(step, field))})

    return Life(life.volumes, tuple(tuple(turn(step) for step in moment) for moment in life.moments))


def _sum(life: Life, field: str) -> int:
    return sum(getattr(step, field) for step in life.steps())


def _simpler_steps(step: Step) -> Iterator[Step]:
    """Each differs from the step in one point, and is simpler: no chain of them returns to the step."""
    if step.fault:
        yield structs.replace(step, fault=Fault.NONE, delay=0.0)
        if step.fault is Fault.KILL_DURING:
            yield structs.replace(step, fault=Fault.KILL_AFTER, delay=0.0)
    if step.source:
        yield structs.replace(step, source=Source.NONE, origin=0, snapshot=0)
    for field in ("node", "target", "snapshot"):
        if getattr(step, field):
            yield structs.replace(step, **{field: 0})
    if step.size > 2:
        yield structs.replace(step, size=2)


def _fewer_volumes(life: Life) -> Iterator[Life]:
    """Without a volume that no step names, or with one volume less."""
    used = {step.volume for step in life.steps()} | {s.origin for s in life.steps() if s.source}
    for gone in range(len(life.volumes)):
        if gone in used or len(life.volumes) == 1:
            continue

        def renumber(step: Step, gone: int = gone) -> Step:
            return structs.replace(
                step,
                volume=step.volume - (step.volume > gone),
                origin=step.origin - (step.origin > gone),
            )

        yield Life(
            life.volumes[:gone] + life.volumes[gone + 1 :],
            tuple(tuple(renumber(step) for step in moment) for moment in life.moments),
        )


def _with_moment(life: Life, at: int, moment: Moment) -> Life:
    return structs.replace(life, moments=(*life.moments[:at], moment, *life.moments[at + 1 :]))
