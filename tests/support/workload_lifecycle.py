"""One object for every controller, and what the controller must make of it: over HTTPS, with any API server.

There is no kubelet: the statuses that it would write are written here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from volplane.api.errors import NotFound
from volplane.client.https import HttpsTransport

PATIENCE = 60.0
MANAGER_FLAGS = (  # of the controller manager that plays it
    "--use-service-account-credentials",
    "--node-monitor-grace-period=2s",
    "--node-startup-grace-period=2s",
    "--terminated-pod-gc-threshold=1",
    "--leader-elect-lease-duration=120s",  # the machine may be busy
    "--leader-elect-renew-deadline=100s",
)
SPACE = "/api/v1/namespaces/default"
APPS, BATCH = "/apis/apps/v1/namespaces/default", "/apis/batch/v1/namespaces/default"
STORAGE, SIGNING = "/apis/storage.k8s.io/v1", "/apis/certificates.k8s.io/v1/certificatesigningrequests"
DISCOVERY = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
WIDGETS = "/apis/example.com/v1/namespaces/team/widgets"
MERGE = "application/merge-patch+json"

CONTAINER = {"name": "c", "image": "busybox"}


def template(app: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [CONTAINER], **spec}}


def selected(app: str, **spec: Any) -> dict[str, Any]:
    return {"selector": {"matchLabels": {"app": app}}, "template": template(app), **spec}


class WorkloadLifecycle:
    def __init__(self, admin: HttpsTransport) -> None:
        self._admin = admin

    # --- requests

    async def get(self, path: str) -> Any:
        """None if it does not exist."""
        try:
            return json.loads(await self._admin.raw("GET", path))
        except NotFound:
            return None

    async def items(self, path: str) -> list[Any]:
        found: list[Any] = (await self.get(path))["items"]
        return found

    async def make(self, path: str, name: str, spec: Any = None, **rest: Any) -> Any:
        metadata = {"name": name, **rest.pop("metadata", {})}
        body = {"metadata": metadata, **({} if spec is None else {"spec": spec}), **rest}
        return json.loads(await self._admin.raw("POST", path, json.dumps(body).encode()))

    async def merge(self, path: str, patch: Any) -> None:
        await self._admin.raw("PATCH", path, json.dumps(patch).encode(), MERGE)

    async def delete(self, path: str) -> None:
        await self._admin.raw("DELETE", path)

    async def until(self, what: str, test: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                while not (found := await test()):  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"never: {what}") from None
        return found

    async def until_field(self, path: str, wanted: Any, *keys: str) -> None:
        async def has() -> bool:
            found = await self.get(path)
            for key in keys:
                found = (found or {}).get(key)
            return bool(found == wanted)

        await self.until(f"{path} {'.'.join(keys)} is {wanted!r}", has)

    async def until_gone(self, path: str) -> None:
        async def is_gone() -> bool:
            return await self.get(path) is None

        await self.until(f"{path} is gone", is_gone)

    async def pods_of(self, app: str, number: int) -> list[Any]:
        async def enough() -> Any:
            found = await self.items(f"{SPACE}/pods?labelSelector=app%3D{app}")
            living = [p for p in found if "deletionTimestamp" not in p["metadata"]]
            return living if len(living) == number else None

        made: list[Any] = await self.until(f"{number} pods of {app}", enough) if number else []
        return made

    # --- what each controller does

    async def play(self) -> None:
        async def has_account() -> Any:
            return await self.get(f"{SPACE}/serviceaccounts/default")

        await self.until("the service account default", has_account)
        await self._nodes()
        async with asyncio.TaskGroup() as group:
            for part in (
                self._deployments(),
                self._stateful_sets(),
                self._other_sets(),
                self._jobs(),
                self._services(),
                self._volumes(),
                self._attachments(),
                self._namespaces(),
                self._quotas_and_budgets(),
                self._finished_pods(),
            ):
                group.create_task(part)

    async def _nodes(self) -> None:
        """A node that has sent one heartbeat, and no more: node lifecycle marks and taints it."""
        managed = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
        await self.make("/api/v1/nodes", "lost", metadata={"annotations": managed})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        await self.merge("/api/v1/nodes/lost/status", {"status": {"conditions": [ready]}})

        async def is_tainted() -> bool:
            taints = (await self.get("/api/v1/nodes/lost")).get("spec", {}).get("taints", ())
            return any(t["key"] == "node.kubernetes.io/unreachable" for t in taints)

        await self.until("the lost node is tainted", is_tainted)
        await self.make("/api/v1/nodes", "drained")
        spec = {"nodeName": "drained", "containers": [CONTAINER], "terminationGracePeriodSeconds": 0}
        await self.make(f"{SPACE}/pods", "evicted", spec)
        taint = {"key": "example.com/drained", "effect": "NoExecute"}
        await self.merge("/api/v1/nodes/drained", {"spec": {"taints": [taint]}})

        async def is_deleted() -> bool:
            found = await self.get(f"{SPACE}/pods/evicted")
            return found is None or "deletionTimestamp" in found["metadata"]

        await self.until("the pod of the drained node is evicted", is_deleted)

    async def _deployments(self) -> None:
        await self.make(f"{APPS}/deployments", "web", selected("web", replicas=2))
        await self.pods_of("web", 2)
        newer = {"spec": {"replicas": 1, "template": {"metadata": {"annotations": {"version": "2"}}}}}
        await self.merge(f"{APPS}/deployments/web", newer)

        async def sets() -> bool:
            found = await self.items(f"{APPS}/replicasets?labelSelector=app%3Dweb")
            return len(found) == 2

        await self.until("a second ReplicaSet", sets)
        await self.until_field(f"{APPS}/deployments/web", 2, "status", "observedGeneration")
        await self.delete(f"{APPS}/deployments/web")

        async def collected() -> bool:
            return not await self.items(f"{APPS}/replicasets?labelSelector=app%3Dweb")

        await self.until("the garbage collector deletes the ReplicaSets", collected)

    async def _stateful_sets(self) -> None:
        want = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claims = [{"metadata": {"name": "data"}, "spec": {**want, "storageClassName": "none"}}]
        keep = {"whenDeleted": "Delete", "whenScaled": "Delete"}
        more = {"serviceName": "db", "volumeClaimTemplates": claims}
        await self.make(
            f"{APPS}/statefulsets",
            "db",
            selected("db", replicas=1, persistentVolumeClaimRetentionPolicy=keep, **more),
        )
        await self.pods_of("db", 1)

        async def is_owned() -> bool:
            claim = await self.get(f"{SPACE}/persistentvolumeclaims/data-db-0")
            return claim is not None and bool(claim["metadata"].get("ownerReferences"))

        await self.until("the claim of the StatefulSet has an owner", is_owned)
        await self.until_field(f"{APPS}/statefulsets/db", 1, "status", "replicas")

    async def _other_sets(self) -> None:
        everywhere = template("agent", tolerations=[{"operator": "Exists"}])
        await self.make(f"{APPS}/daemonsets", "agent", {**selected("agent"), "template": everywhere})
        await self.pods_of("agent", 2)
        simple = {"selector": {"app": "old"}, "template": template("old"), "replicas": 1}
        await self.make(f"{SPACE}/replicationcontrollers", "old", simple)
        await self.pods_of("old", 1)
        await self.until_field(f"{SPACE}/replicationcontrollers/old", 1, "status", "replicas")
        await self.make(
            f"{SPACE}/pods",
            "orphan",
            metadata={"labels": {"app": "adopted"}},
            spec={"containers": [CONTAINER]},
        )
        await self.make(f"{APPS}/replicasets", "adopting", selected("adopted", replicas=1))

        async def is_adopted() -> bool:
            return bool((await self.get(f"{SPACE}/pods/orphan"))["metadata"].get("ownerReferences"))

        await self.until("the orphan is adopted", is_adopted)

    async def _jobs(self) -> None:
        spec = {"template": template("work", restartPolicy="Never"), "ttlSecondsAfterFinished": 0}
        await self.make(f"{BATCH}/jobs", "work", spec)
        (pod,) = await self.pods_of("work", 1)
        await self._end(pod["metadata"]["name"], "Succeeded")
        await self.until_gone(f"{BATCH}/jobs/work")
        nightly = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": spec}}
        await self.make(f"{BATCH}/cronjobs", "nightly", nightly)

    async def _end(self, pod: str, phase: str) -> None:
        await self.merge(f"{SPACE}/pods/{pod}/status", {"status": {"phase": phase}})

    async def _services(self) -> None:
        await self.make(f"{SPACE}/services", "front", {"selector": {"app": "front"}, "ports": [{"port": 80}]})
        await self.make(
            f"{SPACE}/pods",
            "front",
            {"containers": [CONTAINER], "nodeName": "lost"},
            metadata={"labels": {"app": "front"}},
        )

        async def has_slice() -> bool:
            return bool(await self.items(f"{DISCOVERY}?labelSelector=kubernetes.io%2Fservice-name%3Dfront"))

        await self.until("a slice of the Service", has_slice)
        status = {"podIP": "10.9.8.7", "podIPs": [{"ip": "10.9.8.7"}], "phase": "Running"}
        await self.merge(f"{SPACE}/pods/front/status", {"status": status})

        async def addresses() -> bool:
            found = await self.get(f"{SPACE}/endpoints/front")
            return "10.9.8.7" in json.dumps(found)

        await self.until("the Service has an address", addresses)

    async def _volumes(self) -> None:
        want = {"accessModes": ["ReadWriteOnce"], "storageClassName": "manual"}
        volume = {**want, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}
        await self.make("/api/v1/persistentvolumes", "manual", volume)
        claims = f"{SPACE}/persistentvolumeclaims"
        await self.make(claims, "manual", {**want, "resources": {"requests": {"storage": "1Gi"}}})
        await self.until_field(f"{claims}/manual", "Bound", "status", "phase")
        await self.delete(f"{claims}/manual")
        await self.until_field("/api/v1/persistentvolumes/manual", "Released", "status", "phase")
        await self.delete("/api/v1/persistentvolumes/manual")
        await self.until_gone("/api/v1/persistentvolumes/manual")
        source = {"spec": {**want, "resources": {"requests": {"storage": "1Gi"}}}}
        scratch = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": source}}]
        await self.make(f"{SPACE}/pods", "temporary", {"containers": [CONTAINER], "volumes": scratch})

        async def has_claim() -> Any:
            return await self.get(f"{claims}/temporary-scratch")

        await self.until("the claim of the ephemeral volume", has_claim)
        classes = f"{STORAGE}/volumeattributesclasses"
        await self.make(classes, "fast", driverName="x.example.com", parameters={"iops": "1"})
        await self.until_field(f"{classes}/fast", ["kubernetes.io/vac-protection"], "metadata", "finalizers")
        await self.delete(f"{classes}/fast")
        await self.until_gone(f"{classes}/fast")

    async def _attachments(self) -> None:
        await self.make(f"{STORAGE}/csidrivers", "x.example.com", {"attachRequired": True})
        driver = {"name": "x.example.com", "nodeID": "lost"}
        await self.make(f"{STORAGE}/csinodes", "lost", {"drivers": [driver]})
        want = {"accessModes": ["ReadWriteOnce"], "storageClassName": "remote"}
        csi = {"driver": "x.example.com", "volumeHandle": "v-1"}
        await self.make(
            "/api/v1/persistentvolumes", "remote", {**want, "capacity": {"storage": "1Gi"}, "csi": csi}
        )
        await self.make(
            f"{SPACE}/persistentvolumeclaims",
            "remote",
            {**want, "resources": {"requests": {"storage": "1Gi"}}},
        )
        mounted = [{"name": "v", "persistentVolumeClaim": {"claimName": "remote"}}]
        await self.make(
            f"{SPACE}/pods", "user", {"containers": [CONTAINER], "volumes": mounted, "nodeName": "lost"}
        )

        async def attachment() -> Any:
            found = await self.items(f"{STORAGE}/volumeattachments")
            return found[0]["metadata"]["name"] if found else None

        name = await self.until("a VolumeAttachment", attachment)
        await self.merge(f"{STORAGE}/volumeattachments/{name}/status", {"status": {"attached": True}})

        async def is_reported() -> bool:
            return bool((await self.get("/api/v1/nodes/lost"))["status"].get("volumesAttached"))

        await self.until("the node shows the attached volume", is_reported)

    async def _namespaces(self) -> None:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
        await self.make(path, "widgets.example.com", spec)
        await self.make("/api/v1/namespaces", "team")

        async def has_ca() -> Any:
            return await self.get("/api/v1/namespaces/team/configmaps/kube-root-ca.crt")

        await self.until("the CA certificate of the new namespace", has_ca)

        async def is_served() -> Any:
            return await self.get(WIDGETS)

        await self.until("the custom kind is served", is_served)
        widget = {"apiVersion": "example.com/v1", "kind": "Widget"}
        await self.make(WIDGETS, "w", **widget, metadata={"finalizers": ["example.com/hold"]})
        await self.delete("/api/v1/namespaces/team")

        async def is_deleted() -> bool:
            found = await self.get(f"{WIDGETS}/w")
            return "deletionTimestamp" in found["metadata"]

        await self.until("the custom object is deleted", is_deleted)
        assert await self.get("/api/v1/namespaces/team") is not None
        await self.merge(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
        await self.until_gone("/api/v1/namespaces/team")

    async def _quotas_and_budgets(self) -> None:
        await self.make(f"{SPACE}/resourcequotas", "few", {"hard": {"services": "10"}})

        async def is_counted() -> bool:
            return "used" in (await self.get(f"{SPACE}/resourcequotas/few")).get("status", {})

        await self.until("the quota is counted", is_counted)
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "old"}}}
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        await self.make(budgets, "old", budget)
        await self.until_field(f"{budgets}/old", 1, "status", "expectedPods")

    async def _finished_pods(self) -> None:
        """More than --terminated-pod-gc-threshold=1."""
        for name in ("finished-1", "finished-2"):
            await self.make(f"{SPACE}/pods", name, {"containers": [CONTAINER]})
            await self._end(name, "Failed")

        async def one_left() -> bool:
            found = await self.items(f"{SPACE}/pods?fieldSelector=status.phase%3DFailed")
            return len([p for p in found if p["metadata"]["name"].startswith("finished")]) < 2

        await self.until("a finished pod is removed", one_left)
