"""Section F, nodes: they read what their pods need, and write what is theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contract.api_server.people import DEFAULT, RBAC, Person, binding, person, role, rule

STORAGE = "/apis/storage.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NO_WAY = "no relationship found between node 'n1' and this object"
MIRROR = "kubernetes.io/config.mirror"


class World:
    """Two nodes; pod p1 runs on n1 with everything a pod can name, p2 on n2 with its own."""

    def __init__(self, api: Any, node: Person) -> None:
        self.api, self.node = api, node
        self.pods: dict[str, dict[str, Any]] = {}

    async def make(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.api.post(path, body)
        assert answer.status == 201, answer.json
        made: dict[str, Any] = answer.json
        return made

    async def build(self) -> None:
        await self.make(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
        for number in ("1", "2"):
            await self.make("/api/v1/nodes", {"metadata": {"name": f"n{number}"}})
            account = {"metadata": {"name": f"robot{number}"}, "automountServiceAccountToken": False}
            await self.make(f"{DEFAULT}/serviceaccounts", account)
            for name in ("secret", "env-secret", "pull-secret", "stage-secret", "expand-secret"):
                await self.make(f"{DEFAULT}/secrets", {"metadata": {"name": f"{name}{number}"}})
            for name in ("config", "projected-config"):
                await self.make(f"{DEFAULT}/configmaps", {"metadata": {"name": f"{name}{number}"}})
            await self.storage(number)
            self.pods[number] = await self.make(f"{DEFAULT}/pods", pod(number))
        driver = {"tokenRequests": [{"audience": "vault"}]}
        await self.make(f"{STORAGE}/csidrivers", {"metadata": {"name": "csi.example.com"}, "spec": driver})

    async def storage(self, number: str) -> None:
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeName": f"pv{number}",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        names = {"metadata": {"name": f"claim{number}"}, "spec": claim}
        await self.make(f"{DEFAULT}/persistentvolumeclaims", names)
        csi = {
            "driver": "csi.example.com",
            "volumeHandle": f"h{number}",
            "nodeStageSecretRef": {"name": f"stage-secret{number}", "namespace": "default"},
            "controllerExpandSecretRef": {"name": f"expand-secret{number}", "namespace": "default"},
        }
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": csi,
            "claimRef": {"namespace": "default", "name": f"claim{number}"},
        }
        await self.make("/api/v1/persistentvolumes", {"metadata": {"name": f"pv{number}"}, "spec": volume})
        attachment = {
            "attacher": "csi.example.com",
            "nodeName": f"n{number}",
            "source": {"persistentVolumeName": f"pv{number}"},
        }
        names = {"metadata": {"name": f"va{number}"}, "spec": attachment}
        await self.make(f"{STORAGE}/volumeattachments", names)

    def token(self, number: str, *audiences: str, **reference: str) -> dict[str, Any]:
        meta = self.pods[number]["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"], **reference}
        return {"spec": {"boundObjectRef": bound, "audiences": list(audiences)}}


def pod(number: str) -> dict[str, Any]:
    sources = [
        {"configMap": {"name": f"projected-config{number}"}},
        {"serviceAccountToken": {"path": "token", "audience": "proj"}},
    ]
    return {
        "metadata": {"name": f"p{number}"},
        "spec": {
            "nodeName": f"n{number}",
            "serviceAccountName": f"robot{number}",
            "imagePullSecrets": [{"name": f"pull-secret{number}"}],
            "containers": [
                {
                    "name": "c",
                    "image": "busybox",
                    "envFrom": [{"configMapRef": {"name": f"config{number}"}}],
                    "env": [
                        {
                            "name": "A",
                            "valueFrom": {"secretKeyRef": {"name": f"env-secret{number}", "key": "a"}},
                        }
                    ],
                }
            ],
            "volumes": [
                {"name": "s", "secret": {"secretName": f"secret{number}"}},
                {"name": "d", "persistentVolumeClaim": {"claimName": f"claim{number}"}},
                {"name": "j", "projected": {"sources": sources}},
            ],
        },
    }


@asynccontextmanager
async def world(served: Any) -> AsyncIterator[World]:
    async with served() as api, person(api.server, "system:node:n1", "system:nodes") as node:
        made = World(api, node)
        await made.build()
        yield made


async def test_a_node_reads_no_secret_that_its_pods_do_not_use(served: Any) -> None:
    async with world(served) as w:
        answer = await w.node.get(f"{DEFAULT}/secrets/secret2")
        assert answer.status == 403
        assert answer.message == (
            'secrets "secret2" is forbidden: User "system:node:n1" cannot get resource "secrets" '
            f'in API group "" in the namespace "default": {NO_WAY}'
        )
        assert (await w.node.get(f"{DEFAULT}/secrets")).message.endswith(": No Object name found")
        assert (await w.node.get("/api/v1/secrets")).status == 403


@pytest.mark.parametrize(
    "path",
    [
        f"{DEFAULT}/secrets/secret%s",
        f"{DEFAULT}/secrets/env-secret%s",
        f"{DEFAULT}/secrets/pull-secret%s",
        f"{DEFAULT}/secrets/stage-secret%s",  # by way of the volume
        f"{DEFAULT}/secrets?fieldSelector=metadata.name%%3Dsecret%s",
        f"{DEFAULT}/configmaps/config%s",
        f"{DEFAULT}/configmaps/projected-config%s",
        f"{DEFAULT}/configmaps?fieldSelector=metadata.name%%3Dconfig%s",
        f"{DEFAULT}/persistentvolumeclaims/claim%s",
        "/api/v1/persistentvolumes/pv%s",
        f"{STORAGE}/volumeattachments/va%s",
        f"{DEFAULT}/serviceaccounts/robot%s",
        f"{DEFAULT}/pods/p%s",
        "/api/v1/nodes/n%s",
        "/api/v1/nodes?fieldSelector=metadata.name%%3Dn%s",
        "/api/v1/pods?fieldSelector=spec.nodeName%%3Dn%s",
    ],
)
async def test_a_node_reads_what_its_own_pods_need(served: Any, path: str) -> None:
    async with world(served) as w:
        assert (await w.node.get(path % "1")).status == 200
        assert (await w.node.get(path % "2")).status == 403


async def test_what_a_node_reads_ends_with_the_pod_that_needs_it(served: Any) -> None:
    async with world(served) as w:
        for path in (f"{DEFAULT}/secrets/secret1", "/api/v1/persistentvolumes/pv1"):
            assert (await w.node.get(path)).status == 200
        await w.api.delete(f"{DEFAULT}/pods/p1?gracePeriodSeconds=0")
        for path in (f"{DEFAULT}/secrets/secret1", "/api/v1/persistentvolumes/pv1"):
            assert (await w.node.get(path)).status == 403


@pytest.mark.parametrize(
    ("method", "path", "reported"),
    [
        ("GET", "/api/v1/persistentvolumes", "can only get individual resources of this type"),
        ("GET", f"{DEFAULT}/persistentvolumeclaims", "can only get individual resources of this type"),
        ("GET", f"{STORAGE}/volumeattachments", "can only get individual resources of this type"),
        ("GET", f"{DEFAULT}/persistentvolumeclaims/claim1/status", "can only get/update/patch this type"),
        ("DELETE", f"{DEFAULT}/secrets/secret1", "can only read resources of this type"),
        ("GET", "/api/v1/nodes", "node 'n1' cannot read all nodes, only its own Node object"),
        ("GET", "/api/v1/nodes/n2", "node 'n1' cannot read 'n2', only its own Node object"),
        ("GET", "/api/v1/pods", "can only list/watch pods with spec.nodeName field selector"),
        ("GET", f"{STORAGE}/csinodes", "can only get, create, update, patch, or delete a CSINode"),
        (
            "GET",
            f"{STORAGE}/csinodes/n2",
            "can only access CSINode with the same name as the requesting node",
        ),
        ("GET", LEASES, "can only get, create, update, patch, or delete a node lease"),
        ("GET", f"{LEASES}/n2", "can only access node lease with the same name as the requesting node"),
        (
            "GET",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/n1",
            'can only access leases in the "kube-node-lease" system namespace',
        ),
        (
            "GET",
            f"{DEFAULT}/serviceaccounts",
            "can only create tokens for individual service accounts",
        ),
    ],
)
async def test_a_refusal_says_what_a_node_may_do_instead(
    served: Any, method: str, path: str, reported: str
) -> None:
    async with world(served) as w:
        answer = await w.node.ask(method, path)
        assert answer.status == 403
        assert answer.message.endswith(f": {reported}")


@pytest.mark.parametrize(
    "path", ["/api/v1/services", f"{STORAGE}/csidrivers", "/apis/node.k8s.io/v1/runtimeclasses", "/api"]
)
async def test_what_every_node_may_read(served: Any, path: str) -> None:
    async with world(served) as w:
        assert (await w.node.get(path)).status == 200


async def test_what_every_node_may_create(served: Any) -> None:
    async with world(served) as w:
        event = {
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p1"},
        }
        assert (await w.node.post(f"{DEFAULT}/events", event)).status == 201
        review = {"spec": {"token": "x"}}
        assert (await w.node.post("/apis/authentication.k8s.io/v1/tokenreviews", review)).status == 201
        about = {"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods"}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert (await w.node.post(path, {"spec": about})).status == 201
        assert (await w.node.post(f"{DEFAULT}/configmaps", {"metadata": {"name": "x"}})).status == 403


async def test_a_node_without_the_group_or_a_name_is_nobody(served: Any) -> None:
    async with (
        world(served) as w,
        person(w.api.server, "system:node:n1", "others") as pretender,
        person(w.api.server, "system:node:", "system:nodes") as nameless,
    ):
        assert (await pretender.get("/api/v1/nodes/n1")).status == 403
        reported = (await nameless.get("/api/v1/pods")).message
        assert reported.endswith('unknown node for user "system:node:"')


# --- tokens


async def test_a_token_for_a_pod_of_another_node_is_403(served: Any) -> None:
    async with world(served) as w:
        answer = await w.node.post(f"{DEFAULT}/serviceaccounts/robot2/token", w.token("2", "proj"))
        assert (answer.status, NO_WAY in answer.message) == (403, True)
        answer = await w.node.post(f"{DEFAULT}/serviceaccounts/robot1/token", w.token("2", "proj"))
        assert answer.status == 403
        assert answer.message == (
            'serviceaccounts "robot1" is forbidden: '
            "node requested token bound to a pod scheduled on a different node"
        )


async def test_a_token_for_an_audience_of_the_driver_of_the_pods_claim_is_201(served: Any) -> None:
    async with world(served) as w:
        path = f"{DEFAULT}/serviceaccounts/robot1/token"
        answer = await w.node.post(path, w.token("1", "vault"))
        assert answer.status == 201
        assert answer.json["spec"]["audiences"] == ["vault"]
        assert (await w.node.post(path, w.token("1", "proj"))).status == 201


@pytest.mark.parametrize(
    ("audiences", "reference", "reported"),
    [
        (("a", "b"), {}, "node may only request 0 or 1 audiences"),
        (
            ("other",),
            {},
            'audience "other" not found in pod spec volume, system:node:n1 is not authorized '
            "to request tokens for this audience",
        ),
        ((), {"kind": "Secret"}, "node requested token not bound to a pod"),
        ((), {"uid": ""}, "node requested token with a pod binding without a uid"),
        ((), {"uid": "x"}, "the UID in the bound object reference (x) does not match the UID in record"),
    ],
)
async def test_a_token_that_a_node_does_not_get(
    served: Any, audiences: tuple[str, ...], reference: dict[str, str], reported: str
) -> None:
    async with world(served) as w:
        path = f"{DEFAULT}/serviceaccounts/robot1/token"
        answer = await w.node.post(path, w.token("1", *audiences, **reference))
        assert answer.status == 403
        assert reported in answer.message


async def test_an_audience_can_be_granted_to_nodes(served: Any) -> None:
    async with world(served) as w:
        given = role("audience", rule("request-serviceaccounts-token-audience", "other"))
        await w.api.post(f"{RBAC}/clusterroles", given)
        bound = {**binding("audience", "audience"), "subjects": [{"kind": "Group", "name": "system:nodes"}]}
        assert (await w.api.post(f"{RBAC}/clusterrolebindings", bound)).status == 201
        path = f"{DEFAULT}/serviceaccounts/robot1/token"
        assert (await w.node.post(path, w.token("1", "other"))).status == 201


# --- restriction


async def test_a_node_edits_only_itself(served: Any) -> None:
    async with world(served) as w:
        answer = await w.node.merge("/api/v1/nodes/n2", {"metadata": {"annotations": {"a": "b"}}})
        assert answer.message == 'nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2"'
        assert (await w.node.merge("/api/v1/nodes/n2/status", {"status": {}})).status == 403
        assert (
            await w.node.merge("/api/v1/nodes/n1", {"metadata": {"annotations": {"a": "b"}}})
        ).status == 200
        assert (await w.node.merge("/api/v1/nodes/n1/status", {"status": {"phase": "x"}})).status == 200
        other = await w.node.post("/api/v1/nodes", {"metadata": {"name": "n3"}})
        assert other.message == 'nodes "n3" is forbidden: node "n1" is not allowed to modify node "n3"'
        assert (await w.node.delete("/api/v1/nodes/n1")).status == 403


@pytest.mark.parametrize(
    ("label", "allowed"),
    [
        ("kubernetes.io/hostname", True),
        ("topology.kubernetes.io/zone", True),
        ("node.kubernetes.io/instance-type", True),
        ("kubelet.kubernetes.io/x", True),
        ("foo.node.kubernetes.io/x", True),
        ("example.com/x", True),
        ("topology.ebs.csi.aws.com/zone", True),
        ("plain", True),
        ("node-restriction.kubernetes.io/x", False),
        ("a.node-restriction.kubernetes.io/x", False),
        ("node-role.kubernetes.io/control-plane", False),
        ("kubernetes.io/x", False),
        ("storage.k8s.io/x", False),
    ],
)
async def test_labels_that_a_node_may_give_itself(served: Any, label: str, allowed: bool) -> None:
    async with served() as api, person(api.server, "system:node:n1", "system:nodes") as node:
        body = {"metadata": {"name": "n1", "labels": {label: "v"}}}
        made = await node.post("/api/v1/nodes", body)
        assert made.status == (201 if allowed else 403)
        if not allowed:
            reported = (
                f'nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: {label}'
            )
            assert made.message == reported
            await api.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
        changed = await node.merge("/api/v1/nodes/n1", {"metadata": {"labels": {label: "w"}}})
        assert changed.status == (200 if allowed else 403)
        if not allowed:
            assert changed.message == f'nodes "n1" is forbidden: is not allowed to modify labels: {label}'


async def test_a_node_comes_with_its_taints_but_does_not_change_them(served: Any) -> None:
    async with served() as api, person(api.server, "system:node:n1", "system:nodes") as node:
        taint = {"key": "a", "value": "b", "effect": "NoSchedule"}
        body = {"metadata": {"name": "n1"}, "spec": {"taints": [taint]}}
        assert (await node.post("/api/v1/nodes", body)).status == 201
        answer = await node.merge("/api/v1/nodes/n1", {"spec": {"taints": []}})
        assert answer.message == 'nodes "n1" is forbidden: node "n1" is not allowed to modify taints'
        owned = {
            "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u"}]}
        }
        assert (await node.merge("/api/v1/nodes/n1", owned)).status == 403


async def test_lease_and_csinode_bear_the_nodes_name(served: Any) -> None:
    async with world(served) as w:
        for path, body in ((LEASES, {"spec": {}}), (f"{STORAGE}/csinodes", {"spec": {"drivers": []}})):
            assert (await w.node.post(path, {**body, "metadata": {"name": "n2"}})).status == 403
            assert (await w.node.post(path, {**body, "metadata": {"name": "n1"}})).status == 201
            assert (await w.node.get(f"{path}/n1")).status == 200
            assert (await w.node.merge(f"{path}/n1", {"metadata": {"annotations": {"a": "b"}}})).status == 200
            assert (await w.node.delete(f"{path}/n1")).status == 200


def _mirror(**changes: Any) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "controller": True}
    made: dict[str, Any] = {
        "metadata": {"name": "m", "annotations": {MIRROR: "x"}, "ownerReferences": [owner]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "busybox"}]},
    }
    made["metadata"].update(changes.get("metadata", {}))
    made["spec"].update(changes.get("spec", {}))
    owner.update(changes.get("owner", {}))
    return made


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"metadata": {"annotations": {}}}, f'pod does not have "{MIRROR}" annotation'),
        ({"spec": {"nodeName": "n2"}}, 'node "n1" can only create pods with spec.nodeName set to itself'),
        ({"metadata": {"ownerReferences": []}}, "can only create pods with an owner reference set to itself"),
        ({"owner": {"name": "n2"}}, "can only create pods with an owner reference set to itself"),
        ({"owner": {"controller": False}}, "can only create pods with a controller owner reference set"),
        ({"owner": {"blockOwnerDeletion": True}}, "must not set blockOwnerDeletion on an owner reference"),
        ({"owner": {"uid": "x"}}, "node n1 UID mismatch: expected x got"),
        ({"spec": {"serviceAccountName": "robot1"}}, "can not create pods that reference serviceaccounts"),
        (
            {"spec": {"volumes": [{"name": "s", "secret": {"secretName": "secret2"}}]}},
            "can not create pods that reference secrets",
        ),
        (
            {"spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "claim2"}}]}},
            "can not create pods that reference persistentvolumeclaims",
        ),
    ],
)
async def test_a_mirror_pod_belongs_to_its_node_and_names_nothing_else(
    served: Any, changes: dict[str, Any], reported: str
) -> None:
    async with world(served) as w:
        uid = (await w.api.get("/api/v1/nodes/n1")).json["metadata"]["uid"]
        owner = {"uid": uid, **changes.get("owner", {})}
        answer = await w.node.post(f"{DEFAULT}/pods", _mirror(**{**changes, "owner": owner}))
        assert answer.status == 403
        assert answer.message.startswith('pods "m" is forbidden: ')
        assert reported in answer.message
        assert (await w.node.post(f"{DEFAULT}/pods", _mirror(owner={"uid": uid}))).status == 201


@pytest.mark.parametrize("below", ["", "/status"])
@pytest.mark.parametrize(
    ("before", "after", "done"),
    [("x", None, "remove or update"), ("x", "y", "remove or update"), (None, "x", "add")],
)
async def test_nobody_adds_changes_or_removes_the_annotation_of_mirror_pods(
    served: Any, below: str, before: str | None, after: str | None, done: str
) -> None:
    """Without it a pod that a node has made by itself is one of the cluster's, and the reverse."""
    async with world(served) as w:
        uid = (await w.api.get("/api/v1/nodes/n1")).json["metadata"]["uid"]
        made = _mirror(owner={"uid": uid})
        if before is None:
            made["metadata"] = {"name": "m"}
        await w.make(f"{DEFAULT}/pods", made)
        patch = {"metadata": {"annotations": {MIRROR: after}}}
        for who in (w.node, w.api):
            answer = await who.merge(f"{DEFAULT}/pods/m{below}", patch)
            if who is w.node and not below:
                assert answer.status == 403  # it may not update its pods at all
                continue
            assert answer.status == 422
            reported = f"metadata.annotations[{MIRROR}]: Forbidden: may not {done} mirror pod annotation"
            assert reported in answer.json["message"]
        kept = (await w.api.get(f"{DEFAULT}/pods/m")).json["metadata"].get("annotations", {})
        assert kept.get(MIRROR) == before


