"""A client of the gRPC health checking protocol, grpc.health.v1.

The two messages of the protocol have one field each, so they are encoded here by hand.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

import grpc
import grpc.aio

METHOD = "/grpc.health.v1.Health/Check"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new connection for each check
    ("grpc.primary_user_agent", "kube-probe/1.35"),
)
_NAMES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


class GrpcHealthStatus(StrEnum):
    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"


class HealthCheckError(Exception):
    """The check failed; the text is the kubelet's."""


async def check(address: str, service: str, timeout: float) -> GrpcHealthStatus:
    """`timeout` is for the connection and the reply each. Raises HealthCheckError."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        try:
            async with asyncio.timeout(timeout):
                await channel.channel_ready()
        except TimeoutError:
            words = f'timeout: failed to connect service "{address}" within {timeout:g}s'
            raise HealthCheckError(f"{words}: context deadline exceeded") from None
        call = channel.unary_unary(METHOD, request_serializer=_request, response_deserializer=_answer)
        try:
            health: GrpcHealthStatus = await call(service, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise HealthCheckError(_error_text(error, timeout)) from error
    return health


def _error_text(error: grpc.aio.AioRpcError, timeout: float) -> str:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        known = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"
        return f"{known}: {error.details()}"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"timeout: health rpc did not complete within {timeout:g}s"
    return f"error: health rpc probe failed: rpc error: code = {error.code().name} desc = {error.details()}"


def _request(service: str) -> bytes:
    """The field `service = 1`, a string that is omitted if empty."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def _answer(data: bytes) -> GrpcHealthStatus:
    """The field `status = 1`, an enum; unknown values are UNKNOWN."""
    number = data[1] if len(data) >= 2 and data[0] == 0x08 else 0
    return GrpcHealthStatus(_NAMES[number] if number < len(_NAMES) else _NAMES[0])


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])
