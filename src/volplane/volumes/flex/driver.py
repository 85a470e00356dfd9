"""One FlexVolume driver: an executable that is called with a command and answers with JSON.

`<executable> <command> <argument>…`, stdout and stderr together are one JSON object:

    {"status": "Success", "device": "/dev/vdb"}
    {"status": "Failure", "message": "no such volume"}
    {"status": "Not supported"}

A command that the driver does not support is not called again until the driver is loaded anew; the caller
falls back to the kubelet's own way. Keys are matched without regard to case, and unknown ones are ignored, as
Go's JSON decoder does for upstream.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from volplane.base import clock, failpoint, trace
from volplane.host import Host
from volplane.host.processes import CompletedCommand, OutputTooLong
from volplane.volumes.flex.errors import FlexCallError, FlexExecutableBusy, FlexNotSupported
from volplane.volumes.flex.options import SECRET_PREFIX

log = logging.getLogger(__name__)

SUCCESS, NOT_SUPPORTED = "Success", "Not supported"
MAX_OUTPUT = 1 << 20  # bytes of one answer
SHOWN_OUTPUT = 200  # characters of an answer that cannot be read, in errors
INIT_TIMEOUT = 30.0  # seconds; upstream has none, and waits for ever for a driver that hangs here


class FlexCapabilities(Struct, frozen=True, forbid_unknown_fields=False):
    attach: bool = True
    selinuxrelabel: bool = True
    supportsmetrics: bool = False
    fsgroup: bool = True
    requiresfsresize: bool = True


class FlexReply(Struct, frozen=True):
    """An answer, with its keys in lower case."""

    status: str = ""
    message: str = ""
    device: str = ""
    volumename: str = ""
    attached: bool = False
    capabilities: FlexCapabilities = FlexCapabilities()
    volumenewsize: int = 0


class FlexDriver:
    """A driver whose `init` succeeded. A replaced executable is another FlexDriver."""

    def __init__(self, name: str, executable: str, host: Host) -> None:
        self.name = name  # vendor/driver, or driver
        self.executable = executable
        self.capabilities = FlexCapabilities()
        self.loaded_at = clock.wall().timestamp()
        self._host = host
        self._unsupported: set[str] = set()

    @classmethod
    async def load(cls, name: str, executable: str, host: Host) -> FlexDriver:
        """Call `init`. Raises FlexCallError."""
        driver = cls(name, executable, host)
        driver.capabilities = (await driver.call("init", timeout=INIT_TIMEOUT)).capabilities
        return driver

    def supports(self, command: str) -> bool:
        """False after the driver has answered that it does not."""
        return command not in self._unsupported

    async def call(
        self, command: str, *arguments: str, timeout: float | None = None, subject: str = ""
    ) -> FlexReply:
        """Raises FlexNotSupported, FlexCallError. There is no timeout unless one is given, as upstream.

        `subject` is the object in the trace.
        """
        if not self.supports(command):
            raise FlexNotSupported
        shown, started = " ".join([command, *map(_without_secrets, arguments)]), clock.now()
        with trace.span("flexvolume", command, subject or self.name, driver=self.name):
            try:
                with failpoint.around(f"flexvolume:{command}"):
                    reply = await self._run([self.executable, command, *arguments], timeout)
            except FlexNotSupported:
                self._unsupported.add(command)
                self._log(logging.INFO, shown, "not supported", started)
                raise
            except FlexCallError as error:
                self._log(logging.WARNING, shown, str(error), started)
                raise
        self._log(logging.INFO, shown, "success", started)
        return reply

    async def check_volume_name(self, options: str, subject: str = "") -> None:
        """Call `getvolumename`: the answer is not used, as upstream, but a failure raises FlexCallError."""
        with suppress(FlexNotSupported):
            await self.call("getvolumename", options, subject=subject)

    def _log(self, level: int, shown: str, outcome: str, started: float) -> None:
        taken = (clock.now() - started) * 1000
        log.log(level, "flexvolume %s: %s: %s (%.0f ms)", self.name, shown, outcome, taken)

    async def _run(self, argv: list[str], timeout: float | None) -> FlexReply:
        command = argv[1]
        try:
            completed = await self._host.capture(argv, timeout=timeout, max_output=MAX_OUTPUT)
        except TimeoutError:
            raise FlexCallError(f"{command} command did not answer within {timeout:g} s: timeout") from None
        except OutputTooLong as error:
            raise FlexCallError(f"{command} command failed: {error}") from error
        except OSError as error:
            kind = FlexExecutableBusy if error.errno == errno.ETXTBSY else FlexCallError
            raise kind(f"cannot run {self.executable}: {error.strerror}") from error
        reply = _parse_reply(command, completed.stdout)
        if completed.code:
            raise FlexCallError(_exit_status(completed))
        return reply


def _parse_reply(command: str, output: bytes) -> FlexReply:
    try:
        reply = msgspec.convert(_lower_keys(json.loads(output)), FlexReply)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        text = output.decode(errors="replace")
        shown = text if len(text) <= SHOWN_OUTPUT else f"{text[:SHOWN_OUTPUT]}…"
        raise FlexCallError(
            f"{command} command did not answer with one JSON object: {error}; output: {json.dumps(shown)}"
        ) from error
    if reply.status == NOT_SUPPORTED:
        raise FlexNotSupported
    if reply.status != SUCCESS:
        raise FlexCallError(f"{command} command failed, status: {reply.status}, reason: {reply.message}")
    return reply


def _lower_keys(value: Any) -> Any:
    """Go matches keys without regard to case, and leaves a field as it is where the value is null."""
    if isinstance(value, Mapping):
        return {key.lower(): _lower_keys(item) for key, item in value.items() if item is not None}
    return value


def _exit_status(completed: CompletedCommand) -> str:
    """In Go's words: a driver that answers Success must also end with 0."""
    if completed.code < 0:
        return f"signal: {-completed.code}"
    return f"exit status {completed.code}"


def _without_secrets(argument: str) -> str:
    """An argument as it may be logged."""
    if SECRET_PREFIX not in argument or not argument.startswith("{"):  # a path or a device may contain it
        return argument
    options = json.loads(argument)
    return json.dumps(
        {key: "***" if key.startswith(SECRET_PREFIX) else value for key, value in options.items()}
    )
