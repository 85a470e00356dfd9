"""Dispatches requests to the methods of a driver: checks, locks, logs, metrics, errors.

A method runs in a task of its own and is not cancelled when the caller's deadline passes: mkfs must not be
interrupted. It keeps its lock; an equal call waits for it and gets its reply, any other call for the volume
gets ABORTED.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message

from volplane.base import failpoint, metrics, trace
from volplane.base.tasks import KeyedTasks, cancel_and_wait, ignore_error
from volplane.csi import redact, v1
from volplane.csi.client import subject_of
from volplane.csi.outcome import CallError, Code
from volplane.sdk import locks, validation
from volplane.sdk.capabilities import ServedCapabilities, snake_case
from volplane.sdk.driver import Driver
from volplane.sdk.errors import Aborted, Internal, Unavailable

log = logging.getLogger(__name__)

_seconds = metrics.histogram(
    "csi_plugin_operations_seconds",
    "Container Storage Interface operation duration with gRPC error code status total",
    ("driver_name", "method_name", "grpc_status_code"),
)


class Dispatcher:
    def __init__(self, driver: Driver) -> None:
        self.driver, self.offer = driver, ServedCapabilities(driver)
        self._locks = locks.VolumeLocks()
        self._running: KeyedTasks[tuple[str, bytes], Message] = KeyedTasks(ignore_error)
        self._closing = False
        self._methods = self._build()

    @property
    def methods(self) -> Mapping[str, Callable[[Any], Any]]:
        """All methods that the driver serves, with those for identity and capabilities."""
        return self._methods

    def _build(self) -> dict[str, Callable[[Any], Any]]:
        found: dict[str, Callable[[Any], Any]] = {
            "GetPluginInfo": self._plugin_info,
            "GetPluginCapabilities": _constant_reply(self.offer.plugin),
            "Probe": self._probe,
        }
        fixed = [
            ("Controller", "ControllerGetCapabilities", self.offer.controller),
            ("GroupController", "GroupControllerGetCapabilities", self.offer.group),
            ("Node", "NodeGetCapabilities", self.offer.node),
        ]
        found |= {name: _constant_reply(make) for service, name, make in fixed if self.offer.serves(service)}
        return found | {m: getattr(self.driver, snake_case(m)) for m in self.offer.methods}

    async def unary(self, method: str, request: Message) -> Message:
        """The reply. Raises CallError and nothing else."""
        started = time.perf_counter()
        code = Code.CANCELLED
        try:
            reply = await self._answer(method, request)
            code = Code.OK
            return reply
        except CallError as error:
            code = error.code
            raise
        finally:
            label = _seconds.labels(self.driver.name, method, code.go_name)
            label.observe(time.perf_counter() - started)

    async def stream(self, method: str, request: Message) -> AsyncGenerator[Message]:
        """The replies one by one. The driver's generator is closed when the caller leaves."""
        started, code = time.perf_counter(), Code.CANCELLED
        try:
            if self._closing:
                raise Unavailable(f"{self.driver.name} is shutting down")
            validation.check(method, request)
            log.info("%s: called args=%s", method, redact.text(request))
            async with aclosing(self._methods[method](request)) as replies:
                async for reply in replies:
                    yield reply
            code = Code.OK
        except CallError as error:
            code = error.code
            log.error("%s: %s", method, error)
            raise
        except Exception as error:
            code = Code.INTERNAL
            log.exception("%s failed", method)
            raise Internal(_error_text(error)) from error
        finally:
            label = _seconds.labels(self.driver.name, method, code.go_name)
            label.observe(time.perf_counter() - started)

    async def close(self, grace: float) -> None:
        """Refuse new calls, wait for calls in progress, and cancel them after `grace` seconds."""
        self._closing = True
        tasks = self._running.values()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace)
        await cancel_and_wait(*late)

    async def _answer(self, method: str, request: Message) -> Message:
        if self._closing:
            raise Unavailable(f"{self.driver.name} is shutting down")
        validation.check(method, request, stages=self.offer.stages, root=self.driver.kubelet_root)
        if not locks.is_locking(method):
            return await self._answer_unlocked(method, request)
        key = (method, request.SerializeToString(deterministic=True))
        return await asyncio.shield(
            self._running.get_or_start(key, lambda: self._answer_locked(method, request))
        )

    async def _answer_unlocked(self, method: str, request: Message) -> Message:
        try:
            reply: Message = await self._methods[method](request)
        except CallError:
            raise
        except Exception as error:
            log.exception("%s failed", method)
            raise Internal(_error_text(error)) from error
        return reply

    async def _answer_locked(self, method: str, request: Message) -> Message:
        try:
            with self._locks.hold(method, request), trace.span("driver", method, subject_of(request)):
                log.info("%s: called args=%s", method, redact.text(request))
                reply: Message = await self._methods[method](request)
                if failpoint.is_armed:
                    failpoint.hit(f"rpc:{method}:served")
        except asyncio.CancelledError:
            raise Unavailable(f"{self.driver.name} stopped during {method}") from None
        except CallError as error:
            log.error("%s: %s", method, error)
            raise
        except Exception as error:
            # What the method has done is unknown: with an uncertain code the caller tries again.
            log.exception("%s failed", method)
            raise Aborted(_error_text(error)) from error
        return reply

    async def _plugin_info(self, request: v1.GetPluginInfoRequest) -> v1.GetPluginInfoResponse:
        return v1.GetPluginInfoResponse(name=self.driver.name, vendor_version=self.driver.version)

    async def _probe(self, request: v1.ProbeRequest) -> v1.ProbeResponse:
        return v1.ProbeResponse(ready={"value": await self.driver.probe()})


def _constant_reply(make: Callable[[], Message]) -> Callable[[Any], Any]:
    reply = make()

    async def answer(request: Message) -> Message:
        return reply

    return answer


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
