"""Where sections C, D and G are played: a node whose server is on HTTPS and whose driver is on a real socket.

In virtual time both are in memory. The mounts are real in either.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from tests.node import node_env
from tests.node.node_env import NodeEnv


def node_world() -> AbstractAsyncContextManager[NodeEnv]:
    return node_env.node_env(https=True)
