"""Service account tokens: requested, used, and invalid after their bound object is deleted."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from volplane import web
from volplane.api.authentication import TokenRequest
from volplane.api.core import ServiceAccount
from volplane.api.meta import ObjectMeta
from volplane.apiserver.auth.service_account_tokens import ServiceAccountTokenCheck
from volplane.apiserver.in_process_server import InProcessServer
from volplane.store.memory import MemoryStore
from volplane.web import tls

DEFAULT = "/api/v1/namespaces/default"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def account(api: Any) -> str:
    await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
    return f"{DEFAULT}/serviceaccounts/default/token"


async def make_pod(api: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "busybox"}]}
    made = await api.post(f"{DEFAULT}/pods", {"metadata": {"name": "p"}, "spec": spec})
    assert made.status == 201, made.json
    result: dict[str, Any] = made.json
    return result


async def who(api: Any, token: str) -> tuple[int, Any]:
    ca = str(api.server.authority.pair.cert_path)
    http = web.HttpClient(
        api.server.url, ssl=tls.client_context(ca), headers={"authorization": f"Bearer {token}"}
    )
    try:
        answer = await http.request("POST", REVIEW, body=b"{}", timeout=10)
        return answer.status, json.loads(answer.body)
    finally:
        await http.close()


async def test_a_token_authenticates_its_service_account(served: Any) -> None:
    async with served() as api:
        path = await account(api)
        made = await api.post(path, {"spec": {}})
        assert made.status == 201
        assert made.json["kind"] == "TokenRequest"
        assert made.json["spec"]["expirationSeconds"] == 3600
        status, review = await who(api, made.json["status"]["token"])
        assert status == 201
        info = review["status"]["userInfo"]
        assert info["username"] == "system:serviceaccount:default:default"
        assert {"system:serviceaccounts", "system:serviceaccounts:default"} <= set(info["groups"])
        await api.delete(f"{DEFAULT}/serviceaccounts/default")
        assert (await who(api, made.json["status"]["token"]))[0] == 401


async def test_a_pods_token_is_invalid_after_the_pod_is_deleted(served: Any) -> None:
    async with served() as api:
        path = await account(api)
        pod = await make_pod(api)
        reference = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]}
        made = (await api.post(path, {"spec": {"boundObjectRef": reference, "expirationSeconds": 3607}})).json
        token = made["status"]["token"]
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        assert claims["exp"] - claims["iat"] == 365 * 24 * 3600
        assert claims["kubernetes.io"]["warnafter"] == claims["iat"] + 3607
        assert claims["kubernetes.io"]["pod"] == {"name": "p", "uid": pod["metadata"]["uid"]}
        _, review = await who(api, token)
        assert review["status"]["userInfo"]["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
        await api.delete(f"{DEFAULT}/pods/p")
        assert (await who(api, token))[0] == 401


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"expirationSeconds": 60}, 422),
        ({"expirationSeconds": (1 << 32) + 1}, 422),
        ({"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "a"}}, 400),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "nobody"}}, 404),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "other"}}, 409),
    ],
)
async def test_invalid_token_requests_are_refused(served: Any, spec: dict[str, Any], status: int) -> None:
    async with served() as api:
        path = await account(api)
        await make_pod(api)
        assert (await api.post(path, {"spec": spec})).status == status
        assert (await api.post(f"{DEFAULT}/serviceaccounts/nobody/token", {"spec": {}})).status == 404


async def test_tokens_for_other_audiences_and_forged_tokens_are_refused(served: Any) -> None:
    async with served() as api:
        path = await account(api)
        other = (await api.post(path, {"spec": {"audiences": ["vault"]}})).json["status"]["token"]
        assert (await who(api, other))[0] == 401
        good = (await api.post(path, {"spec": {}})).json["status"]["token"]
        head, claims, signature = good.split(".")
        said = json.loads(base64.urlsafe_b64decode(claims + "=="))
        said["kubernetes.io"]["namespace"] = "kube-system"
        forged = base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()
        for token in (f"{head}.{forged}.{signature}", f"{head}.{claims}.", "a.b.c", good[:-4]):
            assert (await who(api, token))[0] == 401
        keys = (await api.get("/openid/v1/jwks")).json["keys"]
        assert json.loads(base64.urlsafe_b64decode(head + "=="))["kid"] == keys[0]["kid"]
        assert (await api.get("/.well-known/openid-configuration")).json["issuer"] == said["iss"]


@pytest.mark.virtual
async def test_a_token_expires() -> None:
    store = MemoryStore()
    core = await InProcessServer(store).start()
    local = core.in_process_transport()
    await local.create(ServiceAccount(metadata=ObjectMeta(name="a", namespace="default")))
    made = await local.create(TokenRequest(), "default", name="a", subresource="token", of=ServiceAccount)
    tokens = ServiceAccountTokenCheck(core.backend)
    good = tokens(made.status.token)
    assert good is not None
    assert good.user is not None
    await asyncio.sleep(3600 + 61)
    bad = tokens(made.status.token)
    assert bad is not None
    assert (bad.user, bad.error) == (None, "service account token has expired")
    await core.close()
    await store.close()
