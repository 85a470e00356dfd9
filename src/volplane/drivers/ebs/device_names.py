"""Device names on instances: `/dev/xvdba` … `/dev/xvddz`.

What we believe to be taken is only a belief (another replica, an operator); EC2 refuses a name that is
taken, and then the belief is renewed. So an attach usually costs one call.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Iterable

_ALL = tuple(f"/dev/xvd{first}{second}" for first in "bcd" for second in string.ascii_lowercase)


class DeviceNames:
    def __init__(self) -> None:
        self._believed: dict[str, set[str]] = defaultdict(set)  # instance → names that are taken
        self._moving: dict[str, set[str]] = defaultdict(set)  # given out, and EC2 has not answered yet

    def reserve(self, instance: str) -> str:
        """A name for an attach that begins now; empty if there is none."""
        taken = self._believed[instance] | self._moving[instance]
        name = next((n for n in _ALL if n not in taken), "")
        if name:
            self._moving[instance].add(name)
        return name

    def finish_attach(self, instance: str, name: str, *, attached: bool) -> None:
        """The attach that the name was given for has ended."""
        self._moving[instance].discard(name)
        if attached:
            self._believed[instance].add(name)

    def free(self, instance: str, name: str) -> None:
        self._believed[instance].discard(name)

    def refresh(self, instance: str, taken: Iterable[str]) -> None:
        """What EC2 says."""
        self._believed[instance] = set(taken)
