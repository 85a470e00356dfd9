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
    """The checks of one node. The other functions are called for admitted pods, most with their uid."""

    def __init__(
        self,
        *,
        security: Sequence[AdmissionCheck] = (),
        resources: Sequence[AdmissionCheck] = (),
        on_admitted: Callable[[Pod], None] = lambda pod: None,
        on_started: Callable[[str], None] = _ignore,
        on_stopped: Callable[[str], None] = _ignore,  # no container runs any more
        on_ended: Callable[[str], None] = _ignore,
    ) -> None:
        self._security, self._resources = security, resources
        self.pod_admitted = on_admitted
        self.pod_started, self.pod_stopped, self.pod_ended = on_started, on_stopped, on_ended

    def check(self, pod: Pod, *, begun: bool) -> Rejection | None:
        checks = self._security if begun else (*self._security, *self._resources)
        rejection = next((rejection for check in checks if (rejection := check(pod))), None)
        if rejection is None:
            self.pod_admitted(pod)
        return rejection
