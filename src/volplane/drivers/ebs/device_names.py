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
        self._believed: dict[str, set[str]] = defaultdict(set)  # instance → names in use, as far as we know
        self._moving: dict[str, set[str]] = defaultdict(set)  # instance → names of attaches in progress

    def reserve(self, instance: str) -> str:
        """Reserve a name for an attach; "" if none is free."""
        taken = self._believed[instance] | self._moving[instance]
        name = next((n for n in _ALL if n not in taken), "")
        if name:
            self._moving[instance].add(name)
        return name

    def finish_attach(self, instance: str, name: str, *, attached: bool) -> None:
        """Release the reservation after the attach."""
        self._moving[instance].discard(name)
        if attached:
            self._believed[instance].add(name)

    def free(self, instance: str, name: str) -> None:
        self._believed[instance].discard(name)

    def refresh(self, instance: str, taken: Iterable[str]) -> None:
        """Replace the names in use with those that EC2 returned."""
        self._believed[instance] = set(taken)
