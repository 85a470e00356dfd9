"""Device names on instances: `/dev/xvdba` … `/dev/xvddx`.

What we believe to be taken is only a belief (another replica, an operator); EC2 refuses a name that is
taken, and then the belief is renewed. So an attach usually costs one call.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

from volplane.sdk.errors import ResourceExhausted

_ALL = tuple(f"/dev/xvd{first}{second}" for first in "bcd" for second in string.ascii_lowercase)


class DeviceNames:
    def __init__(self) -> None:
        self._taken: dict[str, set[str]] = {}  # instance → names

    def take(self, instance: str) -> str:
        """A name that nobody else will get from here until it is freed."""
        taken = self._taken.setdefault(instance, set())
        for name in _ALL:
            if name not in taken:
                taken.add(name)
                return name
        raise ResourceExhausted(f"all device names of {instance} are taken")

    def free(self, instance: str, name: str) -> None:
        self._taken.get(instance, set()).discard(name)

    def renew(self, instance: str, taken: Iterable[str]) -> None:
        """What EC2 says, together with what is being attached right now."""
        self._taken.setdefault(instance, set()).update(taken)
