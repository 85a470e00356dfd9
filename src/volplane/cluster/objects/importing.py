"""Create exported objects in another cluster: what others need first, and what would refuse others last.

An object that exists already is left as it is, so an import that was interrupted can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, json, structs

from volplane.api.errors import AlreadyExists, APIError, NotFound
from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.client.https import HttpsTransport
from volplane.cluster.objects.portable import make_portable
from volplane.cluster.objects.served_kinds import ServedKind, list_served_kinds

Json = dict[str, Any]

ESTABLISH_TIMEOUT = 30.0  # seconds until a CustomResourceDefinition is served
RETRY = 0.2
_DEFINITION = "CustomResourceDefinition"
# In this order; the others come between the two lists, those of custom groups last.
_FIRST = (
    _DEFINITION,
    "Namespace",
    "PriorityClass",
    "StorageClass",
    "VolumeAttributesClass",
    "CSIDriver",
    "VolumeSnapshotClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "PersistentVolume",
    "VolumeSnapshotContent",
    "PersistentVolumeClaim",
    "VolumeSnapshot",
)
_LAST = (
    "Pod",
    "ReplicaSet",
    "ReplicationController",
    "Deployment",
    "DaemonSet",
    "StatefulSet",
    "Job",
    "CronJob",
    "LimitRange",
    "ResourceQuota",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
)


def is_custom(group: str) -> bool:
    """Whether it is a group outside Kubernetes, whose definitions people and charts bring."""
    return "." in group and not group.endswith(".k8s.io")


class ImportedObjects(Struct, frozen=True):
    created: int
    existing: tuple[str, ...]  # those that were there already
    problems: tuple[str, ...]  # those that could not be created, and why


def sort_for_import(items: Iterable[Json]) -> list[Json]:
    def rank(obj: Json) -> tuple[int, int]:
        kind = obj["kind"]
        if kind in _FIRST:
            return 0, _FIRST.index(kind)
        if kind in _LAST:
            return 2, _LAST.index(kind)
        return 1, is_custom(obj["apiVersion"].rpartition("/")[0])

    return sorted(items, key=rank)


class ObjectImport:
    def __init__(
        self, transport: HttpsTransport, report: Callable[[str], None] = lambda object: None
    ) -> None:
        self._transport, self._report = transport, report
        self._kinds: dict[tuple[str, str], ServedKind] = {}  # by group and kind
        self._has_new_kinds = False  # since the kinds were read
        self._uids: dict[str, str] = {}  # exported → created
        self._existing: list[str] = []
        self._problems: list[str] = []
        self._created = 0

    async def run(self, items: Sequence[Json]) -> ImportedObjects:
        await self._discover()
        waiting = sort_for_import(items)
        while waiting:
            exported = {obj["metadata"].get("uid") for obj in waiting}
            ready: list[Json] = []
            blocked: list[Json] = []
            for obj in waiting:
                (blocked if exported & self._owner_uids(obj) else ready).append(obj)
            for obj in ready or blocked:  # owners in a circle do not end
                await self._create(obj)
            waiting = blocked if ready else []
        return ImportedObjects(self._created, tuple(self._existing), tuple(self._problems))

    async def _discover(self) -> None:
        found = await list_served_kinds(self._transport, [])
        self._kinds = {(kind.group, kind.kind): kind for kind in found}
        self._has_new_kinds = False

    def _find_kind(self, obj: Json) -> ServedKind | None:
        """In the version of the object, which need not be the preferred one here."""
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = self._kinds.get((group, obj["kind"]))
        return None if kind is None else structs.replace(kind, version=version)

    def _owner_uids(self, obj: Json) -> set[str]:
        """Of its owners that are not created yet."""
        owners = obj["metadata"].get("ownerReferences") or ()
        return {owner["uid"] for owner in owners} - self._uids.keys()

    async def _create(self, obj: Json) -> None:
        metadata = obj["metadata"]
        place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
        title = f"{obj['kind'].lower()} {place}{metadata['name']}"
        self._report(title)
        kind = self._find_kind(obj)
        if kind is None and self._has_new_kinds:
            await self._discover()
            kind = self._find_kind(obj)
        if kind is None:
            self._problems.append(f"{title}: {obj['apiVersion']} {obj['kind']} is not served here")
            return
        path = kind.path(metadata.get("namespace", ""))
        made = make_portable(obj)
        owners = [
            {**owner, "uid": self._uids[owner["uid"]]}
            for owner in metadata.get("ownerReferences") or ()
            if owner["uid"] in self._uids
        ]
        if owners:
            made["metadata"]["ownerReferences"] = owners
        try:
            try:
                live = json.decode(await self._transport.raw("POST", path, json.encode(made)))
                self._created += 1
                has_status = False  # at most the defaults of its definition
            except AlreadyExists:
                live = json.decode(await self._transport.raw("GET", f"{path}/{metadata['name']}"))
                self._existing.append(title)
                has_status = bool(live.get("status"))
            self._uids[metadata.get("uid", "")] = live["metadata"]["uid"]
            await self._finish(kind, obj, has_status=has_status)
        except APIError as error:
            self._problems.append(f"{title}: {error}")

    async def _finish(self, kind: ServedKind, obj: Json, *, has_status: bool) -> None:
        """What an object needs after it is created, also by an import that was interrupted then."""
        if kind.kind == _DEFINITION:
            await self._wait_until_served(obj)
        elif kind.has_status and is_custom(kind.group) and "status" in obj and not has_status:
            # Nothing but its own controller could write the status of a custom object again.
            path = f"{kind.path(obj['metadata'].get('namespace', ''), obj['metadata']['name'])}/status"
            body = json.encode({"status": obj["status"]})
            await self._transport.raw("PATCH", path, body, "application/merge-patch+json")

    async def _wait_until_served(self, definition: Json) -> None:
        spec = definition["spec"]
        version = next((v["name"] for v in spec["versions"] if v["served"]), "")
        if not version:
            return
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}?limit=1"
        try:
            async with asyncio.timeout(ESTABLISH_TIMEOUT):
                await retry(lambda: self._transport.raw("GET", path), on=NotFound, backoff=constant(RETRY))
        except TimeoutError:
            name = definition["metadata"]["name"]
            self._problems.append(f"{name}: not served within {ESTABLISH_TIMEOUT:g} seconds")
        self._has_new_kinds = True
