"""Admission of pods by a node: every check is asked before a pod starts, and the first rejection fails it.

Checks of what the node is short of are not asked for a pod whose status says that it has begun: it goes on
after a restart of the node. Checks of what a pod may do are always asked: others can write a status too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from volplane.api.core import Pod


class Rejection(Struct, frozen=True):
    """Why a node does not start a pod: `status.reason`, and what follows "Pod was rejected: "."""

    reason: str
    message: str


AdmissionCheck = Callable[[Pod], Rejection | None]


def _ignore(uid: str) -> None:
    pass


class PodAdmission:
    """The checks of one node. `on_started` and `on_ended` get the uids of pods that were admitted."""

    def __init__(
        self,
        *,
        security: Sequence[AdmissionCheck] = (),
        resources: Sequence[AdmissionCheck] = (),
        on_started: Callable[[str], None] = _ignore,
        on_ended: Callable[[str], None] = _ignore,
    ) -> None:
        self._security, self._resources = security, resources
        self.pod_started, self.pod_ended = on_started, on_ended

    def check(self, pod: Pod, *, begun: bool) -> Rejection | None:
        checks = self._security if begun else (*self._security, *self._resources)
        return next((rejection for check in checks if (rejection := check(pod))), None)
