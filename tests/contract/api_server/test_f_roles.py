"""Section F, roles: what rules allow, what nobody may give, what may not change."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api_server.people import DEFAULT, RBAC, binding, grant, person, role, rule

ROLES = f"{RBAC}/namespaces/default/roles"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"


async def test_who_may_get_pods_cannot_create_a_role_that_grants_secrets(served: Any) -> None:
    async with served() as api, person(api.server, "alice", "dev") as alice:
        edits = rule("create update", "roles", group="rbac.authorization.k8s.io")
        await grant(api, "alice", rule("get", "pods"), edits)
        answer = await alice.post(ROLES, role("greedy", rule("list get", "secrets pods")))
        assert answer.status == 403
        assert answer.message == (
            'roles.rbac.authorization.k8s.io "greedy" is forbidden: '
            'user "alice" (groups=["dev" "system:authenticated"]) is attempting to grant RBAC permissions '
            "not currently held:\n"
            '{APIGroups:[""], Resources:["pods"], Verbs:["list"]}\n'
            '{APIGroups:[""], Resources:["secrets"], Verbs:["list" "get"]}'
        )
        assert (await alice.post(ROLES, role("modest", rule("get", "pods")))).status == 201
        grown = role("modest", rule("get", "pods", "a"), rule("*", "pods"))
        assert (await alice.put(f"{ROLES}/modest", grown)).status == 403


async def test_who_may_escalate_gives_what_they_do_not_hold(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await grant(api, "alice", rule("create escalate", "roles", group="rbac.authorization.k8s.io"))
        assert (await alice.post(ROLES, role("any", rule("*", "secrets")))).status == 201


async def test_a_binding_needs_the_roles_rules_or_the_verb_bind(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        edits = rule("create patch", "rolebindings clusterrolebindings", group="rbac.authorization.k8s.io")
        await grant(api, "alice", edits, rule("get", "pods"))
        await api.post(f"{RBAC}/clusterroles", role("reader", rule("get", "pods")))
        assert (await alice.post(BINDINGS, binding("one", "reader", "bob"))).status == 201
        refused = await alice.post(BINDINGS, binding("two", "view", "bob"))
        assert refused.status == 403
        assert 'rolebindings.rbac.authorization.k8s.io "two" is forbidden: user "alice"' in refused.message
        assert '{APIGroups:[""], Resources:["configmaps"], Verbs:["get" "list" "watch"]}' in refused.message
        absent = await alice.post(BINDINGS, binding("three", "nothing", "bob"))
        assert (absent.status, absent.message) == (
            404,
            'clusterroles.rbac.authorization.k8s.io "nothing" not found',
        )
        may_bind = rule("bind", "clusterroles", "view", group="rbac.authorization.k8s.io")
        await grant(api, "alice", may_bind, name="binder")
        assert (await alice.post(BINDINGS, binding("two", "view", "bob"))).status == 201
        assert (await alice.post(BINDINGS, binding("four", "edit", "bob"))).status == 403
        assert (await alice.post(f"{RBAC}/clusterrolebindings", binding("two", "view", "bob"))).status == 201
        # Whoever collects garbage changes no permission.
        freed = await alice.merge(f"{BINDINGS}/two", {"metadata": {"finalizers": ["example.com/x"]}})
        assert freed.status == 200


async def test_a_rule_for_pods_does_not_cover_their_logs(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await grant(api, "alice", rule("get", "pods"))
        assert (await alice.get(f"{DEFAULT}/pods/x")).status == 404
        answer = await alice.get(f"{DEFAULT}/pods/x/log")
        assert answer.status == 403
        assert 'cannot get resource "pods/log"' in answer.message


@pytest.mark.parametrize(
    ("given", "method", "path", "allowed"),
    [
        (rule("get", "*/log"), "GET", f"{DEFAULT}/pods/x/log", True),
        (rule("get", "*/log"), "GET", f"{DEFAULT}/pods/x", False),
        (rule("get", "*"), "GET", f"{DEFAULT}/pods/x/log", True),
        (rule("*", "pods"), "DELETE", f"{DEFAULT}/pods/x", True),
        (rule("get", "pods", group="*"), "GET", f"{DEFAULT}/pods/x", True),
        (rule("get", "pods", group="apps"), "GET", f"{DEFAULT}/pods/x", False),
        (rule("get list", "pods", "x"), "GET", f"{DEFAULT}/pods/x", True),
        (rule("get list", "pods", "x"), "GET", f"{DEFAULT}/pods/y", False),
        (rule("get list", "pods", "x"), "GET", f"{DEFAULT}/pods", False),
        (rule("get list", "pods", "x"), "GET", f"{DEFAULT}/pods?fieldSelector=metadata.name%3Dx", True),
        (rule("list", "pods", "x"), "GET", f"{DEFAULT}/pods?fieldSelector=metadata.name%3Dy", False),
        (
            rule("list", "pods", "x"),
            "GET",
            f"{DEFAULT}/pods?fieldSelector=spec.nodeName%3Dn,metadata.name%3D%3Dx",
            True,
        ),
        (rule("list", "pods", "x"), "GET", f"{DEFAULT}/pods?fieldSelector=metadata.name!%3Dx", False),
        (rule("create", "pods", "x"), "POST", f"{DEFAULT}/pods", False),
        ({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}, "GET", "/metrics", True),
        ({"verbs": ["get"], "nonResourceURLs": ["/debug/*"]}, "GET", "/debug/trace", True),
        ({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}, "GET", "/metrics/slis", False),
        ({"verbs": ["get"], "nonResourceURLs": ["*"]}, "POST", "/metrics", False),
    ],
)
async def test_a_rule_allows_what_its_four_parts_match(
    served: Any, given: dict[str, Any], method: str, path: str, allowed: bool
) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await grant(api, "alice", given)
        body = {"metadata": {"name": "x"}} if method == "POST" else None
        assert ((await alice.ask(method, path, body)).status != 403) is allowed


async def test_a_role_binding_counts_in_its_namespace_alone(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
        assert (await api.post(BINDINGS, binding("view", "view", "alice"))).status == 201
        assert (await alice.get(f"{DEFAULT}/pods")).status == 200
        assert (await alice.get("/api/v1/namespaces/other/pods")).status == 403
        assert (await alice.get("/api/v1/pods")).status == 403
        # Its own namespace is an object of a namespace.
        assert (await alice.get(DEFAULT)).status == 200
        assert (await alice.get("/api/v1/namespaces/other")).status == 403
        assert (await alice.get(f"{DEFAULT}/secrets")).status == 403
        assert (await api.delete(f"{BINDINGS}/view")).status == 200
        assert (await alice.get(f"{DEFAULT}/pods")).status == 403


async def test_groups_and_service_accounts_are_subjects_too(served: Any) -> None:
    async with (
        served() as api,
        person(api.server, "bob", "readers") as bob,
        person(api.server, "system:serviceaccount:default:robot") as robot,
    ):
        subjects = [{"kind": "Group", "name": "readers"}, {"kind": "ServiceAccount", "name": "robot"}]
        made = await api.post(BINDINGS, {**binding("view", "view"), "subjects": subjects})
        assert made.status == 201
        assert made.json["roleRef"]["apiGroup"] == "rbac.authorization.k8s.io"
        assert made.json["subjects"][0]["apiGroup"] == "rbac.authorization.k8s.io"
        for who in (bob, robot):
            assert (await who.get(f"{DEFAULT}/pods")).status == 200


async def test_the_role_of_a_binding_never_changes(served: Any) -> None:
    async with served() as api:
        await api.post(BINDINGS, binding("b", "view", "alice"))
        changed = await api.put(f"{BINDINGS}/b", binding("b", "edit", "alice"))
        assert changed.status == 422
        assert changed.json["message"] == (
            'RoleBinding.rbac.authorization.k8s.io "b" is invalid: roleRef: Invalid value: '
            '{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"edit"}: '
            "cannot change roleRef"
        )
        assert (await api.put(f"{BINDINGS}/b", binding("b", "view", "bob"))).status == 200


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (ROLES, role("r", {"apiGroups": [""], "resources": ["pods"], "verbs": []}), "rules[0].verbs"),
        (ROLES, role("r", {"resources": ["pods"], "verbs": ["get"]}), "rules[0].apiGroups"),
        (ROLES, role("r", {"apiGroups": [""], "verbs": ["get"]}), "rules[0].resources"),
        (ROLES, role("r", {"nonResourceURLs": ["/x"], "verbs": ["get"]}), "rules[0].nonResourceURLs"),
        (
            f"{RBAC}/clusterroles",
            {"metadata": {"name": "r"}, "aggregationRule": {}},
            "aggregationRule.clusterRoleSelectors",
        ),
        (BINDINGS, binding("b", "", "a"), "roleRef.name"),
        (BINDINGS, binding("b", "r", "a", kind="Thing"), "roleRef.kind"),
        (f"{RBAC}/clusterrolebindings", binding("b", "r", "a", kind="Role"), "roleRef.kind"),
        (
            f"{RBAC}/clusterrolebindings",
            {**binding("b", "r"), "subjects": [{"kind": "ServiceAccount", "name": "x"}]},
            "subjects[0].namespace",
        ),
        (
            BINDINGS,
            {**binding("b", "r"), "subjects": [{"kind": "User", "name": "x", "apiGroup": "apps"}]},
            "subjects[0].apiGroup",
        ),
        (BINDINGS, {**binding("b", "r"), "subjects": [{"kind": "Robot", "name": "x"}]}, "subjects[0].kind"),
        (ROLES, role("a%b", rule("get", "pods")), "metadata.name"),
    ],
)
async def test_a_role_or_binding_that_says_nothing_is_422(
    served: Any, path: str, body: dict[str, Any], field: str
) -> None:
    async with served() as api:
        answer = await api.post(path, body)
        assert answer.status == 422, answer.json
        assert [cause["field"] for cause in answer.json["details"]["causes"]] == [field]


async def test_a_cluster_role_made_of_others_holds_their_rules(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        edit = (await api.get(f"{RBAC}/clusterroles/edit")).json
        assert any("secrets" in r.get("resources", ()) for r in edit["rules"])
        admin = (await api.get(f"{RBAC}/clusterroles/admin")).json
        assert len(admin["rules"]) > len(edit["rules"])
        selector = {"clusterRoleSelectors": [{"matchLabels": {"for": "monitors"}}]}
        made = {"metadata": {"name": "monitor"}, "aggregationRule": selector}
        assert (await api.post(f"{RBAC}/clusterroles", made)).status == 201
        await api.post(f"{RBAC}/clusterrolebindings", binding("m", "monitor", "alice"))
        assert (await alice.get("/api/v1/nodes")).status == 403
        async with api.watch(f"{RBAC}/clusterroles?fieldSelector=metadata.name%3Dmonitor") as watch:
            assert (await watch.next())["object"].get("rules") is None
            part = role("part", rule("list", "nodes"))
            part["metadata"]["labels"] = {"for": "monitors"}
            await api.post(f"{RBAC}/clusterroles", part)
            assert (await watch.next())["object"]["rules"] == part["rules"]
            assert (await alice.get("/api/v1/nodes")).status == 200
            await api.delete(f"{RBAC}/clusterroles/part")
            assert (await watch.next())["object"].get("rules") is None
        assert (await alice.get("/api/v1/nodes")).status == 403


async def test_only_who_holds_everything_writes_an_aggregation_rule(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await grant(api, "alice", rule("create", "clusterroles", group="rbac.authorization.k8s.io"))
        selector = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
        made = {"metadata": {"name": "m"}, "aggregationRule": selector}
        answer = await alice.post(f"{RBAC}/clusterroles", made)
        assert answer.status == 403
        assert answer.message == (
            'clusterroles.rbac.authorization.k8s.io "m" is forbidden: '
            "must have cluster-admin privileges to use the aggregationRule"
        )


BOOTSTRAP = [
    "cluster-admin",
    "admin",
    "edit",
    "view",
    "system:discovery",
    "system:basic-user",
    "system:public-info-viewer",
    "system:node",
    "system:kube-scheduler",
    "system:volume-scheduler",
    "system:kube-controller-manager",
    "system:persistent-volume-provisioner",
    "system:controller:attachdetach-controller",
    "system:controller:persistent-volume-binder",
]


async def test_the_bootstrap_roles_are_there_and_come_back(served: Any) -> None:
    async with served() as api:
        found = {
            item["metadata"]["name"]: item for item in (await api.get(f"{RBAC}/clusterroles")).json["items"]
        }
        assert set(BOOTSTRAP) <= found.keys()
        for name in BOOTSTRAP:
            meta = found[name]["metadata"]
            assert meta["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults"
            assert meta["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] == "true"
        reader = f"{RBAC}/namespaces/kube-system/roles/extension-apiserver-authentication-reader"
        assert (await api.get(reader)).status == 200


async def test_a_restart_completes_roles_unless_told_not_to(served: Any) -> None:
    from volplane.store.memory import MemoryStore

    class Kept(MemoryStore):
        async def close(self) -> None:
            """Lives on after its server."""

    store = Kept()
    view, scheduler = f"{RBAC}/clusterroles/system:kube-dns", f"{RBAC}/clusterroles/system:kube-scheduler"
    async with served(store=store) as api:
        await api.delete(f"{RBAC}/clusterrolebindings/system:basic-user")
        assert (await api.merge(view, {"rules": []})).status == 200
        kept = {"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}}
        assert (await api.merge(scheduler, {**kept, "rules": []})).status == 200
    async with served(store=store) as api:
        assert (await api.get(f"{RBAC}/clusterrolebindings/system:basic-user")).status == 200
        assert (await api.get(view)).json["rules"][0]["resources"] == ["endpoints", "services"]
        assert not (await api.get(scheduler)).json.get("rules")
    await MemoryStore.close(store)


async def test_a_binding_to_a_role_that_is_missing_says_so(served: Any) -> None:
    async with served() as api, person(api.server, "alice") as alice:
        await api.post(f"{RBAC}/clusterrolebindings", binding("lost", "nowhere", "alice"))
        answer = await alice.get("/api/v1/nodes")
        assert answer.message == (
            'nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" '
            'at the cluster scope: RBAC: clusterrole.rbac.authorization.k8s.io "nowhere" not found'
        )
