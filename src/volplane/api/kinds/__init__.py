"""The built-in kinds, a row each: a new kind is a Struct and a row here.

A row names everything that the server knows about a kind: its names and scope, the class with its rules
(`strategy`), which updates and deletes it allows, its selectable fields and its table columns (the language
of `columns` is explained in `apiserver.tables.columns`). Protobuf numbers, integer widths and required fields
come from the published schema (`api.published_schema`), default values from `apiserver/defaults.yaml`.
"""

from __future__ import annotations

from functools import cache

from msgspec import defstruct

from volplane.api import authentication, autoscaling, policy, snapshot
from volplane.api.kind import Kind as Kind
from volplane.api.kind import Subresource as Subresource
from volplane.api.kinds import cluster, core, storage, workloads
from volplane.api.kinds.shared import CREATE, builtin_kind
from volplane.api.kinds.shared import SCALE as SCALE
from volplane.api.kinds.shared import STATUS as STATUS
from volplane.api.meta import PartialObjectMetadata, Resource

# Kinds that a server serves from the start: those that are only data, and those whose controllers exist.
ALL: tuple[Kind, ...] = (*core.KINDS, *workloads.KINDS, *storage.KINDS, *cluster.KINDS)

# Objects that are posted to subresources and never stored.
SUBRESOURCE_KINDS: tuple[Kind, ...] = (
    builtin_kind(policy.Eviction, "evictions.policy", verbs=CREATE),
    builtin_kind(autoscaling.Scale, "scales.autoscaling", verbs=()),
    builtin_kind(authentication.TokenRequest, "tokenrequests.authentication.k8s.io", verbs=CREATE),
)

# Kinds that our clients have types for, while a server knows them by their definitions, as custom resources.
CLIENT_KINDS: tuple[Kind, ...] = (
    builtin_kind(
        snapshot.VolumeSnapshot, "volumesnapshots.snapshot.storage.k8s.io vs", subresources=(STATUS,)
    ),
    builtin_kind(
        snapshot.VolumeSnapshotContent,
        "volumesnapshotcontents.snapshot.storage.k8s.io vsc vscs",
        namespaced=False,
        subresources=(STATUS,),
    ),
    builtin_kind(
        snapshot.VolumeSnapshotClass,
        "volumesnapshotclasses.snapshot.storage.k8s.io vsclass vsclasses",
        namespaced=False,
    ),
    builtin_kind(
        snapshot.VolumeGroupSnapshot,
        "volumegroupsnapshots.groupsnapshot.storage.k8s.io vgs",
        version="v1beta2",
        subresources=(STATUS,),
    ),
    builtin_kind(
        snapshot.VolumeGroupSnapshotContent,
        "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io vgsc vgscs",
        version="v1beta2",
        namespaced=False,
        subresources=(STATUS,),
    ),
    builtin_kind(
        snapshot.VolumeGroupSnapshotClass,
        "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io vgsclass vgsclasses",
        version="v1beta2",
        namespaced=False,
    ),
)

_BY_TYPE = {k.type: k for k in ALL + SUBRESOURCE_KINDS + CLIENT_KINDS}
_BY_KIND = {(k.api_version, k.kind): k for k in ALL + SUBRESOURCE_KINDS}
_BY_PATH = {(k.group, k.version, k.plural): k for k in ALL}


def of(type: type[Resource]) -> Kind:
    return _BY_TYPE[type]


def by_kind(api_version: str, kind: str) -> Kind | None:
    return _BY_KIND.get((api_version, kind))


def by_path(group: str, version: str, plural: str) -> Kind | None:
    return _BY_PATH.get((group, version, plural))


@cache
def define_metadata_only_type(
    group: str, version: str, kind: str, plural: str, *, namespaced: bool
) -> type[Resource]:
    """A type for a kind that has none here, so that clients can watch its objects: their metadata only."""
    made: type[Resource] = defstruct(kind, [], bases=(PartialObjectMetadata,), module=__name__)  # type: ignore[assignment]
    _BY_TYPE[made] = Kind(made, group, version, kind, plural, namespaced=namespaced)
    return made
