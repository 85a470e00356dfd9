"""Section F, asking as somebody else; and what a GET that becomes a stream needs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api_server.people import DEFAULT, RBAC, binding, grant, person, rule

WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def who(someone: Any, **headers: str) -> dict[str, Any]:
    answer = await someone.post(WHO, {}, **headers)
    assert answer.status == 201, answer.json
    info: dict[str, Any] = answer.json["status"]["userInfo"]
    return info


async def test_an_administrator_asks_as_anybody(served: Any) -> None:
    async with served() as api, person(api.server, "root", "system:masters") as root:
        assert await who(root, impersonate_user="bob") == {
            "username": "bob",
            "groups": ["system:authenticated"],
        }
        full = {
            "impersonate_group": "dev",
            "impersonate_uid": "u-1",
            "impersonate_extra_scopes": "view",
            "impersonate_extra_acme.com%2Fproject": "x",
        }
        assert await who(root, impersonate_user="bob", **full) == {
            "username": "bob",
            "uid": "u-1",
            "groups": ["dev", "system:authenticated"],
            "extra": {"scopes": ["view"], "acme.com/project": ["x"]},
        }
        account = await who(root, impersonate_user="system:serviceaccount:default:robot")
        groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
        assert account["groups"] == groups
        answer = await root.get("/api/v1/pods", impersonate_user="system:anonymous")
        assert answer.status == 403
        # The other's permissions count, not one's own.
        answer = await root.get("/api/v1/secrets", impersonate_user="bob")
        assert (answer.status, 'User "bob" cannot list' in answer.message) == (403, True)


@pytest.mark.parametrize(
    ("given", "headers", "reported"),
    [
        (None, {"impersonate_user": "bob"}, 'users "bob" is forbidden: User "alice" cannot impersonate '),
        (rule("impersonate", "users", "bob"), {"impersonate_user": "bob"}, ""),
        (rule("impersonate", "users", "bob"), {"impersonate_user": "eve"}, 'users "eve" is forbidden'),
        (
            rule("impersonate", "users"),
            {"impersonate_user": "bob", "impersonate_group": "dev"},
            'groups "dev" is forbidden: User "alice" cannot impersonate resource "groups" in API group ""',
        ),
        (rule("impersonate", "users groups"), {"impersonate_user": "bob", "impersonate_group": "dev"}, ""),
        (
            rule("impersonate", "users"),
            {"impersonate_user": "bob", "impersonate_uid": "1"},
            'uids.authentication.k8s.io "1" is forbidden',
        ),
        (
            rule("impersonate", "users"),
            {"impersonate_user": "bob", "impersonate_extra_scopes": "a"},
            'cannot impersonate resource "userextras/scopes" in API group "authentication.k8s.io"',
        ),
        (
            rule("impersonate", "users"),
            {"impersonate_user": "system:serviceaccount:default:robot"},
            'cannot impersonate resource "serviceaccounts" in API group "" in the namespace "default"',
        ),
        (
            rule("impersonate", "serviceaccounts"),
            {"impersonate_user": "system:serviceaccount:default:robot"},
            "",
        ),
    ],
)
async def test_each_thing_to_be_is_asked_for(
    served: Any, given: dict[str, Any] | None, headers: dict[str, str], reported: str
) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        if given is not None:
            await grant(api, "alice", given)
        answer = await alice.post(WHO, {}, **headers)
        assert answer.status == (403 if reported else 201)
        if reported:
            assert reported in answer.message


async def test_groups_without_a_user_are_a_bad_request(served: Any) -> None:
    async with served() as api, person(api.server, "root", "system:masters") as root:
        answer = await root.get("/api", impersonate_group="dev")
        assert answer.status == 400
        assert answer.message == "requested [{Group  dev    }] without impersonating a user"
        answer = await root.get("/api", impersonate_uid="1")
        reported = "requested [{UID  1  authentication.k8s.io/v1  }] without impersonating a user"
        assert answer.message == reported


async def test_whoever_may_edit_a_namespace_may_be_its_accounts(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await api.post(f"{RBAC}/namespaces/default/rolebindings", binding("edit", "edit", "alice"))
        robot = "system:serviceaccount:default:robot"
        assert (await who(alice, impersonate_user=robot))["username"] == robot
        other = await alice.post(WHO, {}, impersonate_user="system:serviceaccount:kube-system:robot")
        assert other.status == 403


@pytest.mark.parametrize("stream", ["exec", "attach", "portforward"])
async def test_a_get_that_becomes_a_stream_needs_create_too(served: Any, stream: str) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await grant(api, "alice", rule("get", f"pods/{stream}"))
        path = f"{DEFAULT}/pods/p/{stream}?command=ls"
        answer = await alice.get(path)
        assert answer.status == 403
        assert f'User "alice" cannot create resource "pods/{stream}"' in answer.message
        await grant(api, "alice", rule("create", f"pods/{stream}"), name="more")
        assert (await alice.get(path)).status == 404
        await grant(api, "bob", rule("create", f"pods/{stream}"))
        async with person(api.server, "bob") as bob:
            assert (await bob.ask("POST", path)).status == 404
            assert (await bob.get(path)).status == 403


async def test_other_servers_find_whose_certificates_count(served: Any) -> None:
    async with served() as api, person(api.server, "system:kube-scheduler") as scheduler:
        path = "/api/v1/namespaces/kube-system/configmaps"
        found = await scheduler.get(f"{path}/extension-apiserver-authentication")
        assert found.status == 200
        assert found.json["data"]["client-ca-file"] == api.server.ca.decode()
        assert (await scheduler.get(path)).status == 403
