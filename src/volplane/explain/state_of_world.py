"""The DesiredStateOfWorld beside the ActualStateOfWorld, of the attach/detach controller and of each kubelet.

The running roles know theirs. The controller's can also be derived from the API: pods, VolumeAttachments and
the status of nodes have all of it except timers. What a kubelet has mounted is in no object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, structs

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.explain.cluster_state import ClusterState
from volplane.explain.wait_reports import RoleAnswers, UnknownRole
from volplane.loops.volume_states import ATTACH_DETACH_ROLE, ComparedVolume, StateComparison

NODE = "node/"
ONLY_KUBELET = "what is mounted: only the kubelet knows it; use --data-dir on the machine of `volplane up`"
NO_TIMERS = "timers and retries of the attach/detach controller: only the running controller knows them"


class StateSource(StrEnum):
    ROLE = "role"  # the running role has answered
    API = "api"  # derived from objects
    NONE = "none"


class RoleStates(Struct, frozen=True):
    """Desired and actual state of the volumes of one role."""

    role: str  # `attachdetach` or `node/worker-1`
    source: StateSource
    count: int = 0  # of all volumes, also of those that are not shown
    volumes: Sequence[ComparedVolume] = ()
    unknown: str = ""  # what could not be determined

    @property
    def pending(self) -> list[ComparedVolume]:
        return [volume for volume in self.volumes if volume.pending is not None]

    def hide_equal(self) -> RoleStates:
        """Without volumes whose desired and actual state agree."""
        return structs.replace(self, volumes=self.pending)


class StateReport(Struct, frozen=True):
    at: datetime
    roles: Sequence[RoleStates]
    unknown: Sequence[str] = ()  # kinds that could not be read

    @property
    def waits(self) -> bool:
        return any(role.pending for role in self.roles)


async def report_states(
    state: ClusterState,
    answers: RoleAnswers[StateComparison],
    only: str = "",
    *,
    only_pending: bool = False,
) -> StateReport:
    """All roles, or the one that is asked for. Raises UnknownRole."""
    nodes = sorted(node.name for node in (await state.cache(Node)).all())
    check_role(only, ATTACH_DETACH_ROLE, nodes)
    known = {answer.role: answer for answer in answers.found}
    roles: list[RoleStates] = []
    if only in ("", ATTACH_DETACH_ROLE):
        roles.append(await _report_controller(state, known))
    kubelets = (f"{NODE}{name}" for name in nodes)
    roles += [_report_kubelet(role, known, answers) for role in kubelets if only in ("", role)]
    unread = [f"{kind}: {why}" for kind, why in sorted(state.caches.unread.items())]
    return StateReport(state.now, [role.hide_equal() if only_pending else role for role in roles], unread)


def check_role(only: str, other: str, nodes: Sequence[str]) -> None:
    """`other`: the role beside the nodes. Raises UnknownRole."""
    if only in ("", other):
        return
    if not only.startswith(NODE):
        raise UnknownRole(f"cannot show {only}: write {other}, or node/NAME")
    name = only.removeprefix(NODE)
    if name not in nodes:
        raise UnknownRole(f"node {name} does not exist; nodes: {', '.join(nodes) or 'none'}")


async def _report_controller(state: ClusterState, known: Mapping[str, StateComparison]) -> RoleStates:
    if answer := known.get(ATTACH_DETACH_ROLE):
        return RoleStates(ATTACH_DETACH_ROLE, StateSource.ROLE, len(answer.volumes), answer.volumes)
    if await state.cannot_read(Pod, PersistentVolume, PersistentVolumeClaim, Node, VolumeAttachment):
        unknown = "not all of pods, claims, volumes, nodes and volumeattachments may be read"
        return RoleStates(ATTACH_DETACH_ROLE, StateSource.NONE, unknown=unknown)
    controller = await state.load_controller(AttachDetach)
    volumes = (await controller.compare_states()).volumes
    return RoleStates(ATTACH_DETACH_ROLE, StateSource.API, len(volumes), volumes, NO_TIMERS)


def _report_kubelet(
    role: str, known: Mapping[str, StateComparison], answers: RoleAnswers[StateComparison]
) -> RoleStates:
    if answer := known.get(role):
        return RoleStates(role, StateSource.ROLE, len(answer.volumes), answer.volumes)
    unknown = "its kubelet does not answer: the node is down, or starting" if answers.asked else ONLY_KUBELET
    return RoleStates(role, StateSource.NONE, unknown=unknown)
