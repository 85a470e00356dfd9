"""The built-in kinds, one row each. To add a kind, write a row here, and a Struct if anything acts on it.

A row names everything that the server knows about a kind: its names and scope, the class with its rules
(`strategy`), which updates and deletes it allows, its selectable fields and its table columns (the language
of `columns` is explained in `apiserver.tables.columns`). Protobuf numbers, integer widths and required fields
come from the published schema (`api.published_schema`), default values from `apiserver/defaults.yaml`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import defstruct

from volplane.api import authentication, autoscaling, policy, snapshot
from volplane.api.kind import Kind as Kind
from volplane.api.kind import Subresource as Subresource
from volplane.api.kinds import cluster, core, data, storage, workloads
from volplane.api.kinds.shared import CREATE, builtin_kind
from volplane.api.kinds.shared import SCALE as SCALE
from volplane.api.kinds.shared import STATUS as STATUS
from volplane.api.meta import PartialObjectMetadata, Resource
from volplane.api.published_schema import message_name

# Kinds that a server serves from the start: those whose controllers exist, and those that are only data.
ALL: tuple[Kind, ...] = (*core.KINDS, *workloads.KINDS, *storage.KINDS, *cluster.KINDS, *data.KINDS)

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

_BY_TYPE = {k.struct: k for k in ALL + SUBRESOURCE_KINDS + CLIENT_KINDS if k.struct is not None}
_BY_KIND = {(k.api_version, k.kind): k for k in ALL + SUBRESOURCE_KINDS}
_BY_MESSAGE = {k.message: k for k in data.KINDS}


def of(type: type[Resource]) -> Kind:
    return find(type) or _BY_TYPE[type]


def find(type: type[Any]) -> Kind | None:
    """The kind of a type; None for parts of objects."""
    found = _BY_TYPE.get(type)
    if found is None and issubclass(type, Resource) and (found := _BY_MESSAGE.get(message_name(type))):
        _BY_TYPE[type] = found
    return found


def by_kind(api_version: str, kind: str) -> Kind | None:
    return _BY_KIND.get((api_version, kind))


@cache
def define_metadata_only_type(
    group: str, version: str, kind: str, plural: str, *, namespaced: bool
) -> type[Resource]:
    """Define a type for a kind that has none here, so that clients can watch the metadata of its objects."""
    made: type[Resource] = defstruct(kind, [], bases=(PartialObjectMetadata,), module=__name__)  # type: ignore[assignment]
    _BY_TYPE[made] = Kind(made, group, version, kind, plural, namespaced=namespaced)
    return made


def metadata_type(kind: Kind) -> type[Resource]:
    """A type that has at least the metadata of a built-in kind's objects."""
    return kind.struct or define_metadata_only_type(
        kind.group, kind.version, kind.kind, kind.plural, namespaced=kind.namespaced
    )
