"""Apply the built-in manifests to a new cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

import yaml
from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.apps import DaemonSet, Deployment
from volplane.api.errors import NotFound
from volplane.api.meta import Resource
from volplane.api.storage import StorageClass
from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.base.user_namespace import is_user_namespace
from volplane.client.client import Client
from volplane.drivers import efs

ROLES = "roles.yaml"  # RBAC of the other manifests' pods, and of roles that run as processes
# The snapshot CRDs first: some sidecars check only at their start whether they exist.
WITHOUT_PODS = (ROLES, "classes.yaml", "snapshots.yaml")
DRIVERS = ("ebs-roles.yaml", "ebs.yaml", "snapshotclasses.yaml", "efs.yaml")
MANIFESTS = (*WITHOUT_PODS, *DRIVERS)
WORKLOADS = (Deployment, DaemonSet)
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
WITHOUT_DRIVERS = (ROLES, "snapshots.yaml")  # without the built-in drivers and their classes

_CUSTOM_TYPES = {kind.type for kind in kinds.CLIENT_KINDS}
_CUSTOM_KINDS = {(kind.api_version, kind.kind): kind for kind in kinds.CLIENT_KINDS}
WAIT_TIMEOUT = 30.0  # seconds for a kind to be served after its definition
RETRY = constant(0.01)


def load_manifest(name: str) -> Iterator[Resource]:
    """The objects of a built-in manifest."""
    text = (resources.files("volplane") / "manifests" / name).read_text()
    for data in yaml.load_all(text, Loader=yaml.CSafeLoader):
        yield parse_object(data)


def parse_object(data: dict[str, Any]) -> Resource:
    """Convert an object of a manifest. Raises ValueError."""
    kind = find_kind(data["apiVersion"], data["kind"])
    if kind is None or kind.type is None:
        raise ValueError(f"{data['apiVersion']} {data['kind']} is not served here")
    return codec.convert(kind.type, data)


def find_kind(api_version: str, kind: str) -> kinds.Kind | None:
    """A kind of the API server, or a custom one that our clients know."""
    return kinds.by_kind(api_version, kind) or _CUSTOM_KINDS.get((api_version, kind))


async def apply(client: Client, manifests: Iterable[str] = MANIFESTS) -> None:
    """Create missing objects; existing ones, which a user may have changed, stay as they are."""
    for name in manifests:
        found = list(load_manifest(name))
        if is_user_namespace():
            found = list(map(prefer_directories, found))
        # Pods need their service accounts; all other objects of a file are created in parallel.
        workloads = [obj for obj in found if isinstance(obj, WORKLOADS)]
        await _create_all(client, [obj for obj in found if not isinstance(obj, WORKLOADS)])
        await _create_all(client, workloads)


def prefer_directories(obj: Resource) -> Resource:
    """Make the class of shared directories the default one: without root there are no loop devices."""
    if not isinstance(obj, StorageClass):
        return obj
    annotations = {key: value for key, value in obj.metadata.annotations.items() if key != DEFAULT_CLASS}
    if obj.provisioner == efs.NAME:
        annotations[DEFAULT_CLASS] = "true"
    return structs.replace(obj, metadata=structs.replace(obj.metadata, annotations=annotations))


async def _create_all(client: Client, wanted: Iterable[Resource]) -> None:
    """Try all of them, then raise the first error."""
    outcomes = await asyncio.gather(*(_create(client, obj) for obj in wanted), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _create(client: Client, obj: Resource) -> None:
    if type(obj) not in _CUSTOM_TYPES:
        await client.create(obj, exists_ok=True)
        return
    async with asyncio.timeout(WAIT_TIMEOUT):
        # Its definition was created a moment ago, and may not be served yet.
        await retry(lambda: client.create(obj, exists_ok=True), on=NotFound, backoff=RETRY)
