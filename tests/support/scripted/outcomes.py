"""Outcomes of scripted calls. Each applies to one call of its method."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.csi.outcome import Code

GATE_POLL = 0.01  # seconds between two checks for a gate file


class Fail(Struct, frozen=True, tag=True):
    """Fail with this code, without doing anything."""

    code: Code
    message: str = "as scripted"


class Lose(Struct, frozen=True, tag=True):
    """Do the work, but return this error."""

    code: Code = Code.DEADLINE_EXCEEDED
    message: str = "the reply was lost"


class Break(Struct, frozen=True, tag=True):
    """Do the work, then break the connection before the reply (in memory: UNAVAILABLE)."""


class Delay(Struct, frozen=True, tag=True):
    """Do the work after a delay."""

    seconds: float


class Hold(Struct, tag=True):
    """Do the work when released. The call sets `reached_event`. `gate` is a file, for another process."""

    gate: str = ""
    then: Fail | Lose | Break | None = None

    def __post_init__(self) -> None:
        if not self.gate:
            _EVENTS[id(self)] = (asyncio.Event(), asyncio.Event())

    @property
    def reached_event(self) -> asyncio.Event:
        return _EVENTS[id(self)][0]

    def release(self) -> None:
        if self.gate:
            Path(self.gate).touch()
        else:
            _EVENTS[id(self)][1].set()

    async def wait(self) -> None:
        if not self.gate:
            self.reached_event.set()
            await _EVENTS[id(self)][1].wait()
            return
        self._mark_reached()
        while not self._is_open():  # noqa: ASYNC110 (another process opens it)
            await asyncio.sleep(GATE_POLL)

    def _mark_reached(self) -> None:
        Path(f"{self.gate}.reached").touch()

    def _is_open(self) -> bool:
        return Path(self.gate).exists()

    @property
    def is_reached(self) -> bool:
        return Path(f"{self.gate}.reached").exists() if self.gate else self.reached_event.is_set()


# Structs that are sent as JSON have no events; those of this process are here.
_EVENTS: dict[int, tuple[asyncio.Event, asyncio.Event]] = {}

Outcome = Fail | Lose | Break | Delay | Hold
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(list[Outcome]).decode
