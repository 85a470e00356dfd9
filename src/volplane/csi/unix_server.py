"""Serves gRPC calls on a Unix socket that only its owner may open.

The socket is created under a hidden name, gets mode 0600 and is renamed: other users can never connect, the
socket of a killed process is replaced in one step, and a server that stops does not unlink the socket of its
successor.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from volplane.base.sockets import short_path
from volplane.csi.client import LARGEST_MESSAGE
from volplane.csi.services import METHODS

# (request, context): a coroutine function, or a generator when it streams
RpcHandler = Callable[[Any, Any], Any]

_OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.so_reuseport", 0),
)


# What a client on the same machine needs to receive a reply that is already sent.
REPLY_GRACE = 1.0


class UnixRpcServer:
    """`methods` by their names in the protocol.

    `close()` removes the socket, waits `grace` seconds for calls in progress, and cancels them. Without a
    grace, the reply of a call that has just ended can be lost: its client gets UNAVAILABLE.
    """

    def __init__(self, path: str, methods: Mapping[str, RpcHandler]) -> None:
        self.path = path
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers(_handlers(methods))
        self._inode = -1

    async def start(self) -> None:
        directory, name = os.path.split(self.path)
        os.makedirs(directory or ".", mode=0o700, exist_ok=True)
        hidden = os.path.join(directory, f".{name}.{os.getpid()}")
        try:
            with short_path(hidden) as short:
                self._server.add_insecure_port(f"unix:{short}")
                await _run_to_completion(self._server.start())
        except BaseException:
            await _run_to_completion(self._server.stop(0.0))
            with suppress(FileNotFoundError):
                os.unlink(hidden)
            raise
        self._inode = _restrict_to_owner(hidden)
        os.replace(hidden, self.path)

    async def close(self, grace: float = REPLY_GRACE) -> None:
        with suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        await _run_to_completion(self._server.stop(grace))

    async def __aenter__(self) -> UnixRpcServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _restrict_to_owner(path: str) -> int:
    """Set mode 0600 and return the inode; an owner of the directory could replace the socket meanwhile."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.ENOTSOCK, "is not the socket that was created there", path)
        os.chmod(f"/proc/self/fd/{descriptor}", 0o600)
        return found.st_ino
    finally:
        os.close(descriptor)


async def _run_to_completion(work: Coroutine[None, None, None]) -> None:
    """Finish a start or stop before a cancellation: gRPC fails in another task if it is interrupted."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _handlers(methods: Mapping[str, RpcHandler]) -> tuple[grpc.GenericRpcHandler, ...]:
    services: dict[str, dict[str, Any]] = {}
    for name, serve in methods.items():
        spec = METHODS[name]
        make = grpc.unary_stream_rpc_method_handler if spec.streams else grpc.unary_unary_rpc_method_handler
        services.setdefault(spec.service, {})[name] = make(
            serve,
            request_deserializer=spec.request.FromString,
            response_serializer=spec.reply.SerializeToString,
        )
    return tuple(
        grpc.method_handlers_generic_handler(service, served) for service, served in services.items()
    )
