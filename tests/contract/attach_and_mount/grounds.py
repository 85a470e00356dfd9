"""Where sections C, D and G are played: a node whose server is on HTTPS and whose driver is on a real socket.

In virtual time both are in memory. The mounts are real in either.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from tests.node import nodeworld
from tests.node.nodeworld import NodeWorld


def node_world() -> AbstractAsyncContextManager[NodeWorld]:
    return nodeworld.node_world(https=True)
