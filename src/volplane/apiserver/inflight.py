"""How much of one user is under way at a time: who asks for too much comes back, others do not wait.

Reads are answered from memory as they come, so what counts are writes that wait for their commit and reads
that wait for a revision. `system:masters` are exempt: whoever is called to help must get through.
"""

from __future__ import annotations

from volplane.api.errors import TooManyRequests
from volplane.apiserver.auth.well_known_users import MASTERS
from volplane.apiserver.strategy import RequestUser

MESSAGE = "too many requests, please try again later"
RETRY_AFTER = 1  # seconds


class InflightLimiter:
    def __init__(self, limit: int) -> None:
        self.limit = limit  # 0: none
        self._busy: dict[str, int] = {}

    def enter(self, user: RequestUser) -> None:
        """Raises TooManyRequests; else `leave` must follow."""
        count = self._busy.get(user.name, 0)
        if 0 < self.limit <= count and MASTERS not in user.groups:
            raise TooManyRequests(MESSAGE, details={"retryAfterSeconds": RETRY_AFTER})
        self._busy[user.name] = count + 1

    def leave(self, user: RequestUser) -> None:
        count = self._busy[user.name] - 1
        if count:
            self._busy[user.name] = count
        else:
            del self._busy[user.name]
