"""Well-known users and groups."""

from __future__ import annotations

from volplane.apiserver.strategy import RequestUser

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"
ACCOUNTS = "system:serviceaccounts"
ACCOUNT_PREFIX = "system:serviceaccount:"

ANONYMOUS = RequestUser("system:anonymous", (UNAUTHENTICATED,))
ADMIN = RequestUser("kubernetes-admin", (MASTERS,))
SYSTEM = RequestUser("system:apiserver", (MASTERS,))  # the server's own writes


def account_groups(namespace: str) -> tuple[str, ...]:
    return (ACCOUNTS, f"{ACCOUNTS}:{namespace}")


def node_name_of(user: RequestUser) -> str | None:
    """Return the node's name, or None if the user is not a node. A node user without a name gives ""."""
    if not user.name.startswith(NODE_PREFIX) or NODES not in user.groups:
        return None
    return user.name.removeprefix(NODE_PREFIX)
