"""Admission of pods by a node: all checks run before a pod starts, and the first rejection fails it.

Resource checks are skipped for a pod whose status says that it has started: it continues after a restart of
the kubelet. Security checks always run, because others can write a status too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from volplane.api.core import Pod


class Rejection(Struct, frozen=True):
    """Why the node rejects a pod: `status.reason`, and the text after "Pod was rejected: "."""

    reason: str
    message: str


AdmissionCheck = Callable[[Pod], Rejection | None]


def _ignore(uid: str) -> None:
    pass


class PodAdmission:
    """The checks of one node. `on_started` and `on_ended` are called with the uid of an admitted pod."""

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
