"""Filters and pages of Describe actions.

An item matches if it has one of the values of every filter; `*` and `?` are wildcards. A page token is the
last id of the page, so that pages stay correct while volumes are created and deleted.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter
from volplane.cloud.model import OWNER, CloudInstance, CloudModification, CloudSnapshot, CloudVolume
from volplane.cloud.query import QueryParameters
from volplane.rules.zones import zone_id

T = TypeVar("T")
FilterFields = Mapping[str, Callable[[T], Iterable[str]]]

LARGEST_PAGE, SMALLEST_PAGE = 1000, 5


def _optional(value: str) -> list[str]:
    return [value] if value else []


VOLUME: FilterFields[CloudVolume] = {
    "volume-id": lambda v: [v.id],
    "status": lambda v: [v.state],
    "size": lambda v: [str(v.shape.size)],
    "volume-type": lambda v: [v.shape.type],
    "availability-zone": lambda v: [v.zone],
    "availability-zone-id": lambda v: [zone_id(v.zone)],
    "operator.managed": lambda v: ["false"],
    "encrypted": lambda v: ["true" if v.encrypted else "false"],
    "create-time": lambda v: [v.created],
    "snapshot-id": lambda v: _optional(v.snapshot),
    "fast-restored": lambda v: ["true" if v.fast_restored else "false"],
    "multi-attach-enabled": lambda v: ["true" if v.shape.multi_attach else "false"],
    "attachment.instance-id": lambda v: [a.instance for a in v.attachments],
    "attachment.device": lambda v: [a.device for a in v.attachments],
    "attachment.status": lambda v: [a.state for a in v.attachments],
    "attachment.attach-time": lambda v: [a.since for a in v.attachments],
    "attachment.delete-on-termination": lambda v: ["false" for _ in v.attachments],
}
SNAPSHOT: FilterFields[tuple[CloudSnapshot, int]] = {  # with its progress
    "snapshot-id": lambda s: [s[0].id],
    "volume-id": lambda s: [s[0].volume],
    "volume-size": lambda s: [str(s[0].size)],
    "status": lambda s: [s[0].state],
    "progress": lambda s: [f"{s[1]}%"],
    "start-time": lambda s: [s[0].started],
    "description": lambda s: [s[0].description],
    "encrypted": lambda s: ["true" if s[0].encrypted else "false"],
    "storage-tier": lambda s: ["standard"],
    "owner-id": lambda s: [OWNER],
}
MODIFICATION: FilterFields[CloudModification] = {
    "volume-id": lambda m: [m.volume],
    "modification-state": lambda m: [m.state],
    "original-size": lambda m: [str(m.original.size)],
    "original-iops": lambda m: [str(m.original.iops)],
    "original-volume-type": lambda m: [m.original.type],
    "target-size": lambda m: [str(m.target.size)],
    "target-iops": lambda m: [str(m.target.iops)],
    "target-volume-type": lambda m: [m.target.type],
    "start-time": lambda m: [m.started],
}
INSTANCE: FilterFields[CloudInstance] = {
    "instance-id": lambda i: [i.id],
    "availability-zone": lambda i: [i.zone],
    "availability-zone-id": lambda i: [zone_id(i.zone)],
    "instance-type": lambda i: [i.type],
    "operator.managed": lambda i: ["false"],
    "owner-id": lambda i: [OWNER],
    "private-dns-name": lambda i: _optional(i.name),
    "instance-state-name": lambda i: ["running" if i.running else "stopped"],
}


def apply_filters(
    items: Iterable[T],
    fields: FilterFields[T],
    tags: Callable[[T], Mapping[str, str]],
    wanted: QueryParameters,
) -> list[T]:
    """The items that match every filter of the request."""
    tests = [_build_test(f.require("Name"), f.texts("Value"), fields, tags) for f in wanted.structs("Filter")]
    return [item for item in items if all(test(item) for test in tests)]


def _build_test(
    name: str, values: Sequence[str], fields: FilterFields[T], tags: Callable[[T], Mapping[str, str]]
) -> Callable[[T], bool]:
    def passes(found: Iterable[str]) -> bool:
        return any(matches_pattern(pattern, value) for value in found for pattern in values)

    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return lambda item: key in tags(item) and passes([tags(item)[key]])
    if name == "tag-key":
        return lambda item: passes(tags(item))
    read = fields.get(name)
    if read is None:
        raise Ec2ErrorResponse("InvalidParameterValue", f"The filter '{name}' is invalid")
    return lambda item: passes(read(item))


def matches_pattern(pattern: str, value: str) -> bool:
    """The value matches the pattern.

    Only the last star is extended when a match fails, so the time is at most the product of the lengths,
    unlike a regular expression's.
    """
    at = position = 0
    star, taken = -1, 0  # the last star, and the end of what it matches
    while position < len(value):
        if pattern[at : at + 1] == "*":
            star, taken = at, position
            at += 1
        elif pattern[at : at + 1] in ("?", value[position]):
            at, position = at + 1, position + 1
        elif star >= 0:
            taken += 1
            at, position = star + 1, taken
        else:
            return False
    return not pattern[at:].strip("*")


def page(items: Sequence[T], key: Callable[[T], str], wanted: QueryParameters) -> tuple[list[T], str | None]:
    """The items after the token, at most MaxResults, and the next token."""
    ordered = sorted(items, key=key)
    token = wanted.text("NextToken")
    if token:
        last = _read_token(token)
        ordered = [item for item in ordered if key(item) > last]
    most = wanted.number("MaxResults", 0)
    if not most:
        return ordered, None
    if most < SMALLEST_PAGE:
        raise invalid_parameter("maxResults", most, f"Expecting a value greater than {SMALLEST_PAGE}.")
    most = min(most, LARGEST_PAGE)
    more = len(ordered) > most
    return ordered[:most], _token(key(ordered[most - 1])) if more else None


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _read_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Ec2ErrorResponse("InvalidParameterValue", "Unable to parse pagination token") from None
