"""Which trace the objects of a volume belong to: the trace of its claim.

`pvc/default/data` has the trace of its UID; a volume that of its claim; an attachment that of its volume; a
pod those of its claims, or its own if it has none. Driver and disk service know the volume's handle only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.base.trace_context import trace_id
from volplane.rules.pods import claim_uses

TRACED_TYPES = frozenset({Pod, PersistentVolumeClaim, PersistentVolume, VolumeAttachment})
Fact = tuple[str, tuple[str, ...]]  # a subject, and the traces or subjects it belongs to


def list_trace_facts(obj: Any) -> Iterator[Fact]:
    """What an object tells about the traces of itself and of what it names; nothing for other kinds."""
    if isinstance(obj, Pod):
        yield _pod_subject(obj), _refs_of_pod(obj)
    elif isinstance(obj, PersistentVolumeClaim):
        yield f"pvc/{obj.namespace}/{obj.name}", (trace_id(obj.uid),)
    elif isinstance(obj, PersistentVolume):
        ref, csi = obj.spec.claim_ref, obj.spec.csi
        yield from _list_volume_facts(
            obj.name, ref.uid if ref is not None else "", csi.volume_handle if csi is not None else ""
        )
    elif isinstance(obj, VolumeAttachment):
        yield f"va/{obj.name}", _refs_of_attachment(obj)


def has_new_facts(old: Any | None, new: Any) -> bool:
    """Whether an object may tell more than its last version: what it refers to is in its spec."""
    return old is None or new.spec is not old.spec


def subject_of_unique_name(name: str) -> str:
    """The subject of a volume in `volumesInUse` and `volumesAttached`: kubernetes.io/csi/DRIVER^HANDLE."""
    _, found, handle = name.partition("^")
    return f"volume/{handle}" if found else f"volume/{name}"


def _pod_subject(pod: Pod) -> str:
    return f"pod/{pod.namespace}/{pod.name}"


def _refs_of_pod(pod: Pod) -> tuple[str, ...]:
    claims = tuple(f"pvc/{pod.namespace}/{name}" for name in list_claim_names(pod))
    return claims or (trace_id(pod.uid),)


def list_claim_names(pod: Pod) -> tuple[str, ...]:
    """The claims of a pod, those of its ephemeral volumes included, in the order of its volumes."""
    return tuple(dict.fromkeys(use.claim for use in claim_uses(pod)))


def _list_volume_facts(name: str, claim_uid: str, handle: str) -> Iterator[Fact]:
    if claim_uid:
        yield f"pv/{name}", (trace_id(claim_uid),)
    if handle:
        yield f"volume/{handle}", (f"pv/{name}",)


def _refs_of_attachment(attachment: VolumeAttachment) -> tuple[str, ...]:
    name = attachment.spec.source.persistent_volume_name
    return (f"pv/{name}",) if name else ()
