"""The kinds that an API server serves, from its discovery documents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct, json

from volplane.api.errors import APIError
from volplane.client.https import HttpsTransport

PAGE = 500


class ServedKind(Struct, frozen=True):
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "") -> str:
        root = f"/apis/{self.group}" if self.group else "/api"
        place = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}/{self.version}{place}/{self.plural}{f'/{name}' if name else ''}"


async def list_served_kinds(transport: HttpsTransport, problems: list[str]) -> list[ServedKind]:
    """The kinds whose objects can be listed and created, in the preferred version of each group.

    A group that does not answer, such as that of an aggregated API server, is named in `problems`.
    """
    groups = [("", "v1", "/api/v1")]
    for group in json.decode(await transport.raw("GET", "/apis"))["groups"]:
        version = group["preferredVersion"]
        groups.append((group["name"], version["version"], f"/apis/{version['groupVersion']}"))
    found = []
    for name, version, path in groups:
        try:
            resources = json.decode(await transport.raw("GET", path))["resources"]
        except APIError as error:
            problems.append(f"{name}: {error}")
            continue
        known = {resource["name"] for resource in resources}
        found += [
            ServedKind(
                name,
                version,
                resource["name"],
                resource["kind"],
                resource["namespaced"],
                f"{resource['name']}/status" in known,
            )
            for resource in resources
            if "/" not in resource["name"] and {"list", "create"} <= set(resource["verbs"])
        ]
    return found


async def list_objects(transport: HttpsTransport, kind: ServedKind) -> AsyncIterator[dict[str, Any]]:
    """All objects of a kind, with all their fields."""
    token = ""
    while True:
        query = urlencode({"limit": PAGE, **({"continue": token} if token else {})})
        page = json.decode(await transport.raw("GET", f"{kind.path()}?{query}"))
        for item in page["items"] or ():
            yield {"apiVersion": kind.api_version, "kind": kind.kind, **item}
        token = page["metadata"].get("continue", "")
        if not token:
            return
