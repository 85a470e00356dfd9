"""exec and attach: a command's streams over one connection, in the two ways that clients speak.

WebSocket carries channels by a byte in front of each message, SPDY by streams that the client opens. Both end
with a Status on the error channel; its exit code is what kubectl exits with.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from volplane.host import Host, NodePaths
from volplane.node.api.channels import Channels, accept
from volplane.node.api.logs import LogRequest, read_log
from volplane.node.api.refusal import Refusal
from volplane.node.containers.base import Attached, ContainerError, Exec, Output
from volplane.node.containers.execs import CannotExec
from volplane.node.pods.container import finished
from volplane.node.pods.records import all_containers
from volplane.node.pods.runtimes import container_id
from volplane.web import Request, Response, Upgraded

if TYPE_CHECKING:
    from volplane.node.api.app import Target

log = logging.getLogger(__name__)

SUCCESS = {"metadata": {}, "status": "Success"}


async def execute(request: Request, target: Target) -> Response | Upgraded:
    query = request.query
    command = tuple(query.all("command"))
    if not command:
        raise Refusal(400, "you must specify at least 1 command for the container")
    running = _running_id(target)
    tty, stdin = query.flag("tty"), query.flag("input")
    try:
        # Before the upgrade: a refusal can still be an answer that everybody understands.
        started = await target.worker.shared.kit.runtimes.exec(running, command, tty=tty, stdin=stdin)
    except CannotExec as error:
        return await _cannot(request, str(error), error.code)
    except ContainerError as error:
        raise Refusal(400, str(error)) from error
    try:
        channels = await accept(request)
        async with channels:
            await _converse(channels, started)
    finally:
        await finished(started.close())
    return Upgraded()


def _running_id(target: Target) -> str:
    current = target.record.current
    if current is None or not current.running:
        raise Refusal(400, f'container "{target.name}" in pod "{target.worker.pod.name}" is not running')
    return container_id(target.worker.uid, target.name, current.number)


async def _cannot(request: Request, message: str, code: int) -> Response | Upgraded:
    """The command does not exist: for the client, it ran and ended with the shell's code for that."""
    async with await accept(request) as channels:
        await channels.fail(_status(code, message))
    return Upgraded()


async def _converse(channels: Channels, started: Exec) -> None:
    incoming = asyncio.create_task(_feed(channels, started))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pump(started.stdout, channels.stdout, after_others=True))
            if started.stderr is not None:
                tasks.create_task(_pump(started.stderr, channels.stderr))
        code = await started.wait()
        await channels.fail(_status(code))
    except* ConnectionError:
        pass  # the client has left; closing the exec ends the command
    except* Exception as problems:
        # Said aloud: to a client, a conversation that ends without a status has been a success.
        log.error("a command in a container was lost", exc_info=problems)
        with suppress(ConnectionError):
            await channels.fail(_lost(problems.exceptions[0]))
    finally:
        incoming.cancel()
        await asyncio.gather(incoming, return_exceptions=True)


async def _feed(channels: Channels, started: Exec) -> None:
    """What the client sends: input, its end, and new sizes of the terminal."""
    async for kind, data in channels.incoming():
        if kind == "resize":
            if size := _size(data):
                started.resize(*size)
        elif started.stdin is not None:
            if data:
                await started.stdin.write(data)
            else:
                started.stdin.close()
    await started.close()  # the client is gone, and with it the reason to run


async def _pump(
    source: Output, write: Callable[[bytes], Awaitable[None]], *, after_others: bool = False
) -> None:
    """`after_others`: what is there at the same time on another output goes first. A command complains before
    it ends its output, and a client that has seen the end may not wait for the complaint (`kubectl cp`).
    """
    while data := await source.read():
        if after_others:
            await asyncio.sleep(0)
        await write(data)


def _status(code: int, message: str = "") -> dict[str, Any]:
    if code == 0:
        return SUCCESS
    text = message or f"command terminated with non-zero exit code: exit status {code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": text,
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _lost(problem: BaseException) -> dict[str, Any]:
    message = f"error executing command in container: {problem!r}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "code": 500,
    }


async def attach(request: Request, target: Target, host: Host, paths: NodePaths) -> Response | Upgraded:
    """What the container says from now on; with an input of its own, what it is told as well."""
    running = _running_id(target)
    spec = next(c for c in all_containers(target.worker.pod) if c.name == target.name)
    stdin = request.query.flag("input")
    runtimes = target.worker.shared.kit.runtimes
    if (spec.stdin or spec.tty) and not runtimes.is_builtin(spec):
        if stdin and not spec.stdin:
            raise _without_input(target)
        try:
            attached = await runtimes.attach(running, stdin=stdin)
        except ContainerError as error:
            raise Refusal(400, str(error)) from error
        return await _visit(request, attached, once=spec.stdin_once and not spec.tty)
    if stdin:
        raise _without_input(target)
    return await _read_along(request, await read_log(LogRequest(follow=True, tail=0), target, host, paths))


def _without_input(target: Target) -> Refusal:
    return Refusal(
        400, f'container "{target.name}" was not started with stdin: it cannot be attached with it'
    )


async def _read_along(request: Request, lines: AsyncGenerator[bytes, None]) -> Upgraded:
    channels = await accept(request)
    async with channels:
        try:
            async for piece in lines:
                await channels.stdout(piece)
            await channels.fail(SUCCESS)
        except ConnectionError:
            pass
        finally:
            await lines.aclose()
    return Upgraded()


async def _visit(request: Request, attached: Attached, *, once: bool) -> Upgraded:
    try:
        channels = await accept(request)
        async with channels:
            await _attend(channels, attached, once=once)
    finally:
        attached.close()
    return Upgraded()


async def _attend(channels: Channels, attached: Attached, *, once: bool) -> None:
    """Until the container has ended, the client has gone, or it has said all it wanted to."""
    tasks = [
        asyncio.create_task(_hear(channels, attached)),
        asyncio.create_task(_speak(channels, attached, once=once)),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await channels.fail(SUCCESS)
    except ConnectionError:
        pass  # the client has left
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hear(channels: Channels, attached: Attached) -> None:
    async for stream, data in attached.listen():
        await (channels.stdout(data) if stream == "stdout" else channels.stderr(data))


async def _speak(channels: Channels, attached: Attached, *, once: bool) -> None:
    """An input that is there for one client ends with it; any other goes on, and only the client leaves."""
    async for kind, data in channels.incoming():
        if kind == "resize":
            if size := _size(data):
                await attached.resize(*size)
        elif data:
            await attached.write(data)
        elif once:
            await attached.end_input()
        else:
            return


def _size(data: bytes) -> tuple[int, int] | None:
    try:
        size = json.loads(data)
        return max(int(size["Width"]), 0), max(int(size["Height"]), 0)
    except (ValueError, KeyError, TypeError):
        return None
