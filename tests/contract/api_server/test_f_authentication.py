"""Section F, who asks: certificates, tokens, nobody in particular."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.contract.api_server.people import DEFAULT, person

ANONYMOUS = 'User "system:anonymous" cannot list resource "pods" in API group "" at the cluster scope'


async def test_a_certificate_of_system_masters_may_use_any_verb(served: Any) -> None:
    async with served() as api, person(api.server, "root", "system:masters") as root:
        path = f"{DEFAULT}/configmaps"
        assert (await root.post(path, {"metadata": {"name": "a"}})).status == 201
        assert (await root.get(path)).status == 200
        assert (await root.get(f"{path}/a")).status == 200
        assert (await root.put(f"{path}/a", {"metadata": {"name": "a"}, "data": {"x": "y"}})).status == 200
        assert (await root.merge(f"{path}/a", {"data": {"x": "z"}})).status == 200
        assert (await root.delete(f"{path}/a")).status == 200
        assert (await root.delete(path)).status == 200
        assert (await root.get("/metrics")).status == 200


@pytest.mark.parametrize("path", ["/api", "/version", "/api/v1/pods"])
async def test_an_untrusted_token_is_401_even_on_discovery(served: Any, path: str) -> None:
    async with served() as api, person(api.server, token="nonsense") as stranger:
        answer = await stranger.get(path)
        assert answer.status == 401
        assert answer.json == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Unauthorized",
            "reason": "Unauthorized",
            "code": 401,
        }


async def test_without_credentials_version_and_health_are_open_and_pods_are_403(served: Any) -> None:
    async with served() as api, person(api.server) as nobody:
        for path in ("/version", "/healthz", "/livez", "/readyz"):
            assert (await nobody.get(path)).status == 200
        answer = await nobody.get("/api/v1/pods")
        assert answer.status == 403
        assert answer.message == f"pods is forbidden: {ANONYMOUS}"
        assert answer.json["details"] == {"kind": "pods"}
        reported = await nobody.get("/api")
        assert reported.message == 'forbidden: User "system:anonymous" cannot get path "/api"'
        assert (reported.json["reason"], reported.json["details"]) == ("Forbidden", {})


async def test_a_refusal_names_subresource_group_namespace_and_reason(served: Any) -> None:
    async with served() as api, person(api.server, "alice", "dev") as alice:
        answer = await alice.get("/apis/apps/v1/namespaces/default/deployments/web/scale")
        assert answer.message == (
            'deployments.apps "web" is forbidden: User "alice" cannot get resource "deployments/scale" '
            'in API group "apps" in the namespace "default"'
        )
        assert answer.json["details"] == {"name": "web", "group": "apps", "kind": "deployments"}
        unknown = await alice.get("/apis/example.com/v1/things")
        assert unknown.message.startswith('things.example.com is forbidden: User "alice" cannot list')
        space = await alice.get("/api/v1/namespaces/default")
        assert space.message.endswith('in API group "" in the namespace "default"')
        sniffed = await alice.get("/%3Cscript%3E")
        assert '"/&lt;script&gt;"' in sniffed.message


async def test_everybody_known_may_discover_and_ask_about_themselves(served: Any) -> None:
    async with served() as api, person(api.server, "alice", "dev", "ops") as alice:
        for path in ("/api", "/api/v1", "/apis", "/apis/apps/v1", "/openapi/v2", "/version"):
            assert (await alice.get(path)).status == 200
        me = await alice.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        info = me.json["status"]["userInfo"]
        assert (info["username"], info["groups"]) == ("alice", ["dev", "ops", "system:authenticated"])
        for path in ("/metrics", "/debug/trace", "/openid/v1/jwks"):
            assert (await alice.get(path)).status == 403


def _protocol(token: str) -> str:
    text = base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()
    return f"base64url.bearer.authorization.k8s.io.{text}"


async def test_a_websocket_carries_its_token_among_the_subprotocols(served: Any) -> None:
    async with served() as api, person(api.server) as browser:
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}

        async def offer(*protocols: str) -> int:
            path = f"{DEFAULT}/pods/p/exec?command=ls"
            wanted = ", ".join(protocols)
            answer = await browser.get(path, sec_websocket_protocol=wanted, **upgrade)
            return answer.status

        good = _protocol(api.server.admin_token)
        assert await offer("v5.channel.k8s.io", good) == 404  # known, and there is no such pod
        assert await offer("v5.channel.k8s.io", _protocol("nonsense")) == 401
        assert await offer(good) == 401  # nothing would be left to agree on
        assert await offer("v5.channel.k8s.io", good, good) == 401
        assert await offer("v5.channel.k8s.io", good.removesuffix("=") + "!") == 401
        # A plain request is no WebSocket: its subprotocols mean nothing.
        plain = await browser.get("/api/v1/pods", sec_websocket_protocol=f"v5.channel.k8s.io, {good}")
        assert plain.status == 403
