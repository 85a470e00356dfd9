"""A journey from what any cluster shows: timestamps, conditions, managedFields, events and metrics.

Objects tell what was reached and when, in whole seconds; events tell who did it, as long as they are kept.
Nothing tells the calls to drivers, nor what was undone: the journey says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import ManagedFieldsEntry, Resource
from volplane.api.storage import VolumeAttachment
from volplane.base.trace_context import trace_id
from volplane.explain.cluster_state import parse_time
from volplane.explain.journey.event_steps import describe_event, lane_of_manager, phase_of_manager
from volplane.explain.journey.join import judge_outcome
from volplane.explain.journey.measure import measure_calls, measure_usage
from volplane.explain.journey.model import (
    Journey,
    JourneyStep,
    Lane,
    Phase,
    StateChange,
    StepOutcome,
    StepSource,
)

UNKNOWN_BEFORE = "?"  # the state before a change that only a timestamp shows
_LIFE = tuple(Phase)
LIMITS = (
    "how long steps took: objects and events have times in whole seconds, and only of what was reached",
    "calls to the driver (ControllerPublishVolume, NodeStageVolume, …) and to the storage system: "
    "only logs and metrics of the components have them",
    "earlier pods and attachments of this volume: the API server has none of a deleted object, "
    "and keeps events for an hour by default",
)


class VolumeObjects(Struct, frozen=True):
    """What a cluster has about one volume."""

    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None
    attachments: tuple[VolumeAttachment, ...] = ()
    pods: tuple[Pod, ...] = ()
    events: tuple[Event, ...] = ()
    unread: tuple[str, ...] = ()
    kubelet_metrics: Mapping[str, str] = {}  # by node, in Prometheus' text format


def derive_journey(objects: VolumeObjects) -> Journey:
    # Times are in whole seconds: within a second, the order of a volume's life is the likely one.
    steps = tuple(sorted(_list_steps(objects), key=lambda step: (step.at, _LIFE.index(step.phase))))
    owner = objects.claim or next(iter(objects.pods), None) or objects.volume
    volume, metrics = objects.volume, objects.kubelet_metrics
    csi = volume.spec.csi if volume is not None else None
    claim = objects.claim.key if objects.claim is not None else ""
    usage = (measure_usage(text, node, claim) for node, text in metrics.items())
    return Journey(
        subject=_subject(owner) if owner is not None else "",
        uid=owner.uid if owner is not None else "",
        trace=trace_id(owner.uid) if owner is not None else "",
        outcome=judge_outcome(steps),
        began=steps[0].at if steps else None,
        ended=steps[-1].at if steps else None,
        volumes=(volume.name,) if volume is not None else (),
        attachments=tuple(attachment.name for attachment in objects.attachments),
        pods=tuple(pod.key for pod in objects.pods),
        disks=(csi.volume_handle,) if csi is not None and csi.volume_handle else (),
        nodes=tuple(dict.fromkeys(a.spec.node_name for a in objects.attachments)),
        steps=steps,
        unknown=(*LIMITS, *objects.unread),
        calls=tuple(
            call
            for node, text in metrics.items()
            for call in (measure_calls(text, node, csi.driver) if csi is not None else ())
        ),
        usage=tuple(each for each in usage if each is not None),
    )


def _list_steps(objects: VolumeObjects) -> Iterator[JourneyStep]:
    if objects.claim is not None:
        yield from _list_creation(objects.claim, Lane.USER, Phase.PROVISION)
        yield from _list_managed_writes(objects.claim)
        yield from _list_conditions(objects.claim, Phase.OTHER, Lane.KUBELET)
    if objects.volume is not None:
        provisioned = "pv.kubernetes.io/provisioned-by" in objects.volume.metadata.annotations
        yield from _list_creation(
            objects.volume, Lane.PROVISIONER if provisioned else Lane.USER, Phase.PROVISION
        )
        yield from _list_managed_writes(objects.volume)
    for attachment in objects.attachments:
        yield from _list_creation(attachment, Lane.ATTACH_DETACH, Phase.ATTACH, attachment.spec.node_name)
        yield from _list_managed_writes(attachment, attachment.spec.node_name)
        yield from _list_attach_errors(attachment)
    for pod in objects.pods:
        yield from _list_creation(pod, Lane.USER, Phase.SCHEDULE)
        yield from _list_managed_writes(pod, pod.spec.node_name)
        yield from _list_conditions(pod, Phase.SCHEDULE, Lane.KUBELET)
        yield from _list_container_steps(pod)
    for event in objects.events:
        yield from _event_steps(event)


def _list_creation(obj: Resource, lane: Lane, phase: Phase, node: str = "") -> Iterator[JourneyStep]:
    subject = _subject(obj)
    if (at := parse_time(obj.metadata.creation_timestamp)) is not None:
        yield _step(
            at, lane, Lane.APISERVER, "create", subject, phase, node=node, change=("exists", "", "yes")
        )
    deleted = obj.metadata.deletion_timestamp
    if (at := parse_time(deleted)) is not None:
        back = Phase.DETACH if isinstance(obj, VolumeAttachment) else Phase.DELETE
        change = ("metadata.deletionTimestamp", "", str(deleted))
        yield _step(at, Lane.USER, Lane.APISERVER, "delete", subject, back, node=node, change=change)


def _list_managed_writes(obj: Resource, node: str = "") -> Iterator[JourneyStep]:
    """The last write of each field manager; earlier ones are not kept."""
    for entry in obj.metadata.managed_fields:
        at = parse_time(entry.time)
        if at is None:
            continue
        fields = list_managed_fields(entry)
        lane = lane_of_manager(entry.manager, _kind(obj), fields)
        yield JourneyStep(
            at=at,
            seconds=None,
            lane=lane,
            to=Lane.APISERVER,
            component=entry.manager,
            what=f"writes {', '.join(fields[:4])}{f' and {len(fields) - 4} more' if len(fields) > 4 else ''}",
            subject=_subject(obj),
            phase=phase_of_manager(_kind(obj), fields),
            node=node,
            source=StepSource.MANAGED_FIELDS,
            changes=tuple(_read_now(obj, fields)),
        )


def list_managed_fields(entry: ManagedFieldsEntry) -> list[str]:
    """The fields of one manager to the third level: status.phase, metadata.finalizers."""
    try:
        tree: Any = msgspec.json.decode(bytes(entry.fields_v1) or b"{}")
    except msgspec.DecodeError:
        return []
    found: dict[str, None] = {}
    for first, below in tree.items():
        inner = [name for name in below if name.startswith("f:")] if isinstance(below, dict) else []
        for second in inner:
            found[f"{first.removeprefix('f:')}.{second.removeprefix('f:')}"] = None
        if not inner and first.startswith("f:"):
            found[first.removeprefix("f:")] = None
    return list(found)


def _read_now(obj: Resource, fields: Iterable[str]) -> Iterator[StateChange]:
    """The present value of a state that the manager was the last to write."""
    readers: dict[str, str] = {}
    match obj:
        case PersistentVolumeClaim():
            readers = {"status.phase": obj.status.phase, "spec.volumeName": obj.spec.volume_name}
        case PersistentVolume():
            ref = obj.spec.claim_ref
            bound = f"{ref.namespace}/{ref.name}" if ref is not None else ""
            readers = {"status.phase": obj.status.phase, "spec.claimRef": bound}
        case VolumeAttachment():
            readers = {"status.attached": str(obj.status.attached).lower()}
        case Pod():
            readers = {"spec.nodeName": obj.spec.node_name, "status.phase": obj.status.phase}
    for name in fields:
        if name == "metadata.finalizers":
            for finalizer in obj.metadata.finalizers:
                yield StateChange(f"{name}[{finalizer}]", UNKNOWN_BEFORE, "yes")
        elif readers.get(name):
            yield StateChange(name, UNKNOWN_BEFORE, readers[name])


def _list_conditions(obj: PersistentVolumeClaim | Pod, phase: Phase, lane: Lane) -> Iterator[JourneyStep]:
    for condition in obj.status.conditions:
        at = parse_time(condition.last_transition_time)
        if at is None:
            continue
        is_scheduling = condition.type == "PodScheduled"
        yield JourneyStep(
            at=at,
            seconds=None,
            lane=Lane.SCHEDULER if is_scheduling else lane,
            to=Lane.APISERVER,
            component="default-scheduler" if is_scheduling else "kubelet",
            what=f"{condition.type}={condition.status}",
            subject=_subject(obj),
            phase=Phase.SCHEDULE if is_scheduling else _condition_phase(condition.type, condition.status),
            error=condition.message if condition.status != "True" else "",
            node=obj.spec.node_name if isinstance(obj, Pod) else "",
            source=StepSource.CONDITION,
            changes=(StateChange(f"status.conditions[{condition.type}]", UNKNOWN_BEFORE, condition.status),),
        )


def _condition_phase(type: str, status: str) -> Phase:
    return Phase.START if type in ("Ready", "ContainersReady") and status == "True" else Phase.OTHER


def _list_container_steps(pod: Pod) -> Iterator[JourneyStep]:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        running, ended = status.state.running, status.state.terminated
        started = running.started_at if running else ended.started_at if ended else ""
        if (at := parse_time(started)) is not None:
            yield _container_step(pod, status.name, at, "StartContainer", Phase.START)
        if ended is not None and (at := parse_time(ended.finished_at)) is not None:
            yield _container_step(pod, status.name, at, "StopContainer", Phase.STOP)


def _container_step(pod: Pod, name: str, at: datetime, what: str, phase: Phase) -> JourneyStep:
    return JourneyStep(
        at=at,
        seconds=None,
        lane=Lane.KUBELET,
        to=Lane.CONTAINER,
        component="kubelet",
        what=what,
        subject=_subject(pod),
        phase=phase,
        node=pod.spec.node_name,
        source=StepSource.FIELD,
        details={"container": name},
    )


def _list_attach_errors(attachment: VolumeAttachment) -> Iterator[JourneyStep]:
    status = attachment.status
    for field, error, phase in (
        ("ControllerPublishVolume", status.attach_error, Phase.ATTACH),
        ("ControllerUnpublishVolume", status.detach_error, Phase.DETACH),
    ):
        at = parse_time(error.time) if error is not None else None
        if error is not None and at is not None:
            yield JourneyStep(
                at=at,
                seconds=None,
                lane=Lane.ATTACHER,
                to=Lane.DRIVER_CONTROLLER,
                component="csi-attacher",
                what=field,
                subject=_subject(attachment),
                phase=phase,
                outcome=StepOutcome.FAILED,
                error=error.message,
                node=attachment.spec.node_name,
                source=StepSource.FIELD,
            )


def _event_steps(event: Event) -> Iterator[JourneyStep]:
    """The first and the last time of a repeated event."""
    series = event.series
    stamps = (
        event.first_timestamp or event.event_time or event.metadata.creation_timestamp,
        (series.last_observed_time if series else "") or event.last_timestamp,
    )
    known = describe_event(event)
    times = list(dict.fromkeys(at for at in map(parse_time, stamps) if at is not None))
    count = max(series.count if series else event.count, 1)
    for number, at in enumerate(times):
        yield JourneyStep(
            at=at,
            seconds=None,
            lane=known.lane,
            to=known.to,
            component=event.source.component or event.reporting_component or known.lane.value,
            what=event.reason,
            subject=known.subject,
            phase=known.phase,
            outcome=StepOutcome.FAILED if event.type == "Warning" else StepOutcome.OK,
            error=event.message.strip() if event.type == "Warning" else "",
            node=event.source.host,
            attempt=count if number else 1,
            source=StepSource.EVENT,
            details={"message": event.message.strip()},
        )


def _step(
    at: datetime,
    lane: Lane,
    to: Lane,
    what: str,
    subject: str,
    phase: Phase,
    *,
    node: str,
    change: tuple[str, str, str],
) -> JourneyStep:
    return JourneyStep(
        at=at,
        seconds=None,
        lane=lane,
        to=to,
        component="apiserver",
        what=what,
        subject=subject,
        phase=phase,
        node=node,
        source=StepSource.FIELD,
        changes=(StateChange(*change),),
    )


def _kind(obj: Resource) -> str:
    return _subject(obj).partition("/")[0]


def _subject(obj: Resource) -> str:
    match obj:
        case PersistentVolumeClaim():
            return f"pvc/{obj.key}"
        case PersistentVolume():
            return f"pv/{obj.name}"
        case VolumeAttachment():
            return f"va/{obj.name}"
        case _:
            return f"pod/{obj.key}"
