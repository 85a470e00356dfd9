"""Limit the requests that one user has in flight; excess requests get 429 and do not delay other users.

Most reads are answered from memory at once. The limit matters for writes that wait for their commit and reads
that wait for a revision. `system:masters` is exempt, so that administrators can always intervene.
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
        """Raise TooManyRequests, or count the request; then `leave` must follow."""
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
