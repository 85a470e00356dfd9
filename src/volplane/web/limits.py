"""Limits of a server: connections, sizes and times that clients may take."""

from __future__ import annotations

from msgspec import Struct

from volplane.base import descriptors

MAX_CONNECTIONS = 4096
SHARE = 4  # connections get a quarter of the descriptors
MIN_CONNECTIONS = 32  # however few descriptors there are
MAX_LARGE_BODIES = 32  # of unauthenticated clients at a time


class ServerLimits(Struct, frozen=True):
    """Times in seconds."""

    connections: int = 0  # open at a time; 0: a share of the process's descriptors
    body: int = 3 * 1024 * 1024  # bytes of a request's body
    handshake: float = 10.0  # for TLS
    head: float = 15.0  # from the first byte of a request to the end of its headers
    body_start: float = 30.0  # for a body, plus …
    body_rate: float = 8 * 1024.0  # … one second for each of these many bytes received
    idle: float = 300.0  # between two requests; clients usually close idle connections earlier
    unauthenticated_idle: float = 60.0  # the same for an unauthenticated client
    goodbye: float = 10.0  # to read what was written before the server closed

    def max_connections(self) -> int:
        return self.connections or max(MIN_CONNECTIONS, min(descriptors.limit() // SHARE, MAX_CONNECTIONS))

    def max_unauthenticated(self) -> int:
        """How many of the connections may be unauthenticated."""
        return max(self.max_connections() // 4, 1)


def descriptors_for_connections() -> int:
    """The highest descriptor number that a connection may get; higher ones are for everything else."""
    limit = descriptors.limit()
    return limit - limit // SHARE
