"""Authentication: certificates, tokens, anonymous users."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from volplane import web
from volplane.apiserver.auth import certificates
from volplane.web import tls

PODS = "/api/v1/pods"


def client(server: Any, login: str = "", **certificate: Any) -> web.HttpClient:
    ca = str(server.authority.pair.cert_path)
    if certificate:
        pair = server.authority.client(certificate["user"], certificate["user"], certificate["groups"])
        return web.HttpClient(server.url, ssl=tls.client_context(ca, str(pair.cert_path), str(pair.key_path)))
    headers = {"authorization": f"Bearer {login}"} if login else {}
    return web.HttpClient(server.url, ssl=tls.client_context(ca), headers=headers)


async def ask(http: web.HttpClient, path: str) -> tuple[int, bytes]:
    try:
        answer = await http.request("GET", path, timeout=10)
        return answer.status, answer.body
    finally:
        await http.close()


async def test_anonymous_users_may_read_only_health_and_version(served: Any) -> None:
    async with served() as api:
        for path in ("/healthz", "/livez", "/readyz"):
            assert await ask(client(api.server), path) == (200, b"ok")
        assert (await ask(client(api.server), "/version"))[0] == 200
        status, body = await ask(client(api.server), PODS)
        assert status == 403
        expected = (
            'pods is forbidden: User \\"system:anonymous\\" cannot list resource \\"pods\\" '
            'in API group \\"\\" at the cluster scope'
        )
        assert expected.encode() in body
        # A single check may reveal more than the health of the cluster.
        for path in ("/api", "/metrics", "/openapi/v3", "/nowhere", "/readyz/ping"):
            assert (await ask(client(api.server), path))[0] == 403


async def test_a_wrong_token_is_not_anonymous(served: Any) -> None:
    async with served() as api:
        status, body = await ask(client(api.server, "wrong"), "/version")
        assert status == 401
        assert b'"reason":"Unauthorized"' in body
        assert (await ask(client(api.server, api.server.admin_token), PODS))[0] == 200


async def test_a_certificate_names_its_user_and_groups(served: Any) -> None:
    async with served() as api:
        status, body = await ask(client(api.server, user="alice", groups=("dev",)), PODS)
        assert (status, b'User \\"alice\\" cannot list' in body) == (403, True)
        assert (await ask(client(api.server, user="alice", groups=("dev",)), "/api"))[0] == 200
        assert (await ask(client(api.server, user="root", groups=("system:masters",)), PODS))[0] == 200
        scheduler = client(api.server, user="system:kube-scheduler", groups=())
        assert (await ask(scheduler, PODS))[0] == 200


async def test_users_can_review_their_identity_and_permissions(served: Any) -> None:
    async with served() as api:
        me = await api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        assert me.status == 201
        assert me.json["status"]["userInfo"]["username"] == "kubernetes-admin"
        assert "system:authenticated" in me.json["status"]["userInfo"]["groups"]
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        about = {"verb": "get", "resource": "pods", "namespace": "default"}
        yes = {"spec": {"user": "a", "groups": ["system:masters"], "resourceAttributes": about}}
        no = {"spec": {"user": "a", "resourceAttributes": about}}
        assert (await api.post(path, yes)).json["status"] == {"allowed": True}
        assert (await api.post(path, no)).json["status"] == {"allowed": False}
        review = "/apis/authentication.k8s.io/v1/tokenreviews"
        good = await api.post(review, {"spec": {"token": api.server.admin_token}})
        assert good.json["status"]["authenticated"] is True
        bad = await api.post(review, {"spec": {"token": "x"}})
        assert (bad.status, bad.json["status"].get("authenticated", False)) == (201, False)


async def test_key_files_are_readable_by_the_owner_only(served: Any, tmp_path: Path) -> None:
    async with served():
        files = [*(tmp_path / "pki").iterdir(), tmp_path / "kubeconfig"]
        assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
        assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700


async def test_a_restart_keeps_certificates_and_token(served: Any, tmp_path: Path) -> None:
    async with served() as api:
        token = api.server.admin_token
        certificate = (tmp_path / "pki" / "ca.crt").read_bytes()
    async with served() as api:
        assert api.server.admin_token == token
        assert (tmp_path / "pki" / "ca.crt").read_bytes() == certificate


@pytest.mark.parametrize("path", ["/version", "/metrics", "/api", "/apis", "/apis/storage.k8s.io/v1"])
async def test_the_admin_reads_non_resource_paths(served: Any, path: str) -> None:
    async with served() as api:
        assert (await api.get(path)).status == 200


async def test_an_expired_certificate_is_unauthorized_and_not_a_closed_connection(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as api:
        monkeypatch.setattr(certificates, "LIFETIME", timedelta(seconds=-60))
        late = client(api.server, user="late", groups=["system:masters"])
        status, body = await ask(late, PODS)
        assert status == 401
        assert b'"reason":"Unauthorized"' in body
