"""How much of a server its clients may take, and for how long they may keep it waiting."""

from __future__ import annotations

from msgspec import Struct

from volplane.base import descriptors

MAX_CONNECTIONS = 4096
SHARE = 4  # connections get the fourth part of the descriptors
MIN_CONNECTIONS = 32  # connections, however few descriptors there are
MAX_LARGE_BODIES = 32  # that clients whom nobody knows may send at a time


class ServerLimits(Struct, frozen=True):
    """Times in seconds. A client that is known has authenticated itself on that connection."""

    connections: int = 0  # open at a time; 0: a share of the process's descriptors
    body: int = 3 * 1024 * 1024  # bytes of a request's body
    handshake: float = 10.0  # for TLS
    head: float = 15.0  # from the first byte of a request to the end of its headers
    body_start: float = 30.0  # for a body, and beyond that…
    body_rate: float = 8 * 1024.0  # …a second for so many bytes that have come
    idle: float = 300.0  # between two requests; clients give up their connections earlier
    unauthenticated_idle: float = 60.0  # the same for a client that nobody knows
    goodbye: float = 10.0  # to take what was written before we closed

    def max_connections(self) -> int:
        return self.connections or max(MIN_CONNECTIONS, min(descriptors.limit() // SHARE, MAX_CONNECTIONS))

    def max_unauthenticated(self) -> int:
        """Connections of clients that nobody knows, among all."""
        return max(self.max_connections() // 4, 1)


def descriptors_for_connections() -> int:
    """Numbers of descriptors that a connection may have; those above are for everything else."""
    limit = descriptors.limit()
    return limit - limit // SHARE
