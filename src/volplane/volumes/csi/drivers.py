"""The CSI drivers that are registered on this node.

The plugin watcher registers them; volumes look them up. A driver's capabilities are read once per
registration: a driver whose capabilities change registers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from volplane.base import clock
from volplane.csi import v1
from volplane.csi.client import Caller
from volplane.csi.outcome import CallError, Code
from volplane.csi.services import METHODS
from volplane.loops.storage_metrics import observe_call
from volplane.volumes.base import TransientOperationError

Rpc = v1.NodeServiceCapability.RPC

TIMEOUT = 120.0  # seconds for each RPC
DIAL_TIMEOUT = 1.0  # seconds
REACHABLE_AFTER_ANSWER = 5.0


class RegisteredDriver:
    def __init__(
        self, name: str, channel: Caller, *, version: str = "", endpoint: str = "", timeout: float = TIMEOUT
    ) -> None:
        self.name, self.channel, self.version, self.endpoint = name, channel, version, endpoint
        self.timeout = timeout
        self.node_id = ""
        self.registered_at = clock.wall().timestamp()
        self.failure = ""  # why the last call or connection failed
        self._capabilities: frozenset[int] | None = None
        self._answered = float("-inf")
        self._asking = asyncio.Lock()

    async def capabilities(self) -> frozenset[int]:
        async with self._asking:
            if self._capabilities is None:
                request = v1.NodeGetCapabilitiesRequest()
                reply = await self.send("NodeGetCapabilities", request)
                self._capabilities = frozenset(c.rpc.type for c in reply.capabilities)
        return self._capabilities

    @property
    def capability_names(self) -> tuple[str, ...]:
        """The capabilities as far as the driver has been asked for them."""
        return tuple(sorted(map(Rpc.Type.Name, self._capabilities or ())))

    async def call(self, method: str, message: Message, subject: str = "") -> Any:
        try:
            reply = await self.send(method, message, subject)
        except CallError as error:
            self.failure = str(error) if error.code is Code.UNAVAILABLE else ""
            raise
        self._answered, self.failure = clock.now(), ""
        return reply

    async def send(self, method: str, message: Message, subject: str = "") -> Any:
        """Call the driver and observe how long it takes; `call` also notes whether it is reachable."""
        begun, code = clock.now(), Code.CANCELLED
        try:
            reply = await self.channel.call(method, message, timeout=self.timeout, subject=subject)
            code = Code.OK
        except CallError as error:
            code = error.code
            raise
        finally:
            observe_call(self.name, METHODS[method].path, code.go_name, clock.now() - begun)
        return reply

    async def is_reachable(self) -> bool:
        """Whether the driver accepts connections. Not checked again soon after an answer."""
        if clock.now() - self._answered < REACHABLE_AFTER_ANSWER:
            return True
        try:
            await self.channel.ready(DIAL_TIMEOUT)
        except TimeoutError:
            self.failure = f"does not answer on {self.endpoint}"
            return False
        self.failure = ""
        return True

    async def supports_staging(self) -> bool:
        return Rpc.STAGE_UNSTAGE_VOLUME in await self.capabilities()


class RegisteredDrivers:
    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._drivers: dict[str, RegisteredDriver] = {}
        self._listeners: list[Callable[[str], None]] = []

    def __getitem__(self, name: str) -> RegisteredDriver:
        try:
            return self._drivers[name]
        except KeyError:
            raise TransientOperationError(
                f"driver name {name} not found in the list of registered CSI drivers"
            ) from None

    def get(self, name: str) -> RegisteredDriver | None:
        return self._drivers.get(name)

    def __iter__(self) -> Iterator[RegisteredDriver]:
        return iter(list(self._drivers.values()))

    def add(self, driver: RegisteredDriver) -> None:
        self._drivers[driver.name] = driver
        self._notify(driver.name)

    def remove(self, name: str) -> RegisteredDriver | None:
        removed = self._drivers.pop(name, None)
        if removed is not None:
            self._notify(name)
        return removed

    def on_changed(self, listener: Callable[[str], None]) -> None:
        """Call the listener with the name of each driver that registers or is deregistered."""
        self._listeners.append(listener)

    def _notify(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
