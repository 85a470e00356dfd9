"""Binding, eviction, scale."""

from __future__ import annotations

from typing import Any

DEFAULT = "/api/v1/namespaces/default"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


async def make_pod(api: Any, name: str = "p", **spec: Any) -> dict[str, Any]:
    await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
    spec = {"containers": [{"name": "c", "image": "busybox"}], **spec}
    made = await api.post(f"{DEFAULT}/pods", {"metadata": {"name": name}, "spec": spec})
    assert made.status == 201, made.json
    result: dict[str, Any] = made.json
    return result


def binding(node: str = "n1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", **meta},
        "target": {"kind": "Node", "name": node},
    }


async def test_a_pod_is_bound_once(served: Any) -> None:
    async with served() as api:
        made = await make_pod(api)
        wrong = await api.post(f"{DEFAULT}/pods/p/binding", binding(uid="other"))
        assert wrong.status == 409
        bound = await api.post(f"{DEFAULT}/pods/p/binding", binding(annotations={"a": "b"}))
        assert bound.status == 201
        assert (bound.json["kind"], bound.json["status"]) == ("Status", "Success")
        pod = (await api.get(f"{DEFAULT}/pods/p")).json
        assert pod["spec"]["nodeName"] == "n1"
        assert pod["metadata"]["annotations"]["a"] == "b"
        assert pod["metadata"]["generation"] == made["metadata"]["generation"]
        scheduled = next(c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")
        assert scheduled["status"] == "True"
        again = await api.post(f"{DEFAULT}/pods/p/binding", binding("n2"))
        assert again.status == 409
        assert again.json["message"] == (
            'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"'
        )
        assert (await api.post(f"{DEFAULT}/pods/nobody/binding", binding())).status == 404


async def test_a_terminating_or_gated_pod_is_not_bound(served: Any) -> None:
    async with served() as api:
        await make_pod(api, schedulingGates=[{"name": "example.com/wait"}])
        gated = await api.post(f"{DEFAULT}/pods/p/binding", binding())
        assert (gated.status, "schedulingGates" in gated.json["message"]) == (409, True)
        nowhere = await api.post(f"{DEFAULT}/pods/p/binding", binding(""))
        assert (nowhere.status, nowhere.json["details"]["causes"][0]["field"]) == (422, "target.name")


async def test_an_evicted_pod_has_a_disruption_target_condition(served: Any) -> None:
    async with served() as api:
        await make_pod(api, nodeName="n1")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "p"},
            "deleteOptions": {"gracePeriodSeconds": 7},
        }
        evicted = await api.post(f"{DEFAULT}/pods/p/eviction", body)
        assert (evicted.status, evicted.json["status"]) == (201, "Success")
        pod = (await api.get(f"{DEFAULT}/pods/p")).json
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 7
        reasons = [c["reason"] for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        assert reasons == ["EvictionByEvictionAPI"]


async def test_a_deployment_is_scaled_through_its_scale(served: Any) -> None:
    async with served() as api:
        template = {
            "metadata": {"labels": {"app": "x"}},
            "spec": {"containers": [{"name": "c", "image": "busybox"}]},
        }
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": template}
        made = await api.post(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})
        assert made.status == 201, made.json
        scale = (await api.get(f"{DEPLOYMENTS}/d/scale")).json
        assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert scale["spec"] == {"replicas": 1}
        assert scale["status"] == {"replicas": 0, "selector": "app=x"}
        patched = await api.merge(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 3}})
        assert (patched.status, patched.json["spec"]) == (200, {"replicas": 3})
        deployment = (await api.get(f"{DEPLOYMENTS}/d")).json
        assert (deployment["spec"]["replicas"], deployment["metadata"]["generation"]) == (3, 2)
        stale = await api.put(f"{DEPLOYMENTS}/d/scale", {**scale, "spec": {"replicas": 5}})
        assert stale.status == 409
        put = await api.put(f"{DEPLOYMENTS}/d/scale", {**patched.json, "spec": {"replicas": 5}})
        assert put.json["spec"] == {"replicas": 5}
        negative = await api.merge(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": -1}})
        assert negative.status == 422


async def test_a_response_that_is_not_acceptable_is_refused_before_the_act(served: Any) -> None:
    async with served() as api:
        await make_pod(api)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
        refused = await api.post(f"{DEFAULT}/pods/p/eviction", body, accept="application/xml")
        assert (refused.status, refused.json["reason"]) == (406, "NotAcceptable")
        assert (await api.get(f"{DEFAULT}/pods/p")).status == 200
        review = "/apis/authentication.k8s.io/v1/tokenreviews"
        refused = await api.post(review, {"spec": []}, accept="application/xml")
        assert (refused.status, refused.json["reason"]) == (406, "NotAcceptable")
