"""Crash and start roles of a running cluster, and open its page: a socket on which `up` takes requests.

Each connection carries one request and its answer. Only the owner of the socket's directory can connect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from volplane.base.sockets import bind_privately, remove_socket, short_path
from volplane.base.tasks import TaskSet

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 5.0  # seconds until a request has arrived
ANSWER_TIMEOUT = 60.0  # seconds: a crash ends containers and removes mounts
CRASH, START = "crash", "start"
PAGE = "page"  # asks for a new address of the live page


class RoleCannotChange(Exception):
    """The role does not exist, or is in no state for the request. The message is for the user."""


class RoleRequest(Struct, frozen=True):
    action: str  # CRASH, START or PAGE
    role: str = ""  # as in `node/worker-2`


class RoleAnswer(Struct, frozen=True):
    message: str
    failed: bool = False


class ControllableCluster(Protocol):
    """All methods return what the user reads, and raise RoleCannotChange."""

    async def crash_role(self, role: str) -> str: ...

    async def start_role(self, role: str) -> str: ...

    async def issue_page_link(self) -> str: ...


def describe_crash(role: str, directory: Path) -> str:
    """What the user reads after the crash of a node."""
    return (
        f"{role} is down: its kubelet, containers and mounts are gone. It stays down, also when the cluster "
        f"restarts.\nStart it again with: volplane start {role} --data-dir {directory}"
    )


def describe_down_nodes(nodes: Iterable[str], directory: Path) -> Iterator[str]:
    """What the user reads at a start with nodes that stay down."""
    for name in nodes:
        yield f"{name} stays down since its crash: volplane start node/{name} --data-dir {directory}"


@asynccontextmanager
async def serve_role_control(path: str, cluster: ControllableCluster) -> AsyncIterator[None]:
    """Serve requests on that socket, one after the other. At the end, requests in progress are completed."""
    requests = TaskSet()
    turn = asyncio.Lock()  # a node must not start while its crash still removes its mounts

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.start(_serve_one(reader, writer, cluster, turn), "role control")

    server = await asyncio.start_unix_server(on_connection, sock=bind_privately(path))
    try:
        yield
    finally:
        server.close()
        remove_socket(path)
        await requests.wait()


async def _serve_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    cluster: ControllableCluster,
    turn: asyncio.Lock,
) -> None:
    with suppress(OSError):
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                request = msgspec.json.decode(await reader.readline(), type=RoleRequest)
            async with turn:
                answer = await _answer(request, cluster)
        except (TimeoutError, msgspec.DecodeError) as error:
            answer = RoleAnswer(f"bad request: {error}", failed=True)
        writer.write(msgspec.json.encode(answer))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def _answer(request: RoleRequest, cluster: ControllableCluster) -> RoleAnswer:
    try:
        match request.action:
            case "crash":
                return RoleAnswer(await cluster.crash_role(request.role))
            case "start":
                return RoleAnswer(await cluster.start_role(request.role))
            case "page":
                return RoleAnswer(await cluster.issue_page_link())
            case unknown:
                return RoleAnswer(f"unknown request {unknown}", failed=True)
    except RoleCannotChange as error:
        return RoleAnswer(str(error), failed=True)
    except Exception as error:
        log.exception("cannot %s %s", request.action, request.role)
        return RoleAnswer(f"cannot {request.action} {request.role}: {error}", failed=True)


async def request_role_change(path: str, request: RoleRequest) -> RoleAnswer:
    """Send one request. Raises OSError if no cluster listens there, and TimeoutError."""
    async with asyncio.timeout(ANSWER_TIMEOUT):
        with short_path(path) as short:
            reader, writer = await asyncio.open_unix_connection(short)
        try:
            writer.write(msgspec.json.encode(request) + b"\n")
            await writer.drain()
            return msgspec.json.decode(await reader.read(), type=RoleAnswer)
        except msgspec.DecodeError as error:
            raise OSError(f"the cluster ended before it answered: {error}") from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
