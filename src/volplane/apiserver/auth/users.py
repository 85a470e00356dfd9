"""The names that have a meaning of their own."""

from __future__ import annotations

from volplane.apiserver.strategy import User

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"
ACCOUNTS = "system:serviceaccounts"
ACCOUNT_PREFIX = "system:serviceaccount:"

ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))
ADMIN = User("kubernetes-admin", (MASTERS,))
SYSTEM = User("system:apiserver", (MASTERS,))  # the server's own writes


def account_groups(namespace: str) -> tuple[str, ...]:
    return (ACCOUNTS, f"{ACCOUNTS}:{namespace}")


def node_of(user: User) -> str | None:
    """The node that asks, or None when it is no node. A node without a name is "": nobody in particular."""
    if not user.name.startswith(NODE_PREFIX) or NODES not in user.groups:
        return None
    return user.name.removeprefix(NODE_PREFIX)
