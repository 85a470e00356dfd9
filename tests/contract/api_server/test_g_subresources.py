"""Contract api-server G, subresources: the cases to test.

exec, attach and port-forward with real clients and a real node stand in tests/scenarios and tests/node.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver.test_streams import pod_on_a_node
from tests.contract.api_server.samples import deployment, make, make_pod

STRATEGIC = "application/strategic-merge-patch+json"


def binding(node: str, **meta: Any) -> Any:
    return {"metadata": {"name": "p", **meta}, "target": {"kind": "Node", "name": node}}


async def test_binding_a_bound_pod_is_409_and_the_nodes_watch_sees_added(shared: Any) -> None:
    async with shared() as api:
        made = await make_pod(api)
        path = f"{api.at('pods')}?fieldSelector=spec.nodeName%3Dn1"
        async with api.watch(f"{path}&resourceVersion={made['metadata']['resourceVersion']}") as watch:
            bound = await api.post(api.at("pods", "p", "binding"), binding("n1"))
            assert (bound.status, bound.json["status"]) == (201, "Success")
            assert (await watch.next())["type"] == "ADDED"
        again = await api.post(api.at("pods", "p", "binding"), binding("n2"))
        assert (again.status, again.json["message"]) == (
            409,
            'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"',
        )


async def test_bindings_of_the_namespace_bind_too(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api)
        bound = await api.post(api.at("bindings"), binding("n1"))
        assert (bound.status, bound.json["status"]) == (201, "Success")
        assert (await api.get(api.at("pods", "p"))).json["spec"]["nodeName"] == "n1"


async def test_eviction_with_a_budget_of_0_is_429_with_its_cause(shared: Any) -> None:
    async with shared() as api:
        made = await make_pod(api, nodeName="n1")
        await api.merge(api.at("pods", "p"), {"metadata": {"labels": {"app": "x"}}})
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await api.merge(api.at("pods", "p", "status"), ready)
        path = api.at("poddisruptionbudgets", group="policy/v1")
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
        budget = await make(api, path, {"metadata": {"name": "b"}, "spec": spec})
        status = {
            "disruptionsAllowed": 0,
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "expectedPods": 1,
            "observedGeneration": budget["metadata"]["generation"],
        }
        await api.merge(f"{path}/b/status", {"status": status})
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
        refused = await api.post(api.at("pods", "p", "eviction"), eviction)
        assert (refused.status, refused.json["reason"]) == (429, "TooManyRequests")
        assert refused.json["message"] == (
            "Cannot evict pod as it would violate the pod's disruption budget."
        )
        assert refused.json["details"]["causes"][0]["reason"] == "DisruptionBudget"
        await api.merge(f"{path}/b/status", {"status": {"disruptionsAllowed": 1}})
        evicted = await api.post(api.at("pods", "p", "eviction"), eviction)
        assert (evicted.status, evicted.json["status"]) == (201, "Success")
        assert made["metadata"]["uid"]


async def test_scale_patch_is_200_and_counts_a_generation(shared: Any) -> None:
    async with shared() as api:
        path = api.at("deployments", group="apps/v1")
        made = await make(api, path, deployment())
        assert made["metadata"]["generation"] == 1
        scaled = await api.merge(f"{path}/web/scale", {"spec": {"replicas": 3}})
        assert scaled.status == 200
        assert (scaled.json["kind"], scaled.json["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert scaled.json["spec"] == {"replicas": 3}
        assert scaled.json["status"]["selector"] == "app=web"
        assert (await api.get(f"{path}/web")).json["metadata"]["generation"] == 2


async def test_replicationcontrollers_scale_too(shared: Any) -> None:
    async with shared() as api:
        template = {"metadata": {"labels": {"a": "b"}}, "spec": deployment()["spec"]["template"]["spec"]}
        await make(
            api,
            api.at("replicationcontrollers"),
            {"metadata": {"name": "rc"}, "spec": {"template": template}},
        )
        scaled = await api.merge(api.at("replicationcontrollers", "rc", "scale"), {"spec": {"replicas": 2}})
        assert (scaled.status, scaled.json["status"]["selector"]) == (200, "a=b")
        assert (await api.get(api.at("replicationcontrollers", "rc"))).json["spec"]["replicas"] == 2


# Ephemeral containers


def debugger(name: str = "d", **more: Any) -> Any:
    return {"spec": {"ephemeralContainers": [{"name": name, "image": "busybox", **more}]}}


async def test_ephemeral_containers_are_appended_and_nothing_else(shared: Any) -> None:
    async with shared() as api:
        made = await make_pod(api)
        path = api.at("pods", "p", "ephemeralcontainers")
        first = await api.call("PATCH", path, debugger(targetContainerName="c"), type=STRATEGIC)
        assert first.status == 200, first.json
        (container,) = first.json["spec"]["ephemeralContainers"]
        assert (container["name"], container["targetContainerName"]) == ("d", "c")
        assert container["imagePullPolicy"] == "Always"
        assert container["terminationMessagePath"] == "/dev/termination-log"
        assert first.json["metadata"]["generation"] == made["metadata"]["generation"] + 1
        second = await api.call("PATCH", path, debugger("e"), type=STRATEGIC)
        assert {c["name"] for c in second.json["spec"]["ephemeralContainers"]} == {"d", "e"}
        # What else the body says is not heard here.
        deaf = await api.merge(
            path, {"spec": {"activeDeadlineSeconds": 5}, "metadata": {"labels": {"a": "b"}}}
        )
        assert deaf.status == 200
        assert "activeDeadlineSeconds" not in deaf.json["spec"]
        assert "labels" not in deaf.json["metadata"]
        assert (await api.get(path)).json["kind"] == "Pod"


@pytest.mark.parametrize(
    ("patch", "reported"),
    [
        (debugger("c"), 'spec.ephemeralContainers[0].name: Duplicate value: "c"'),
        (
            debugger(targetContainerName="none"),
            "spec.ephemeralContainers[0].targetContainerName: Not found: ",
        ),
        (debugger(ports=[{"containerPort": 1}]), "spec.ephemeralContainers[0].ports: Forbidden: "),
        (
            debugger(resources={"limits": {"cpu": "1"}}),
            "spec.ephemeralContainers[0].resources: Forbidden: ",
        ),
        (
            debugger(livenessProbe={"exec": {"command": ["a"]}}),
            "spec.ephemeralContainers[0].livenessProbe: Forbidden: ",
        ),
    ],
)
async def test_what_an_ephemeral_container_may_not_be(shared: Any, patch: Any, reported: str) -> None:
    async with shared() as api:
        await make_pod(api)
        path = api.at("pods", "p", "ephemeralcontainers")
        refused = await api.call("PATCH", path, patch, type=STRATEGIC)
        assert refused.status == 422, refused.json
        assert reported in refused.json["message"]


async def test_ephemeral_containers_neither_go_nor_change(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api)
        path = api.at("pods", "p", "ephemeralcontainers")
        await api.call("PATCH", path, debugger(), type=STRATEGIC)
        gone = await api.merge(path, {"spec": {"ephemeralContainers": []}})
        assert gone.status == 422
        assert "existing ephemeral containers" in gone.json["message"]
        other = await api.call("PATCH", path, debugger(command=["sh"]), type=STRATEGIC)
        assert other.status == 422


async def test_ephemeral_containers_only_by_their_own_path(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api)
        refused = await api.call("PATCH", api.at("pods", "p"), debugger(), type=STRATEGIC)
        assert refused.status == 422
        path = api.at("pods")
        spec = {"containers": [{"name": "c", "image": "a"}], **debugger()["spec"]}
        body = {"metadata": {"name": "q"}, "spec": spec}
        born = await api.post(path, body)
        assert born.status == 422
        assert "cannot be set on create" in born.json["message"]


# Resize


SAME_CLASS = 'spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing'


def amounts(**resources: Any) -> Any:
    return {"spec": {"containers": [{"name": "c", "resources": resources}]}}


async def a_burstable_pod(api: Any) -> Any:
    container = {"name": "c", "image": "a:1", **amounts(requests={"cpu": "1"}, limits={"cpu": "2"})["spec"]}
    resources = container.pop("containers")[0]["resources"]
    return await make_pod(api, containers=[{**container, "resources": resources}])


async def test_resize_changes_amounts_and_nothing_else(shared: Any) -> None:
    async with shared() as api:
        made = await a_burstable_pod(api)
        path = api.at("pods", "p", "resize")
        patch = amounts(requests={"cpu": "1500m"})
        patch["spec"]["containers"][0]["image"] = "b:2"
        patch["metadata"] = {"labels": {"a": "b"}}
        done = await api.call("PATCH", path, patch, type=STRATEGIC)
        assert done.status == 200, done.json
        (container,) = done.json["spec"]["containers"]
        assert container["resources"] == {"limits": {"cpu": "2"}, "requests": {"cpu": "1500m"}}
        assert container["image"] == "a:1"
        assert "labels" not in done.json["metadata"]
        assert done.json["metadata"]["generation"] == made["metadata"]["generation"] + 1
        assert (await api.get(path)).json["kind"] == "Pod"
        main = await api.call("PATCH", api.at("pods", "p"), amounts(requests={"cpu": "1"}), type=STRATEGIC)
        assert main.status == 422


@pytest.mark.parametrize(
    ("patch", "reported"),
    [
        (amounts(requests={"cpu": "2"}, limits={"memory": "1Gi"}), SAME_CLASS),
        (amounts(requests={"cpu": None}, limits={"cpu": None}), SAME_CLASS),
        (
            amounts(requests={"ephemeral-storage": "2"}),
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (
            amounts(requests={"cpu": "9"}),
            'resources.requests: Invalid value: "9": must be less than or equal to cpu limit of 2',
        ),
        (
            amounts(limits={"cpu": None}),
            "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            {"spec": {"containers": [{"name": "d", "image": "a"}]}},
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
    ],
)
async def test_what_resize_refuses(shared: Any, patch: Any, reported: str) -> None:
    async with shared() as api:
        await a_burstable_pod(api)
        answer = await api.call("PATCH", api.at("pods", "p", "resize"), patch, type=STRATEGIC)
        assert answer.status == 422, answer.json
        assert reported in answer.json["message"]


# Attach


async def test_attach_with_stdin_reaches_the_node(served: Any) -> None:
    async with served() as api, pod_on_a_node(api) as node:
        path = "/api/v1/namespaces/default/pods/p/attach?stdin=true&stdout=true&tty=true"
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
        answer, stream = await api.http.upgrade(path, headers, method="POST")
        assert answer.status == 101
        await stream.write(b"hello")
        assert await stream.read() == b"HELLO"
        stream.close()
        method, asked, query = node.requests[-1]
        assert (method, asked) == ("POST", "/attach/default/p/c")
        assert set(query.split("&")) == {"input=1", "output=1", "tty=1"}
