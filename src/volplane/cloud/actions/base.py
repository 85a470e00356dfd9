"""What all actions share: types, ids and tags."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from volplane.cloud.errors import invalid_parameter
from volplane.cloud.model import OWNER as OWNER
from volplane.cloud.query import QueryParameters
from volplane.cloud.query import parse_tags as parse_tags
from volplane.cloud.service import DiskService
from volplane.cloud.xml import Value

Tree: TypeAlias = dict[str, Value]
Action: TypeAlias = Callable[[DiskService, QueryParameters], Awaitable[Tree]]

DONE: Tree = {"return": True}


def volume_id(text: str) -> str:
    if not text.startswith("vol-"):
        raise invalid_parameter("volumeId", text, "Expected: 'vol-...'.")
    return text


def snapshot_id(text: str) -> str:
    if not text.startswith("snap-"):
        raise invalid_parameter("snapshotId", text, "Expected: 'snap-...'.")
    return text


def specified_tags(parameters: QueryParameters, created: str) -> dict[str, str]:
    """The tags for what the request creates."""
    found: dict[str, str] = {}
    for specification in parameters.structs("TagSpecification"):
        kind = specification.text("ResourceType")
        if kind != created:
            raise invalid_parameter("resourceType", kind, f"Only {created} is supported.")
        found |= parse_tags(specification.structs("Tag"))
    return found
