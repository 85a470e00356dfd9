"""What a VolumeGroupSnapshotContent needs next of its driver. The rules are those of single contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from volplane.api.core import SecretReference
from volplane.api.snapshot import VolumeGroupSnapshotClass, VolumeGroupSnapshotContent
from volplane.rules import groups, snapshots
from volplane.rules.snapshots import BadClass
from volplane.rules.templates import BadTemplate


class Driver(Struct, frozen=True):
    name: str
    prefix: str = "groupsnapshot"
    uuid_length: int = -1
    extra_metadata: bool = False


class Take(Struct, frozen=True):
    name: str
    volumes: tuple[str, ...]
    parameters: Mapping[str, str]
    secret: SecretReference | None
    first: bool  # nothing was ever answered


class Look(Struct, frozen=True):
    """Ask how a group is that was there before."""

    handle: str
    members: tuple[str, ...]
    secret: SecretReference | None


class Delete(Struct, frozen=True):
    handle: str
    members: tuple[str, ...]
    secret: SecretReference | None


class Unmark(Struct, frozen=True):
    pass


class Release(Struct, frozen=True):
    pass


class Fail(Struct, frozen=True):
    why: str
    first: bool = True


Step = Take | Look | Delete | Unmark | Release | Fail


def plan(
    content: VolumeGroupSnapshotContent, group_class: VolumeGroupSnapshotClass | None, driver: Driver
) -> Iterator[Step]:
    if content.spec.driver != driver.name:
        return
    if is_to_go(content):
        yield from _go(content)
    elif groups.is_ready(content):
        if groups.BEING_CREATED in content.metadata.annotations:
            yield Unmark()
    elif (given := content.spec.source.group_snapshot_handles) is not None:
        handle, members = given.volume_group_snapshot_handle, given.volume_snapshot_handles
        yield _look(content, handle, members, group_class)
    else:
        yield _take(content, group_class, driver)


def is_to_go(content: VolumeGroupSnapshotContent) -> bool:
    if not content.is_deleting:
        return False
    given = content.spec.source.group_snapshot_handles is not None
    if given and not content.spec.volume_group_snapshot_ref.uid:
        return True  # nobody ever named it
    notes = content.metadata.annotations
    return groups.BEING_CREATED not in notes and groups.BEING_DELETED in notes


def _go(content: VolumeGroupSnapshotContent) -> Iterator[Step]:
    handle = content.status.volume_group_snapshot_handle if content.status is not None else None
    if content.spec.deletion_policy == snapshots.DELETE and handle is not None:
        yield Delete(handle, members(content), noted_secret(content))
    if groups.CONTENT_BOUND in content.metadata.finalizers:
        yield Release()


def members(content: VolumeGroupSnapshotContent) -> tuple[str, ...]:
    """The driver's names for the snapshots in the group."""
    told = content.status.volume_snapshot_info_list if content.status is not None else ()
    if told:
        return tuple(info.snapshot_handle for info in told)
    given = content.spec.source.group_snapshot_handles
    return given.volume_snapshot_handles if given is not None else ()


def _take(
    content: VolumeGroupSnapshotContent, found: VolumeGroupSnapshotClass | None, driver: Driver
) -> Take | Fail:
    first = content.status is None
    if found is None:
        return Fail(_no_class(content), first)
    try:
        parameters = snapshots.for_driver(found.parameters)
    except BadClass as error:
        return Fail(f"failed to remove CSI Parameters of prefixed keys: {error}", first)
    ref = content.spec.volume_group_snapshot_ref
    if driver.extra_metadata:
        parameters[f"{snapshots.PREFIX}volumegroupsnapshot/name"] = ref.name
        parameters[f"{snapshots.PREFIX}volumegroupsnapshot/namespace"] = ref.namespace
        parameters[f"{snapshots.PREFIX}volumegroupsnapshotcontent/name"] = content.name
    name = snapshots.named(driver.prefix, driver.uuid_length, ref.uid)
    return Take(name, content.spec.source.volume_handles, parameters, noted_secret(content), first)


def _no_class(content: VolumeGroupSnapshotContent) -> str:
    name = content.spec.volume_group_snapshot_class_name
    why = (
        f"failed to take group snapshot {content.name} without a group snapshot class"
        if name is None
        else f'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "{name}" not found'
    )
    asked = "failed to get input parameters to create group snapshot for group snapshot content"
    return f'{asked} {content.name}: "{why}"'


def _look(
    content: VolumeGroupSnapshotContent,
    handle: str,
    known: tuple[str, ...],
    found: VolumeGroupSnapshotClass | None,
) -> Look | Fail:
    name = content.spec.volume_group_snapshot_class_name
    if name is None:
        return Look(handle, known, None)
    if found is None:
        why = f'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "{name}" not found'
        return Fail(f"failed to get group snapshot class {name} for content {content.name}: {why}", False)
    try:
        tokens = {"volumegroupsnapshotcontent.name": content.name}
        return Look(handle, known, snapshots.secret(snapshots.GROUP_GET, found.parameters, tokens))
    except (BadClass, BadTemplate) as error:
        return Fail(f"failed to get secret reference for content {content.name}: {error}", False)


def noted_secret(content: VolumeGroupSnapshotContent) -> SecretReference | None:
    notes = content.metadata.annotations
    name, namespace = notes.get(groups.SECRET_NAME), notes.get(groups.SECRET_NAMESPACE)
    if name is None or namespace is None:
        return None
    return SecretReference(name=name, namespace=namespace)


def relevant_fields(content: VolumeGroupSnapshotContent | None) -> object:
    """The fields whose change matters. Our own writes must not cut a pause short."""
    if content is None:
        return None
    notes = {k: v for k, v in content.metadata.annotations.items() if k != groups.BEING_CREATED}
    return content.uid, content.is_deleting, notes, content.spec
