"""Admission of pods by a node: every check is asked before a pod starts, and the first rejection fails it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from volplane.api.core import Pod


class Rejection(Struct, frozen=True):
    """Why a node does not start a pod: `status.reason`, and what follows "Pod was rejected: "."""

    reason: str
    message: str


AdmissionCheck = Callable[[Pod], Rejection | None]


def _ignore(uid: str) -> None:
    pass


class Admission:
    """The checks of one node. `on_started` and `on_ended` get the uids of pods that were admitted."""

    def __init__(
        self,
        *checks: AdmissionCheck,
        on_started: Callable[[str], None] = _ignore,
        on_ended: Callable[[str], None] = _ignore,
    ) -> None:
        self._checks = checks
        self.pod_started, self.pod_ended = on_started, on_ended

    def check(self, pod: Pod) -> Rejection | None:
        return next((rejection for check in self._checks if (rejection := check(pod))), None)
