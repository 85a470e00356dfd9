"""What all actions share: types, ids and tags."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter
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


def refuse_outposts(parameters: QueryParameters, *names: str) -> None:
    for name in names:
        if parameters.text(name):
            text = f"The parameter {name} is not supported: there are no Outposts and no Local Zones."
            raise Ec2ErrorResponse("UnsupportedOperation", text)


def key_of_encryption(parameters: QueryParameters) -> str:
    """KmsKeyId, which is kept and shown; nothing is encrypted here."""
    key = parameters.text("KmsKeyId")
    if key and not parameters.flag("Encrypted"):
        text = "The parameter KmsKeyId requires the parameter Encrypted to be set."
        raise Ec2ErrorResponse("InvalidParameterDependency", text)
    return key


def specified_tags(parameters: QueryParameters, created: str) -> dict[str, str]:
    """The tags for what the request creates."""
    found: dict[str, str] = {}
    for specification in parameters.structs("TagSpecification"):
        kind = specification.text("ResourceType")
        if kind != created:
            raise invalid_parameter("resourceType", kind, f"Only {created} is supported.")
        found |= parse_tags(specification.structs("Tag"))
    return found
