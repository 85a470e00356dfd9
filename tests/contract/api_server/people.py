"""Users of a server under test: each with a certificate, a token, or nothing at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from volplane import web
from volplane.web import tls

PATIENCE = 60.0
RBAC = "/apis/rbac.authorization.k8s.io/v1"
DEFAULT = "/api/v1/namespaces/default"


class Reply:
    def __init__(self, answer: web.ClientResponse) -> None:
        self.status, self.headers, self.body = answer.status, answer.headers, answer.body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["message"])


class Person:
    """Somebody who asks; `headers` go with every request."""

    def __init__(self, http: web.HttpClient, **headers: str) -> None:
        self.http = http
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    async def ask(
        self, method: str, path: str, body: Any = None, *, type: str = "application/json", **headers: str
    ) -> Reply:
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            sent["content-type"] = type
        data = b"" if body is None else json.dumps(body).encode()
        return Reply(await self.http.request(method, path, headers=sent, body=data, timeout=PATIENCE))

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        return await self.ask("POST", path, body, **headers)

    async def put(self, path: str, body: Any) -> Reply:
        return await self.ask("PUT", path, body)

    async def merge(self, path: str, patch: Any) -> Reply:
        return await self.ask("PATCH", path, patch, type="application/merge-patch+json")

    async def delete(self, path: str) -> Reply:
        return await self.ask("DELETE", path)


@asynccontextmanager
async def person(server: Any, user: str = "", *groups: str, token: str = "") -> AsyncIterator[Person]:
    """By certificate when a name is given, by token when one is, else nobody in particular."""
    ca = str(server.authority.pair.cert_path)
    context = tls.client_context(ca)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if user:
        name = "-".join((user, *groups)).replace(":", "_").replace("/", "_")
        pair = server.authority.client(name, user, groups)
        context = tls.client_context(ca, str(pair.cert_path), str(pair.key_path))
    http = web.HttpClient(server.url, ssl=context, headers=headers)
    try:
        yield Person(http)
    finally:
        await http.close()


def rule(verbs: str, resources: str, *names: str, group: str = "") -> dict[str, Any]:
    made = {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split()}
    return {**made, "resourceNames": list(names)} if names else made


def role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules)}


def binding(name: str, role: str, *users: str, kind: str = "ClusterRole") -> dict[str, Any]:
    subjects = [{"kind": "User", "name": user} for user in users]
    return {"metadata": {"name": name}, "subjects": subjects, "roleRef": {"kind": kind, "name": role}}


async def grant(api: Any, user: str, *rules: dict[str, Any], name: str = "") -> None:
    """Give a user these rules everywhere."""
    name = name or f"{user}-may"
    assert (await api.post(f"{RBAC}/clusterroles", role(name, *rules))).status == 201
    assert (await api.post(f"{RBAC}/clusterrolebindings", binding(name, name, user))).status == 201
