"""Device names on instances: `/dev/xvdba` … `/dev/xvddz`.

The names in use are cached. Another replica or an operator may attach disks, too: EC2 refuses a name that is
taken, and then the cache is refreshed. So an attach usually needs one call.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Iterable

_ALL = tuple(f"/dev/xvd{first}{second}" for first in "bcd" for second in string.ascii_lowercase)


class DeviceNames:
    def __init__(self) -> None:
        self._in_use: dict[str, set[str]] = defaultdict(set)  # instance → names in use, at the last refresh
        self._reserved: dict[str, set[str]] = defaultdict(set)  # instance → names of attaches in progress

    def reserve(self, instance: str) -> str:
        """Reserve a name for an attach; "" if none is free."""
        taken = self._in_use[instance] | self._reserved[instance]
        name = next((n for n in _ALL if n not in taken), "")
        if name:
            self._reserved[instance].add(name)
        return name

    def finish_attach(self, instance: str, name: str, *, attached: bool) -> None:
        """Release the reservation after the attach."""
        self._reserved[instance].discard(name)
        if attached:
            self._in_use[instance].add(name)

    def free(self, instance: str, name: str) -> None:
        self._in_use[instance].discard(name)

    def refresh(self, instance: str, taken: Iterable[str]) -> None:
        """Replace the names in use with those that EC2 returned."""
        self._in_use[instance] = set(taken)
