"""Section F, the audit log: every answer has an id, and a line if asked for."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.apiserver.conftest import Api, client_of
from tests.contract.api_server.people import DEFAULT, RBAC, binding, person
from volplane import apiserver
from volplane.store.memory import MemoryStore

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@asynccontextmanager
async def audited(directory: Path) -> AsyncIterator[Api]:
    store = MemoryStore()
    settings = apiserver.ApiServerOptions(
        data_dir=str(directory), audit_log_path=str(directory / "log" / "audit.log")
    )
    server = await apiserver.run(settings, store)
    http = client_of(server)
    try:
        yield Api(server, store, http)
    finally:
        await http.close()
        await server.close(0)
        await store.close()


def lines(directory: Path) -> list[dict[str, Any]]:
    """All events; read after the server has closed, so that none is missing."""
    return [json.loads(line) for line in (directory / "log" / "audit.log").read_text().splitlines()]


async def test_every_answer_has_an_id(served: Any) -> None:
    async with served() as api, person(api.server) as nobody:
        first, second = await api.get("/version"), await api.get("/api/v1/pods/x/y")
        ids = [answer.headers.get("audit-id") for answer in (first, second, await nobody.get("/api"))]
        assert all(UUID.fullmatch(one) for one in ids)
        assert len(set(ids)) == 3
        assert (await api.get("/version", audit_id="mine")).headers.get("audit-id") == "mine"


async def test_a_line_says_who_asked_what_and_how_it_ended(tmp_path: Path) -> None:
    async with audited(tmp_path) as api, person(api.server, "alice", "dev") as alice:
        await api.post(f"{RBAC}/namespaces/default/rolebindings", binding("edit", "edit", "alice"))
        made = await alice.post(
            f"{DEFAULT}/configmaps?fieldManager=me", {"metadata": {"name": "c"}}, user_agent="test/1"
        )
        assert made.status == 201
        await alice.get(f"{DEFAULT}/secrets/none")
        await alice.get("/api/v1/nodes")
    created, missing, refused = lines(tmp_path)[1:]
    assert created.pop("auditID") == made.headers.get("audit-id")
    for field in ("requestReceivedTimestamp", "stageTimestamp"):
        assert TIME.fullmatch(created.pop(field))
    assert set(created["user"].pop("extra")) == {"authentication.kubernetes.io/credential-id"}
    assert created == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "stage": "ResponseComplete",
        "requestURI": "/api/v1/namespaces/default/configmaps?fieldManager=me",
        "verb": "create",
        "user": {"username": "alice", "groups": ["dev", "system:authenticated"]},
        "sourceIPs": ["127.0.0.1"],
        "userAgent": "test/1",
        "objectRef": {
            "resource": "configmaps",
            "namespace": "default",
            "name": "c",
            "apiVersion": "v1",
        },
        "responseStatus": {"metadata": {}, "code": 201},
        "annotations": {
            "authorization.k8s.io/decision": "allow",
            "authorization.k8s.io/reason": (
                'RBAC: allowed by RoleBinding "edit/default" of ClusterRole "edit" to User "alice"'
            ),
        },
    }
    assert missing["responseStatus"] == {
        "metadata": {},
        "status": "Failure",
        "message": 'secrets "none" not found',
        "reason": "NotFound",
        "details": {"name": "none", "kind": "secrets"},
        "code": 404,
    }
    assert refused["annotations"]["authorization.k8s.io/decision"] == "forbid"
    assert (refused["verb"], refused["objectRef"]["resource"]) == ("list", "nodes")


async def test_a_stream_is_told_when_it_starts_and_when_it_ends(tmp_path: Path) -> None:
    async with audited(tmp_path) as api, api.watch(f"{DEFAULT}/configmaps") as watch:
        await api.post(f"{DEFAULT}/configmaps", {"metadata": {"name": "c"}})
        await watch.next()
    watched = [event for event in lines(tmp_path) if event["verb"] == "watch"]
    assert [event["stage"] for event in watched] == ["ResponseStarted", "ResponseComplete"]
    assert watched[0]["auditID"] == watched[1]["auditID"]
    assert watched[0]["responseStatus"]["code"] == 200


async def test_both_the_asker_and_the_asked_as_are_named(tmp_path: Path) -> None:
    async with audited(tmp_path) as api, person(api.server, token="wrong") as stranger:
        await api.get("/api/v1/nodes", impersonate_user="bob")
        await stranger.get("/api")
    impersonated, unknown = lines(tmp_path)
    assert impersonated["user"]["username"] == "kubernetes-admin"
    assert impersonated["impersonatedUser"] == {"username": "bob", "groups": ["system:authenticated"]}
    assert impersonated["responseStatus"]["code"] == 403
    assert unknown["user"] == {}
    assert unknown["responseStatus"]["message"] == "Authentication failed, attempted: bearer"
    assert (unknown["verb"], "annotations" in unknown) == ("get", False)


async def test_no_secret_is_in_it_and_nobody_else_reads_it(tmp_path: Path) -> None:
    async with audited(tmp_path) as api:
        body = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
        await api.post(f"{DEFAULT}/secrets", body)
        await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "robot"}})
        asked = await api.post(f"{DEFAULT}/serviceaccounts/robot/token", {"spec": {}})
        review = {"spec": {"token": asked.json["status"]["token"]}}
        await api.post("/apis/authentication.k8s.io/v1/tokenreviews", review)
    log = tmp_path / "log" / "audit.log"
    text = log.read_text()
    assert "hunter2" not in text
    assert "aHVudGVyMg" not in text
    assert review["spec"]["token"] not in text
    assert api.server.admin_token not in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_a_second_server_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    for _ in range(2):
        async with audited(tmp_path) as api:
            await api.get("/version")
    events = lines(tmp_path)
    assert len(events) == 2
    assert len({event["auditID"] for event in events}) == 2
