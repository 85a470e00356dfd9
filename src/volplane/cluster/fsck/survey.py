"""Read everything that must agree: stores, disks, shared directories, certificates, and the machine."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from volplane.api import codec, kinds
from volplane.api.core import PersistentVolume, Pod
from volplane.api.kinds import Kind
from volplane.api.meta import Resource
from volplane.api.storage import VolumeAttachment
from volplane.apiserver.auth.certificates import inspect_certificates
from volplane.cloud.model import CloudSnapshot, CloudVolume
from volplane.cluster.data_directory import DataDirectory, instance_of
from volplane.cluster.fsck.model import (
    CertificateSurvey,
    DirectorySurvey,
    ImageSurvey,
    MountSurvey,
    StoredAttachment,
    StoredVolume,
    StoreSurvey,
)
from volplane.cluster.lifecycle import ClusterPhase, find_processes
from volplane.drivers.efs.access_points import AccessPoint
from volplane.host import devices, files
from volplane.host.mounts import read_table
from volplane.node.containers import records as container_records
from volplane.store import StoreFailed, StoreRecord
from volplane.store.sqlite.backup import read_database

PREFIX = "/registry/"
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
VOLUMES, SNAPSHOTS = "/cloud/volumes/", "/cloud/snapshots/"
EBS = "ebs.csi.aws.com"
_POD = re.compile(r"/pods/([0-9a-f-]{36})/")
_TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]+\.tmp")  # see base.files.atomic_write

T = TypeVar("T", bound=Struct)


def read_survey(layout: DataDirectory, report: Callable[[str], None]) -> DirectorySurvey:
    """`report` gets what is read next."""
    directory = layout.directory
    report("reading the objects")
    objects = _ObjectSurvey.read(layout.state)
    report("reading the records of disks")
    cloud = _CloudSurvey.read(layout.cloud / "state.db")
    report("reading the disks and the machine")
    running = find_processes(layout).phase is not ClusterPhase.STOPPED
    points, unreadable, lost = _read_access_points(layout)
    found_mounts = [MountSurvey(e.target, _pod_of(e.target)) for e in read_table().under(str(directory))]
    return DirectorySurvey(
        running=running,
        stores=[survey for survey in (objects.store, cloud.store) if survey is not None],
        volumes=objects.volumes,
        attachments=objects.attachments,
        pods=frozenset(objects.pods),
        disks=cloud.disks,
        snapshots=cloud.snapshots,
        unreadable_records=frozenset(cloud.unreadable),
        images=_read_images(layout.cloud / "disks"),
        snapshot_images=_read_images(layout.cloud / "snapshots"),
        orphaned=[str(path.relative_to(directory)) for path in sorted(layout.cloud.glob("*/*.orphaned"))],
        loops=devices.loops_below(str(directory)),
        mounts=found_mounts,
        containers=_read_containers(layout),
        access_points=points,
        lost_directories=lost,
        unreadable_points=unreadable,
        certificates=[
            CertificateSurvey(each.path.name, each.days_left, each.problem)
            for each in inspect_certificates(directory / "pki")
        ],
        temporary=[] if running else sorted(_find_temporary(directory)),
        has_bridge=not running and os.path.exists(f"/sys/class/net/{layout.bridge}"),
    )


def read_stores(layout: DataDirectory) -> list[StoreSurvey]:
    """The databases alone."""
    found = (_ObjectSurvey.read(layout.state).store, _CloudSurvey.read(layout.cloud / "state.db").store)
    return [store for store in found if store is not None]


class _ObjectSurvey:
    """The objects of the API, all of which are decoded once."""

    def __init__(self) -> None:
        self.store: StoreSurvey | None = None
        self.volumes: list[StoredVolume] = []
        self.attachments: list[StoredAttachment] = []
        self.pods: list[str] = []

    @classmethod
    def read(cls, path: Path) -> _ObjectSurvey:
        survey = cls()
        records, damage = _read_records(path)
        known = {kind.stored_as or kind.resource: kind for kind in kinds.ALL}
        custom = {r.key.rpartition("/")[2] for r in records if r.key.startswith(f"{PREFIX}{DEFINITIONS}/")}
        unreadable: dict[str, str] = {}
        unknown: Counter[str] = Counter()
        objects: list[Resource] = []
        for record in records:
            resource = record.key.removeprefix(PREFIX).partition("/")[0]
            try:
                if kind := known.get(resource):
                    objects.append(_load(kind, record))
                elif resource in custom:
                    msgspec.json.decode(b'{"metadata":{' + record.value)
                else:
                    unknown[resource] += 1
            except ValueError as error:
                unreadable[record.key] = str(error)
        survey.store = StoreSurvey("state.db", damage, len(records), unreadable, unknown)
        survey._index(objects)
        return survey

    def _index(self, objects: list[Resource]) -> None:
        handles: dict[str, str] = {}
        attachments = [obj for obj in objects if isinstance(obj, VolumeAttachment)]
        for obj in objects:
            if isinstance(obj, Pod):
                self.pods.append(obj.metadata.uid)
            elif isinstance(obj, PersistentVolume) and (csi := obj.spec.csi) is not None:
                claim = obj.spec.claim_ref
                owner = f"{claim.namespace}/{claim.name}" if claim is not None else ""
                self.volumes.append(StoredVolume(obj.metadata.name, csi.driver, csi.volume_handle, owner))
                handles[obj.metadata.name] = csi.volume_handle
        for obj in attachments:
            handle = handles.get(obj.spec.source.persistent_volume_name or "")
            if (
                handle
                and obj.spec.attacher == EBS
                and obj.status.attached
                and not obj.metadata.deletion_timestamp
            ):
                node = obj.spec.node_name
                self.attachments.append(StoredAttachment(obj.metadata.name, handle, node, instance_of(node)))


def _load(kind: Kind, record: StoreRecord) -> Resource:
    type = kind.type
    assert type is not None
    return codec.load(type, record.value, record.revision)


class _CloudSurvey:
    """The records of the disk service; none if it does not run here."""

    def __init__(self) -> None:
        self.store: StoreSurvey | None = None
        self.disks: dict[str, CloudVolume] = {}
        self.snapshots: dict[str, CloudSnapshot] = {}
        self.unreadable: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> _CloudSurvey:
        survey = cls()
        if not path.exists():
            return survey
        records, damage = _read_records(path)
        why: dict[str, str] = {}
        for record in records:
            try:
                if record.key.startswith(VOLUMES):
                    volume = msgspec.json.decode(record.value, type=CloudVolume)
                    survey.disks[volume.id] = volume
                elif record.key.startswith(SNAPSHOTS):
                    snapshot = msgspec.json.decode(record.value, type=CloudSnapshot)
                    survey.snapshots[snapshot.id] = snapshot
            except ValueError as error:
                why[record.key] = str(error)
                survey.unreadable.add(record.key.rpartition("/")[2])
        survey.store = StoreSurvey("cloud/state.db", damage, len(records), why)
        return survey


def _read_records(path: Path) -> tuple[list[StoreRecord], str]:
    """The records of a database, and what is wrong with it."""
    try:
        return read_database(path), ""
    except StoreFailed as error:
        return [], str(error)


def _read_images(directory: Path) -> dict[str, ImageSurvey]:
    found = {}
    for path in directory.glob("*.img"):
        if path.is_file() and not path.is_symlink():
            there = path.stat()
            found[path.name.removesuffix(".img")] = ImageSurvey(there.st_size, there.st_blocks == 0)
    return found


def _read_access_points(layout: DataDirectory) -> tuple[frozenset[str], list[str], list[str]]:
    """The handles of all access points, records that cannot be read, and handles without a directory."""
    handles, unreadable, lost = set(), [], []
    for path in sorted((layout.shared / ".points").glob("fsap-*.json")):
        try:
            point = msgspec.json.decode(path.read_bytes(), type=AccessPoint)
        except (OSError, ValueError):
            unreadable.append(str(path.relative_to(layout.directory)))
            continue
        handles.add(point.handle)
        try:
            with files.open_directory(str(layout.shared), f"{point.file_system}/{point.path}"):
                pass
        except OSError:
            lost.append(point.handle)
    return frozenset(handles), unreadable, lost


def _read_containers(layout: DataDirectory) -> Mapping[str, str]:
    found = {}
    for directory in layout.nodes.glob("*/containers"):
        for record in container_records.load_all(str(directory)):
            if record.is_alive:
                spec = record.started.spec
                found[record.directory] = f"{spec.pod_name}/{spec.name}"
    return found


def _find_temporary(directory: Path) -> Iterator[str]:
    for place in (directory, *(directory / name for name in ("pki", "run", "cloud", "efs/.points"))):
        for path in place.glob(".*.tmp"):
            if _TEMPORARY.fullmatch(path.name):
                yield str(path.relative_to(directory))


def _pod_of(target: str) -> str:
    found = _POD.search(target)
    return found[1] if found else ""
