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
    """The kinds whose objects can be listed and created, each in one version: in the preferred one of its
    group, or in the first other one that serves it.

    A version that does not answer, such as that of an aggregated API server, is named in `problems`.
    """
    versions = [("", "v1", "/api/v1")]
    for group in json.decode(await transport.raw("GET", "/apis"))["groups"]:
        names = dict.fromkeys(each["version"] for each in (group["preferredVersion"], *group["versions"]))
        versions += [(group["name"], name, f"/apis/{group['name']}/{name}") for name in names]
    found: dict[tuple[str, str], ServedKind] = {}  # by group and plural
    for group_name, version, path in versions:
        try:
            resources = json.decode(await transport.raw("GET", path))["resources"]
        except APIError as error:
            problems.append(f"{path.removeprefix('/apis/')}: {error}")
            continue
        known = {resource["name"] for resource in resources}
        for resource in resources:
            plural = resource["name"]
            if "/" in plural or not {"list", "create"} <= set(resource["verbs"]):
                continue
            kind = ServedKind(
                group_name,
                version,
                plural,
                resource["kind"],
                resource["namespaced"],
                f"{plural}/status" in known,
            )
            found.setdefault((group_name, plural), kind)
    return list(found.values())


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
