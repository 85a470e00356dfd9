"""Where a volume is needed beside where it is attached, and the step between the two.

Pure: from a view and its plan. The VolumeAttachments are the ActualStateOfWorld: without one a volume is
detached, and one that is not `attached` is uncertain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from volplane.controllers.attachdetach import plan as p
from volplane.loops.queue import WaitingKey
from volplane.loops.volume_states import ComparedVolume, PendingStep, pending_step, pending_wait
from volplane.rules.steps import CommonStep, RecordEvent, Requeue
from volplane.rules.waits import Wait

DESIRED = "attached"


def compare(
    key: str,
    plugin: str,
    view: p.AttachDetachView,
    steps: Iterable[p.Step | CommonStep],
    waits: Sequence[WaitingKey[str]] = (),
) -> Iterator[ComparedVolume]:
    """One entry for each node that needs the volume, has it attached, or lists it as attached."""
    existing = {attachment.node: attachment for attachment in view.attachments}
    listed = (node for node, facts in view.nodes.items() if facts.listed)
    pending = _find_pending(steps, waits)
    for node in sorted({*view.wanted, *existing, *listed}):
        facts = view.nodes.get(node, p.NodeFacts())
        yield ComparedVolume(
            key,
            view.title,
            plugin,
            node,
            tuple(sorted(pod.key for pod in view.wanted.get(node, ()))),
            DESIRED if node in view.wanted else "",
            _describe_actual(existing.get(node), facts),
            pending.get(node),
        )


def _describe_actual(attachment: p.ExistingAttachment | None, facts: p.NodeFacts) -> str:
    if attachment is None:
        return ", ".join(_list_status_fields(facts))
    state = "attached" if attachment.attached else "attaching"
    state = "detaching" if attachment.deleting else state
    return f"{state}, in use" if facts.in_use else state


def _list_status_fields(facts: p.NodeFacts) -> Iterator[str]:
    if facts.listed:
        yield "in volumesAttached"
    if facts.in_use:
        yield "in volumesInUse"


def _find_pending(
    steps: Iterable[p.Step | CommonStep], waits: Sequence[WaitingKey[str]]
) -> dict[str, PendingStep]:
    """The first step for each node. A wait that an event precedes counts, and not the event."""
    found: dict[str, PendingStep] = {}
    for step in steps:
        match step:
            case Wait():
                found.setdefault(step.data.node, pending_wait(step, waits))
            case p.ReportMultiAttach() | RecordEvent() | Requeue():
                continue
            case p.DeleteAttachment(attachment):
                found.setdefault(attachment.node, pending_step("delete the VolumeAttachment", waits))
            case p.CreateAttachment(node):
                found.setdefault(node, pending_step("create a VolumeAttachment", waits))
            case p.AddToVolumesAttached(node):
                found.setdefault(node, pending_step("add it to volumesAttached", waits))
            case p.RemoveFromVolumesAttached(node):
                found.setdefault(node, pending_step("remove it from volumesAttached", waits))
            case p.ReportAttachFailure(node, message):
                found.setdefault(node, _find_failure(node, message, waits))
            case _:
                assert_never(step)
    return found


def _find_failure(node: str, message: str, waits: Sequence[WaitingKey[str]]) -> PendingStep:
    """The attacher's error, with the time of its next report."""
    for waiting in waits:
        if waiting.wait.reason is p.WaitReason.ATTACH_FAILED and waiting.wait.data.node == node:
            return pending_wait(waiting.wait, waits)
    return pending_step(message, waits)
