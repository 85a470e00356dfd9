"""exec and attach: a command's streams over one client connection, WebSocket or SPDY.

WebSocket marks the channel by the first byte of each message, SPDY by streams that the client opens. Both
end with a Status on the error channel; kubectl exits with its exit code.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from volplane.base.tasks import cancel_and_wait
from volplane.host import Host, NodePaths
from volplane.node.api.channels import Channels, accept
from volplane.node.api.errors import KubeletApiError
from volplane.node.api.logs import LogRequest, read_log
from volplane.node.containers.base import AttachSession, CannotExec, ContainerError, ExecOutput, ExecSession
from volplane.node.pods.container import finish_uncancelled
from volplane.node.pods.records import all_containers
from volplane.node.pods.runtimes import container_id
from volplane.web import Request, Response, Upgraded

if TYPE_CHECKING:
    from volplane.node.api.app import ContainerTarget

log = logging.getLogger(__name__)

SUCCESS = {"metadata": {}, "status": "Success"}


async def execute(request: Request, target: ContainerTarget) -> Response | Upgraded:
    query = request.query
    command = tuple(query.all("command"))
    if not command:
        raise KubeletApiError(400, "you must specify at least 1 command for the container")
    running = _running_id(target)
    tty, stdin = query.flag("tty"), query.flag("input")
    try:
        # Before the upgrade: an error can still be a plain HTTP response.
        started = await target.worker.deps.containers.runtimes.exec(running, command, tty=tty, stdin=stdin)
    except CannotExec as error:
        return await _report_failed_start(request, str(error), error.code)
    except ContainerError as error:
        raise KubeletApiError(400, str(error)) from error
    try:
        channels = await accept(request)
        async with channels:
            await _run_exec(channels, started)
    finally:
        await finish_uncancelled(started.close())
    return Upgraded()


def _running_id(target: ContainerTarget) -> str:
    current = target.record.current
    if current is None or not current.running:
        raise KubeletApiError(
            400, f'container "{target.name}" in pod "{target.worker.pod.name}" is not running'
        )
    return container_id(target.worker.uid, target.name, current.number)


async def _report_failed_start(request: Request, message: str, code: int) -> Response | Upgraded:
    """The command cannot be started: report the exit code that a shell would have."""
    async with await accept(request) as channels:
        await channels.send_status(_status(code, message))
    return Upgraded()


async def _run_exec(channels: Channels, started: ExecSession) -> None:
    incoming = asyncio.create_task(_forward_input(channels, started))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy_output(started.stdout, channels.stdout, after_others=True))
            if started.stderr is not None:
                tasks.create_task(_copy_output(started.stderr, channels.stderr))
        code = await started.wait()
        await channels.send_status(_status(code))
    except* ConnectionError:
        pass  # the client has disconnected; closing the exec kills the command
    except* CannotExec as problems:  # a runtime may tell only now that it could not start the command
        with suppress(ConnectionError):
            await channels.send_status(_failed_exec_status(problems))
    except* Exception as problems:
        # The client must get a status: without one it assumes success.
        log.error("exec in a container failed", exc_info=problems)
        with suppress(ConnectionError):
            await channels.send_status(_internal_error_status(problems.exceptions[0]))
    finally:
        await cancel_and_wait(incoming)


async def _forward_input(channels: Channels, started: ExecSession) -> None:
    """Forward what the client sends: input, its end, and new terminal sizes."""
    async for kind, data in channels.incoming():
        if kind == "resize":
            if size := _size(data):
                started.resize(*size)
        elif started.stdin is not None:
            if data:
                await started.stdin.write(data)
            else:
                started.stdin.close()
    await started.close()  # the client has disconnected: kill the command


async def _copy_output(
    source: ExecOutput, write: Callable[[bytes], Awaitable[None]], *, after_others: bool = False
) -> None:
    """Copy one output. `after_others`: data that is available on another output goes first.

    A command writes its error before it closes its output, and a client that has seen the end of the output
    may not wait for the error (`kubectl cp`).
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


def _failed_exec_status(problems: BaseExceptionGroup[CannotExec]) -> dict[str, Any]:
    error = problems.exceptions[0]
    assert isinstance(error, CannotExec)
    return _status(error.code, str(error))


def _internal_error_status(problem: BaseException) -> dict[str, Any]:
    message = f"error executing command in container: {problem!r}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "code": 500,
    }


async def attach(
    request: Request, target: ContainerTarget, host: Host, paths: NodePaths
) -> Response | Upgraded:
    """Send the container's output from now on; forward input if it has stdin."""
    running = _running_id(target)
    spec = next(c for c in all_containers(target.worker.pod) if c.name == target.name)
    stdin = request.query.flag("input")
    runtimes = target.worker.deps.containers.runtimes
    if (spec.stdin or spec.tty) and not runtimes.is_builtin(spec):
        if stdin and not spec.stdin:
            raise _no_stdin_error(target)
        try:
            attached = await runtimes.attach(running, stdin=stdin)
        except ContainerError as error:
            raise KubeletApiError(400, str(error)) from error
        return await _serve_attach(request, attached, once=spec.stdin_once and not spec.tty)
    if stdin:
        raise _no_stdin_error(target)
    return await _stream_log(request, await read_log(LogRequest(follow=True, tail=0), target, host, paths))


def _no_stdin_error(target: ContainerTarget) -> KubeletApiError:
    return KubeletApiError(
        400, f'container "{target.name}" was not started with stdin: it cannot be attached with it'
    )


async def _stream_log(request: Request, lines: AsyncGenerator[bytes, None]) -> Upgraded:
    channels = await accept(request)
    async with channels:
        try:
            async for piece in lines:
                await channels.stdout(piece)
            await channels.send_status(SUCCESS)
        except ConnectionError:
            pass
        finally:
            await lines.aclose()
    return Upgraded()


async def _serve_attach(request: Request, attached: AttachSession, *, once: bool) -> Upgraded:
    try:
        channels = await accept(request)
        async with channels:
            await _run_attach(channels, attached, once=once)
    finally:
        attached.close()
    return Upgraded()


async def _run_attach(channels: Channels, attached: AttachSession, *, once: bool) -> None:
    """Run until the container exits, the client disconnects, or its input ends."""
    tasks = [
        asyncio.create_task(_send_output(channels, attached)),
        asyncio.create_task(_receive_input(channels, attached, once=once)),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await channels.send_status(SUCCESS)
    except ConnectionError:
        pass  # the client has disconnected
    finally:
        await cancel_and_wait(*tasks)


async def _send_output(channels: Channels, attached: AttachSession) -> None:
    async for stream, data in attached.read_output():
        await (channels.stdout(data) if stream == "stdout" else channels.stderr(data))


async def _receive_input(channels: Channels, attached: AttachSession, *, once: bool) -> None:
    """Forward the client's input.

    With `once` the container's input ends with it, otherwise only the session.
    """
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
