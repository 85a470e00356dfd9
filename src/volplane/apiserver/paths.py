"""Parse a URL path: group, version, resource, namespace, name, subresource.

One ambiguity: `/api/v1/namespaces/x/status` is a subresource of a namespace, `/api/v1/namespaces/x/pods` a
collection in it. The subresources of namespaces are known by name.
"""

from __future__ import annotations

from msgspec import Struct

_OF_NAMESPACES = frozenset({"status", "finalize"})


class RequestTarget(Struct, frozen=True):
    group: str
    version: str
    plural: str = ""  # "": the group version itself (discovery)
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    below: str = ""  # the path after the subresource, for proxies


def parse_path(path: str) -> RequestTarget | None:
    """Return None if it is not a resource path (`/api`, `/apis/apps`, `/healthz`)."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if len(rest) >= 3 and rest[0] == "namespaces" and not (len(rest) == 3 and rest[2] in _OF_NAMESPACES):
        # An empty namespace would mean all namespaces, which is dangerous for a delete.
        return _target(group, version, rest[1], rest[2:]) if rest[1] else None
    return _target(group, version, "", rest)


def _target(group: str, version: str, namespace: str, rest: list[str]) -> RequestTarget | None:
    if "" in rest[:3]:
        return None
    plural, name, subresource = [*rest[:3], "", "", ""][:3]
    return RequestTarget(group, version, plural, namespace, name, subresource, "/".join(rest[3:]))
