"""What a write changes in the state of claims, volumes, attachments, pods and nodes.

Only what a state diagram shows: phases, bindings, conditions, finalizers, attachment, deletion. One change is
a field with its value before and after; "" means that it was not set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment

Change = tuple[str, str, str]  # field, before, after
Reader = Callable[[Any], str]

EXISTS = "exists"
DELETION = "metadata.deletionTimestamp"
FINALIZER = "metadata.finalizers"
CONDITION = "status.conditions"
IN_USE, ATTACHED = "status.volumesInUse", "status.volumesAttached"


def list_changes(old: Any | None, new: Any | None) -> list[Change]:
    """The changes of one write; None: the object does not exist before, or after it."""
    kind = type(new if new is not None else old)
    if kind is Node:
        return list(_list_node_changes(old, new)) if old is not None and new is not None else []
    if kind not in _FIELDS:
        return []
    found = []
    if old is None or new is None:
        found.append((EXISTS, "yes" if old is not None else "", "yes" if new is not None else ""))
    if new is None:
        return [*_compare_sets(FINALIZER, old.metadata.finalizers if old is not None else (), ()), *found]
    found += _list_metadata_changes(old, new)
    for name, read in _FIELDS[kind].items():
        if old is not None and _shares_part(old, new, name):
            continue
        before, after = read(old) if old is not None else "", read(new)
        if before != after:
            found.append((name, before, after))
    return found + list(_list_condition_changes(old, new))


def _shares_part(old: Any, new: Any, field: str) -> bool:
    """Whether the write has left the part of the object with this field as it was: then it is the same."""
    part = field[: field.index(".")]
    return getattr(old, part) is getattr(new, part)


def _list_metadata_changes(old: Any | None, new: Any) -> Iterator[Change]:
    was, now = old.metadata if old is not None else None, new.metadata
    before = was.deletion_timestamp or "" if was is not None else ""
    if (now.deletion_timestamp or "") != before:
        yield DELETION, before, now.deletion_timestamp or ""
    yield from _compare_sets(FINALIZER, was.finalizers if was is not None else (), now.finalizers)


def _list_condition_changes(old: Any | None, new: Any) -> Iterator[Change]:
    conditions = getattr(new.status, "conditions", ())
    known = getattr(old.status, "conditions", ()) if old is not None else ()
    if conditions is known or conditions == known:
        return
    before = {each.type: each.status for each in known}
    after = {each.type: each.status for each in conditions}
    for name in before | after:
        if before.get(name, "") != after.get(name, ""):
            yield f"{CONDITION}[{name}]", before.get(name, ""), after.get(name, "")


def _list_node_changes(old: Node, new: Node) -> Iterator[Change]:
    was, now = old.status, new.status
    if was.volumes_in_use != now.volumes_in_use:
        yield from _compare_sets(IN_USE, was.volumes_in_use, now.volumes_in_use)
    if was.volumes_attached != now.volumes_attached:
        before, after = (tuple(each.name for each in s.volumes_attached) for s in (was, now))
        yield from _compare_sets(ATTACHED, before, after)


def _compare_sets(name: str, before: Iterable[str], after: Iterable[str]) -> Iterator[Change]:
    was, now = dict.fromkeys(before), dict.fromkeys(after)
    for each in was:
        if each not in now:
            yield f"{name}[{each}]", "yes", ""
    for each in now:
        if each not in was:
            yield f"{name}[{each}]", "", "yes"


def changed_volumes(changes: Iterable[Change]) -> Iterator[str]:
    """The unique names of volumes in the changes of a node."""
    for name, _, _ in changes:
        field, _, rest = name.partition("[")
        if field in (IN_USE, ATTACHED):
            yield rest.removesuffix("]")


def _read_path(path: str, obj: Any) -> str:
    for part in path.split("."):
        if obj is None:
            return ""
        obj = getattr(obj, part)
    return "" if obj is None or obj is False else "true" if obj is True else str(obj)


def _claim_ref(volume: PersistentVolume) -> str:
    ref = volume.spec.claim_ref
    return f"{ref.namespace}/{ref.name}" + (f" ({ref.uid})" if ref.uid else "") if ref is not None else ""


def _storage(part: str, claim: PersistentVolumeClaim) -> str:
    sizes: Mapping[str, Any] = getattr(claim.status, part)
    return str(sizes.get("storage", ""))


_FIELDS: dict[type, dict[str, Reader]] = {
    PersistentVolumeClaim: {
        "status.phase": partial(_read_path, "status.phase"),
        "spec.volumeName": partial(_read_path, "spec.volume_name"),
        "metadata.annotations[selected-node]": lambda claim: str(
            claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION, "")
        ),
        "status.capacity[storage]": partial(_storage, "capacity"),
        "status.allocatedResourceStatuses[storage]": partial(_storage, "allocated_resource_statuses"),
    },
    PersistentVolume: {
        "status.phase": partial(_read_path, "status.phase"),
        "spec.claimRef": _claim_ref,
        "spec.persistentVolumeReclaimPolicy": partial(_read_path, "spec.persistent_volume_reclaim_policy"),
    },
    VolumeAttachment: {
        "status.attached": partial(_read_path, "status.attached"),
        "status.attachError": partial(_read_path, "status.attach_error.message"),
        "status.detachError": partial(_read_path, "status.detach_error.message"),
    },
    Pod: {
        "spec.nodeName": partial(_read_path, "spec.node_name"),
        "status.phase": partial(_read_path, "status.phase"),
    },
}
