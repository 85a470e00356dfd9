"""The names that have a meaning of their own."""

from __future__ import annotations

from volplane.apiserver.strategy import User

AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"

ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
ADMIN = User("kubernetes-admin", (MASTERS,))
SYSTEM = User("system:apiserver", (MASTERS,))  # the server's own writes
