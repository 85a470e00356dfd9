"""Section F, reviews: may they, and why; and what real clients make of the answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api_server.people import RBAC, binding, grant, person, role, rule

AUTHORIZATION = "/apis/authorization.k8s.io/v1"
ACCESS = f"{AUTHORIZATION}/subjectaccessreviews"
SELF = f"{AUTHORIZATION}/selfsubjectaccessreviews"
RULES = f"{AUTHORIZATION}/selfsubjectrulesreviews"
LOCAL = f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
GET_PODS = {"verb": "get", "resource": "pods", "namespace": "default"}


async def status(api: Any, path: str, **spec: Any) -> Any:
    answer = await api.post(path, {"spec": spec})
    assert answer.status == 201, answer.json
    return answer.json["status"]


async def test_a_review_names_the_binding_the_role_and_the_subject(served: Any) -> None:
    async with served() as api:
        await grant(api, "alice", rule("get", "pods"), name="reader")
        assert await status(api, ACCESS, user="alice", resourceAttributes=GET_PODS) == {
            "allowed": True,
            "reason": 'RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to User "alice"',
        }
        subjects = [{"kind": "Group", "name": "dev"}, {"kind": "ServiceAccount", "name": "robot"}]
        await api.post(f"{RBAC}/namespaces/default/roles", role("local", rule("list", "pods")))
        made = {**binding("here", "local", kind="Role"), "subjects": subjects}
        assert (await api.post(BINDINGS, made)).status == 201
        listing = {**GET_PODS, "verb": "list"}
        group = await status(api, ACCESS, groups=["dev"], resourceAttributes=listing)
        assert group["reason"] == 'RBAC: allowed by RoleBinding "here/default" of Role "local" to Group "dev"'
        robot = "system:serviceaccount:default:robot"
        account = await status(api, ACCESS, user=robot, resourceAttributes=listing)
        assert account["reason"].endswith('to ServiceAccount "robot/default"')
        elsewhere = {**listing, "namespace": "kube-system"}
        assert await status(api, ACCESS, user=robot, resourceAttributes=elsewhere) == {"allowed": False}


async def test_masters_need_no_reason_and_nodes_have_their_own(served: Any) -> None:
    async with served() as api:
        masters = await status(api, ACCESS, groups=["system:masters"], resourceAttributes=GET_PODS)
        assert masters == {"allowed": True}
        secret = {"verb": "get", "resource": "secrets", "namespace": "default", "name": "s"}
        node = {"user": "system:node:n1", "groups": ["system:nodes"]}
        assert await status(api, ACCESS, **node, resourceAttributes=secret) == {
            "allowed": False,
            "reason": "no relationship found between node 'n1' and this object",
        }
        selector = {"rawSelector": "spec.nodeName=n1"}
        pods = {"verb": "list", "resource": "pods", "fieldSelector": selector}
        assert await status(api, ACCESS, **node, resourceAttributes=pods) == {"allowed": True}
        terms = [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]
        pods = {"verb": "list", "resource": "pods", "fieldSelector": {"requirements": terms}}
        assert await status(api, ACCESS, **node, resourceAttributes=pods) == {"allowed": True}


@pytest.mark.parametrize(
    ("selector", "reported"),
    [
        ({"fieldSelector": {"rawSelector": "nonsense"}}, "fieldSelector ignored due to parse error"),
        (
            {"fieldSelector": {"requirements": [{"key": "a", "operator": "Exists"}]}},
            "fieldSelector ignored due to parse error",
        ),
        ({"labelSelector": {"rawSelector": "a=b=c"}}, "labelSelector ignored due to parse error"),
        ({"labelSelector": {"rawSelector": "a in (b)"}}, ""),
    ],
)
async def test_a_selector_that_makes_no_sense_is_left_out_and_told(
    served: Any, selector: dict[str, Any], reported: str
) -> None:
    async with served() as api:
        about = {"verb": "list", "resource": "pods", **selector}
        answer = await status(api, ACCESS, groups=["system:masters"], resourceAttributes=about)
        expected = {"evaluationError": f"spec.resourceAttributes.{reported}"} if reported else {}
        assert answer == {"allowed": True, **expected}


async def test_a_review_may_be_about_paths_and_about_kinds_that_nobody_serves(served: Any) -> None:
    async with served() as api:
        path = {"path": "/healthz", "verb": "get"}
        answer = await status(api, ACCESS, groups=["system:unauthenticated"], nonResourceAttributes=path)
        assert answer["allowed"] is True
        assert 'ClusterRole "system:public-info-viewer" to Group "system:unauthenticated"' in answer["reason"]
        await grant(api, "alice", rule("get", "things", group="example.com"))
        about = {"verb": "get", "group": "example.com", "resource": "things"}
        assert (await status(api, ACCESS, user="alice", resourceAttributes=about))["allowed"] is True


@pytest.mark.parametrize(
    ("path", "body", "code", "reported"),
    [
        (ACCESS, {"user": "a"}, 422, "exactly one of nonResourceAttributes or resourceAttributes"),
        (
            ACCESS,
            {"user": "a", "resourceAttributes": GET_PODS, "nonResourceAttributes": {"path": "/"}},
            422,
            "cannot be specified in combination with resourceAttributes",
        ),
        (ACCESS, {"resourceAttributes": GET_PODS}, 422, "at least one of user or group must be specified"),
        (SELF, {}, 422, "exactly one of nonResourceAttributes or resourceAttributes must be specified"),
        (
            LOCAL,
            {"user": "a", "resourceAttributes": {**GET_PODS, "namespace": "other"}},
            422,
            "must match metadata.namespace",
        ),
        (
            LOCAL,
            {"user": "a", "nonResourceAttributes": {"path": "/", "verb": "get"}},
            422,
            "disallowed on this kind of request",
        ),
        (
            SELF,
            {"resourceAttributes": {**GET_PODS, "fieldSelector": {}}},
            422,
            "requirements or rawSelector is required",
        ),
        (RULES, {}, 400, "no namespace on request"),
    ],
)
async def test_a_review_that_asks_nothing_is_refused(
    served: Any, path: str, body: dict[str, Any], code: int, reported: str
) -> None:
    async with served() as api:
        meta = {"metadata": {"namespace": "default"}} if path == LOCAL else {}
        answer = await api.post(path, {**meta, "spec": body})
        assert answer.status == code, answer.json
        assert reported in answer.json["message"]


async def test_a_local_review_asks_about_the_namespace_of_its_url(served: Any) -> None:
    async with served() as api:
        spec = {"user": "a", "resourceAttributes": GET_PODS}
        good = await api.post(LOCAL, {"metadata": {"namespace": "default"}, "spec": spec})
        assert (good.status, good.json["status"]) == (201, {"allowed": False})
        other = {"user": "a", "resourceAttributes": {**GET_PODS, "namespace": "x"}}
        bad = await api.post(LOCAL, {"metadata": {"namespace": "x"}, "spec": other})
        assert bad.status == 400
        assert bad.json["message"] == "spec.resourceAttributes.namespace must match namespace: default"


async def test_one_asks_about_oneself_without_permission_and_about_others_with(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        assert (await alice.post(SELF, {"spec": {"resourceAttributes": GET_PODS}})).json["status"] == {
            "allowed": False
        }
        asked = await alice.post(ACCESS, {"spec": {"user": "bob", "resourceAttributes": GET_PODS}})
        assert asked.status == 403


async def test_the_rules_of_a_user_are_lists_and_of_its_namespace(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await grant(api, "alice", rule("get", "pods", "x"))
        await api.post(BINDINGS, binding("view", "view", "alice"))
        here = (await alice.post(RULES, {"spec": {"namespace": "default"}})).json["status"]
        assert here["incomplete"] is False
        named = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}
        assert named in here["resourceRules"]
        assert any("configmaps" in r["resources"] for r in here["resourceRules"])
        assert any("/version" in r["nonResourceURLs"] for r in here["nonResourceRules"])
        there = (await alice.post(RULES, {"spec": {"namespace": "kube-system"}})).json["status"]
        assert not any("configmaps" in r["resources"] for r in there["resourceRules"])
        await api.post(f"{RBAC}/clusterrolebindings", binding("lost", "nowhere", "alice"))
        lost = (await alice.post(RULES, {"spec": {"namespace": "default"}})).json["status"]
        assert lost["evaluationError"] == 'clusterrole.rbac.authorization.k8s.io "nowhere" not found'


async def kubectl(config: Path, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        f"--kubeconfig={config}",
        f"--cache-dir={config.parent / 'cache'}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(30):
        output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.peer("kubectl")
async def test_kubectl_auth_can_i_whoami_and_as(served: Any, tmp_path: Path) -> None:
    async with served() as api:
        await grant(api, "alice", rule("get list", "pods"))
        await api.post(BINDINGS, binding("view", "view", "alice"))
        mine = api.server.write_kubeconfig(tmp_path / "alice", "alice", ("dev",))
        admin = api.server.kubeconfig
        assert (await kubectl(mine, "auth", "can-i", "get", "pods"))[1].strip() == "yes"
        code, said = await kubectl(mine, "auth", "can-i", "delete", "pods")
        assert (code, said.strip()) == (1, "no")
        code, said = await kubectl(mine, "auth", "can-i", "--list", "-n", "default")
        assert code == 0
        assert "selfsubjectaccessreviews.authorization.k8s.io" in said
        code, said = await kubectl(mine, "auth", "whoami", "-o", "json")
        assert (code, json.loads(said)["status"]["userInfo"]["username"]) == (0, "alice")
        assert (await kubectl(admin, "auth", "can-i", "get", "pods", "--as=alice"))[1].strip() == "yes"
        assert (await kubectl(admin, "auth", "can-i", "get", "secrets", "--as=alice"))[1].strip() == "no"
        code, said = await kubectl(admin, "get", "secrets", "--as=alice", "--as-group=dev")
        assert code == 1
        assert 'User "alice" cannot list resource "secrets"' in said
        code, said = await kubectl(mine, "get", "pods", "--as=bob")
        assert 'User "alice" cannot impersonate resource "users"' in said


@pytest.mark.peer("kubectl")
async def test_kubectl_makes_roles_and_bindings(served: Any, tmp_path: Path) -> None:
    async with served() as api, person(api.server, "bob") as bob:
        admin = api.server.kubeconfig
        for arguments in (
            ("create", "role", "r", "--verb=get,list", "--resource=pods"),
            ("create", "rolebinding", "rb", "--role=r", "--user=bob"),
            ("create", "clusterrole", "cr", "--verb=list", "--resource=nodes"),
            ("create", "clusterrolebinding", "crb", "--clusterrole=cr", "--user=bob"),
        ):
            code, said = await kubectl(admin, *arguments)
            assert code == 0, said
        assert (await bob.get("/api/v1/namespaces/default/pods")).status == 200
        assert (await bob.get("/api/v1/nodes")).status == 200
        code, said = await kubectl(admin, "get", "rolebindings,clusterrolebindings")
        assert code == 0
        assert "ClusterRole/cr" in said
        code, said = await kubectl(admin, "describe", "clusterrole", "admin")
        assert "rolebindings.rbac.authorization.k8s.io" in said
        manifest = tmp_path / "r.json"
        more = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", **role("r", rule("*", "pods"))}
        more["metadata"]["namespace"] = "default"
        manifest.write_text(json.dumps(more))
        code, said = await kubectl(admin, "auth", "reconcile", "-f", str(manifest))
        assert code == 0, said
