"""ResourceQuota over HTTPS: what is refused, in upstream's words, and what must not be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.apiserver.test_kubectl import Kubectl

SPACE = "/api/v1/namespaces/default"
PODS, CLAIMS, QUOTAS = f"{SPACE}/pods", f"{SPACE}/persistentvolumeclaims", f"{SPACE}/resourcequotas"


def pod(name: str, requests: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    box = {"name": "c", "image": "i", "resources": {"requests": requests or {}}}
    return {"metadata": {"name": name}, "spec": {"containers": [box], **spec}}


def claim(name: str, size: str = "1Gi", **meta: Any) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name, **meta}, "spec": spec}


async def limit(api: Any, name: str = "q", *scopes: str, **hard: str) -> None:
    spec = {"hard": hard, "scopes": list(scopes)}
    answer = await api.post(QUOTAS, {"metadata": {"name": name}, "spec": spec})
    assert answer.status == 201, answer.json


async def prepare(api: Any) -> None:
    await api.post(f"{SPACE}/serviceaccounts", {"metadata": {"name": "default"}})


async def test_pods_count_by_number_and_by_what_they_request(served: Any) -> None:
    async with served() as api:
        await prepare(api)
        await limit(api, pods="3", **{"requests.cpu": "1", "requests.memory": "1Gi"})
        unnamed = await api.post(PODS, pod("a", {"cpu": "1"}))
        assert (unnamed.status, unnamed.json["message"]) == (
            403,
            'pods "a" is forbidden: failed quota: q: must specify requests.memory for: c',
        )
        assert (await api.post(PODS, pod("a", {"cpu": "600m", "memory": "1Mi"}))).status == 201
        answer = await api.post(PODS, pod("b", {"cpu": "500m", "memory": "2Gi"}))
        assert (answer.status, answer.json["message"]) == (
            403,
            'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=500m,requests.memory=2Gi, '
            "used: requests.cpu=600m,requests.memory=1Mi, limited: requests.cpu=1,requests.memory=1Gi",
        )
        # An ended pod uses nothing.
        await api.merge(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
        assert (await api.post(PODS, pod("b", {"cpu": "1", "memory": "1Gi"}))).status == 201


async def test_a_pod_counts_in_the_scopes_that_hold_for_it(served: Any) -> None:
    async with served() as api:
        await prepare(api)
        await limit(api, "best-effort", "BestEffort", pods="1")
        await limit(api, "ending", "Terminating", pods="0")
        assert (await api.post(PODS, pod("a"))).status == 201
        answer = await api.post(PODS, pod("b"))
        assert (
            "exceeded quota: best-effort, requested: pods=1, used: pods=1, limited: pods=1"
            in (answer.json["message"])
        )
        assert (await api.post(PODS, pod("b", {"cpu": "1"}))).status == 201
        answer = await api.post(PODS, pod("c", {"cpu": "1"}, activeDeadlineSeconds=5))
        assert "exceeded quota: ending" in answer.json["message"]


async def test_writes_at_the_same_time_do_not_exceed_a_quota_together(served: Any) -> None:
    async with served() as api:
        await limit(api, configmaps="3")
        writes = (api.post(f"{SPACE}/configmaps", {"metadata": {"generateName": "m-"}}) for _ in range(9))
        answers = await asyncio.gather(*writes)
        assert sorted(a.status for a in answers) == [201] * 3 + [403] * 6
        text = next(a.json["message"] for a in answers if a.status == 403)
        assert text.startswith('configmaps "m-')
        assert "is forbidden: exceeded quota: q, requested: configmaps=1, " in text


@pytest.mark.parametrize("end", ["deleted", "refused", "tried"])
async def test_only_what_is_stored_counts(served: Any, end: str) -> None:
    """A claim that came and went, was refused, or was a dry run leaves its room to the next one."""
    async with served() as api:
        await limit(api, persistentvolumeclaims="1")
        if end == "deleted":
            assert (await api.post(CLAIMS, claim("a"))).status == 201
            await api.merge(f"{CLAIMS}/a", {"metadata": {"finalizers": None}})
            assert (await api.delete(f"{CLAIMS}/a")).status == 200
        elif end == "refused":
            assert (await api.post(CLAIMS, claim("a", finalizers=["wrong"]))).status == 422
        else:
            assert (await api.post(f"{CLAIMS}?dryRun=All", claim("a"))).status == 201
        assert (await api.post(CLAIMS, claim("b"))).status == 201
        assert (await api.post(f"{CLAIMS}?dryRun=All", claim("c"))).status == 403


async def test_a_name_that_is_taken_conflicts_also_when_the_quota_is_used_up(served: Any) -> None:
    async with served() as api:
        await limit(api, persistentvolumeclaims="1")
        assert (await api.post(CLAIMS, claim("a"))).status == 201
        assert (await api.post(CLAIMS, claim("a"))).status == 409


async def test_services_count_with_their_node_ports_also_when_their_type_changes(served: Any) -> None:
    async with served() as api:
        await limit(api, services="1", **{"services.nodeports": "1"})
        ports = [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]
        web = {"metadata": {"name": "web"}, "spec": {"ports": ports}}
        assert (await api.post(f"{SPACE}/services", web)).status == 403  # `kubernetes` is there already
        await api.merge(f"{QUOTAS}/q", {"spec": {"hard": {"services": "5"}}})
        assert (await api.post(f"{SPACE}/services", web)).status == 201
        answer = await api.merge(f"{SPACE}/services/web", {"spec": {"type": "NodePort"}})
        assert answer.status == 403
        assert (
            "requested: services.nodeports=2, used: services.nodeports=0, limited: services.nodeports=1"
            in (answer.json["message"])
        )


async def test_custom_objects_are_counted(served: Any) -> None:
    schema = {"openAPIV3Schema": {"type": "object"}}
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    path = "/apis/example.com/v1/namespaces/default/widgets"
    async with served() as api:
        made = {"metadata": {"name": "widgets.example.com"}, "spec": spec}
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
        await limit(api, "q", **{"count/widgets.example.com": "1"})
        kind = {"apiVersion": "example.com/v1", "kind": "Widget"}
        assert (await api.post(path, {**kind, "metadata": {"name": "a"}})).status == 201
        answer = await api.post(path, {**kind, "metadata": {"name": "b"}})
        assert (answer.status, answer.json["message"]) == (
            403,
            'widgets.example.com "b" is forbidden: exceeded quota: q, requested: '
            "count/widgets.example.com=1, used: count/widgets.example.com=1, "
            "limited: count/widgets.example.com=1",
        )


async def test_a_resize_is_charged(served: Any) -> None:
    async with served() as api:
        await prepare(api)
        await limit(api, "q", **{"requests.cpu": "1"})
        assert (await api.post(PODS, pod("a", {"cpu": "500m"}))).status == 201
        patch = b'{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}]}}'
        answer = await api.call(
            "PATCH", f"{PODS}/a/resize", patch, type="application/strategic-merge-patch+json"
        )
        assert answer.status == 403
        assert "requested: requests.cpu=1500m, used: requests.cpu=500m" in answer.json["message"]


WRONG = {
    "unknown": ({"hard": {"colour": "1"}}, "spec.hard[colour]", "must be a standard resource for quota"),
    "fraction": ({"hard": {"pods": "1500m"}}, "spec.hard[pods]", "must be an integer"),
    "negative": ({"hard": {"pods": "-1"}}, "spec.hard[pods]", "must be greater than or equal to 0"),
    "scope": ({"hard": {"pods": "1"}, "scopes": ["Red"]}, "spec.scopes", "unsupported scope"),
    "scope and resource": (
        {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]},
        "spec.scopes",
        "unsupported scope applied to resource",
    ),
    "conflict": (
        {"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]},
        "spec.scopes",
        "conflicting scopes",
    ),
    "no values": (
        {
            "hard": {"pods": "1"},
            "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]},
        },
        "spec.scopeSelector.matchExpressions.values",
        "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
    ),
    "operator": (
        {
            "hard": {"pods": "1"},
            "scopeSelector": {"matchExpressions": [{"scopeName": "BestEffort", "operator": "DoesNotExist"}]},
        },
        "spec.scopeSelector.matchExpressions.operator",
        "must be 'Exists' when scope is any of",
    ),
}


@pytest.mark.parametrize(("spec", "field", "text"), WRONG.values(), ids=WRONG)
async def test_a_quota_names_known_resources_and_scopes(
    served: Any, spec: dict[str, Any], field: str, text: str
) -> None:
    async with served() as api:
        answer = await api.post(QUOTAS, {"metadata": {"name": "q"}, "spec": spec})
        assert answer.status == 422
        causes = {c["field"]: c["message"] for c in answer.json["details"]["causes"]}
        assert text in causes[field]


async def test_the_scopes_of_a_quota_do_not_change(served: Any) -> None:
    async with served() as api:
        await limit(api, "q", "BestEffort", pods="1")
        answer = await api.merge(f"{QUOTAS}/q", {"spec": {"scopes": None}})
        assert answer.status == 422
        assert "spec.scopes: Invalid value" in answer.json["message"]
        assert (await api.merge(f"{QUOTAS}/q", {"spec": {"hard": {"pods": "2"}}})).status == 200


@pytest.mark.peer("kubectl")
async def test_kubectl_creates_and_describes_quotas(served: Any, tmp_path: Any) -> None:
    async with served() as api:
        kubectl = Kubectl(api.server.kubeconfig, tmp_path)
        await kubectl("create", "quota", "q", "--hard=count/configmaps=1,services.loadbalancers=0")
        await kubectl("create", "configmap", "a")
        text = await kubectl("create", "configmap", "b", fails=True)
        assert "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=1" in text
        text = await kubectl("create", "service", "loadbalancer", "web", "--tcp=80", fails=True)
        assert "exceeded quota: q, requested: services.loadbalancers=1" in text
