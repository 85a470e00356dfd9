"""What a new cluster is given: the manifests that come with the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

import yaml

from volplane.api import codec, kinds
from volplane.api.meta import Resource
from volplane.client.client import Client

ROLES = "roles.yaml"  # what the other manifests' pods, and the roles as processes, may do
MANIFESTS = (ROLES, "classes.yaml", "ebs.yaml")


def objects(name: str) -> Iterator[Resource]:
    """The objects of one of our manifests."""
    text = (resources.files("volplane") / "manifests" / name).read_text()
    for data in yaml.load_all(text, Loader=yaml.CSafeLoader):
        yield _typed(data)


def _typed(data: dict[str, Any]) -> Resource:
    kind = kinds.by_kind(data["apiVersion"], data["kind"])
    if kind is None or kind.type is None:
        raise ValueError(f"a manifest names {data['apiVersion']} {data['kind']}, which is not served")
    return codec.convert(kind.type, data)


async def apply(client: Client, manifests: Iterable[str] = MANIFESTS) -> None:
    """Create what is missing; what a user has changed since stays as it is."""
    for name in manifests:
        for obj in objects(name):
            await client.create(obj, exists_ok=True)