async def test_a_mirror_pod_says_which_node_it_is_on(served: Any) -> None:
    async with world(served) as w:
        made = _mirror()
        made["metadata"].pop("ownerReferences")
        made["spec"].pop("nodeName")
        answer = await w.api.post(f"{DEFAULT}/pods", made)
        assert answer.status == 422
        assert "must set spec.nodeName if mirror pod annotation is set" in answer.json["message"]


async def test_status_deletion_and_eviction_of_own_pods_only(served: Any) -> None:
    async with world(served) as w:
        status = {"status": {"phase": "Running"}}
        answer = await w.node.merge(f"{DEFAULT}/pods/p2/status", status)
        assert answer.message == (
            'pods "p2" is forbidden: '
            'node "n1" can only update pod status for pods with spec.nodeName set to itself'
        )
        assert (await w.node.merge(f"{DEFAULT}/pods/p1/status", status)).status == 200
        labelled = {"metadata": {"labels": {"a": "b"}}, **status}
        reported = (await w.node.merge(f"{DEFAULT}/pods/p1/status", labelled)).message
        assert reported.endswith('node "n1" cannot update labels through pod status')
        assert (await w.node.merge(f"{DEFAULT}/pods/p1", {"metadata": {"labels": {"a": "b"}}})).status == 403
        evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p2"}}
        reported = (await w.node.post(f"{DEFAULT}/pods/p2/eviction", evict)).message
        assert (
            reported == 'pods "p2" is forbidden: node n1 can only evict pods with spec.nodeName set to itself'
        )
        reported = (await w.node.delete(f"{DEFAULT}/pods/p2")).message
        assert reported.endswith('node "n1" can only delete pods with spec.nodeName set to itself')
        evict["metadata"] = {"name": "p1"}
        assert (await w.node.post(f"{DEFAULT}/pods/p1/eviction", evict)).status == 201
        assert (await w.node.delete(f"{DEFAULT}/pods/p1?gracePeriodSeconds=0")).status == 200


async def test_of_a_claim_a_node_writes_only_how_it_has_grown(served: Any) -> None:
    async with world(served) as w:
        path = f"{DEFAULT}/persistentvolumeclaims/claim1/status"
        grown = {
            "capacity": {"storage": "2Gi"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        }
        assert (await w.node.merge(path, {"status": grown})).status == 200
        answer = await w.node.merge(path, {"status": {"phase": "Lost"}})
        assert answer.status == 403
        assert 'node "n1" is not allowed to update fields other than status.quantity' in answer.message
        assert (await w.node.merge(path, {"metadata": {"labels": {"a": "b"}}})).status == 403
        assert (await w.node.merge(path.replace("claim1", "claim2"), {"status": grown})).status == 403
        spec = {"spec": {"volumeName": "pv2"}}
        assert (await w.node.merge(path.removesuffix("/status"), spec)).status == 403


async def test_the_rules_of_a_node_cannot_be_listed(served: Any) -> None:
    async with world(served) as w:
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        status = (await w.node.post(path, {"spec": {"namespace": "default"}})).json["status"]
        assert status["incomplete"] is True
        assert status["evaluationError"] == "node authorizer does not support user rule resolution"
