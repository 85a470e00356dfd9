"""Whether a recorded journey is over: pure, from what its steps changed."""

from __future__ import annotations

from volplane.explain.journey.model import Journey, JourneyStep, StepOutcome

RECLAIM_POLICY = "spec.persistentVolumeReclaimPolicy"
RECLAIM_POLICY_DETAIL = "reclaim policy"  # of the write that made a volume Released


def is_over(journey: Journey) -> bool:
    """Whether nothing is left to happen for a deleted claim, or for a deleted pod without claims: its volume
    is unmounted and detached everywhere, and deleted unless it is to be kept.
    """
    state = _State(journey.uid)
    for step in sorted(journey.steps, key=lambda step: step.end):
        if step.outcome in (StepOutcome.OK, StepOutcome.CUT_OFF):
            state.add(step)
    return (
        journey.subject in state.removed
        and not state.attachments
        and not state.mounted
        and not any(map(state.is_to_be_deleted, state.volumes))
    )


class _State:
    """What exists after the steps that were added."""

    def __init__(self, uid: str) -> None:
        self.removed: set[str] = set()
        self.attachments: set[str] = set()
        self.volumes: dict[str, dict[str, str]] = {}  # PersistentVolumes: the last value of each field
        self.mounted: set[tuple[str, str]] = set()  # node and pod; "": the device, for all pods of the node
        self._uid = uid
        self._nodes: dict[str, str] = {}  # by attachment

    def add(self, step: JourneyStep) -> None:
        kind = step.subject.partition("/")[0]
        if kind == "va" and step.node:
            self._nodes[step.subject] = step.node
        if step.component == "kubelet":
            self._add_mount(step)
        if not step.changes:
            return
        if any(change.field == "exists" and not change.after for change in step.changes):
            self._remove(step.subject)
            return
        self.removed.discard(step.subject)
        if kind == "va":
            self.attachments.add(step.subject)
        elif kind == "pv":
            self._add_volume(step)

    def _add_volume(self, step: JourneyStep) -> None:
        fields = self.volumes.setdefault(step.subject, {})
        fields |= {change.field: change.after for change in step.changes}
        if policy := step.details.get(RECLAIM_POLICY_DETAIL):
            fields[RECLAIM_POLICY] = policy

    def _add_mount(self, step: JourneyStep) -> None:
        node, pod = step.node, step.details.get("pod", "")
        match step.what:
            case "MountDevice" | "NodeStageVolume" if step.outcome is StepOutcome.OK:
                self.mounted.add((node, ""))
            case "MountVolume" if step.outcome is StepOutcome.OK:
                self.mounted.add((node, pod))
            case "UnmountVolume":
                self.mounted.discard((node, pod))
            case "NodeUnpublishVolume" if not step.parent:  # a restarted kubelet does not know the pod
                self.mounted = {each for each in self.mounted if not each[1] or node not in ("", each[0])}
            case "UnmountDevice" | "NodeUnstageVolume":  # a kubelet does that when no pod has the volume
                self._unmount(node)

    def _unmount(self, node: str) -> None:
        """`node`: "" if its process did not know it, as after a restart."""
        self.mounted = {each for each in self.mounted if node not in ("", each[0])}

    def _remove(self, subject: str) -> None:
        self.removed.add(subject)
        self.volumes.pop(subject, None)
        if subject in self.attachments or subject in self._nodes:
            self.attachments.discard(subject)
            if node := self._nodes.get(subject):
                self._unmount(node)  # a lost node does not say that it has unmounted

    def is_to_be_deleted(self, volume: str) -> bool:
        """Whether a volume is still to be released or deleted."""
        fields = self.volumes[volume]
        claim = fields.get("spec.claimRef", self._uid)
        if self._uid not in claim:  # released by hand, or bound to another claim by now
            return False
        return fields.get(RECLAIM_POLICY, "Delete") == "Delete" or fields.get("status.phase") == "Bound"
