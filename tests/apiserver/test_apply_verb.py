"""Server-side apply and field ownership, over HTTPS and with the real kubectl."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from volplane.api.core import ConfigMap
from volplane.api.errors import Forbidden
from volplane.api.kinds import STATUS, Kind
from volplane.api.meta import ObjectMeta
from volplane.apiserver.strategy import RequestUser
from volplane.client.transport import PatchStyle

APPLY = "application/apply-patch+yaml"
MAPS = "/api/v1/namespaces/default/configmaps"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "c"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def config(name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def complete(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    return deployment(selector={"matchLabels": {"a": "b"}}, template=template, **spec)


async def apply(api: Any, path: str, body: Any, manager: str = "m", more: str = "") -> Any:
    return await api.call("PATCH", f"{path}?fieldManager={manager}{more}", body, type=APPLY)


def owners(answer: Any) -> dict[tuple[str, str], Any]:
    entries = answer.json["metadata"].get("managedFields", ())
    return {(e["manager"], e["operation"]): e["fieldsV1"] for e in entries}


# Apply


async def test_an_apply_creates_then_changes_then_changes_nothing(served: Any) -> None:
    async with served() as api:
        made = await apply(api, f"{MAPS}/a", config(x="1", y="1"))
        assert made.status == 201, made.json
        (entry,) = made.json["metadata"]["managedFields"]
        assert entry == {
            "manager": "m",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": made.json["metadata"]["creationTimestamp"],
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:x": {}, "f:y": {}}},
        }
        changed = await apply(api, f"{MAPS}/a", config(x="2"))
        assert (changed.status, changed.json["data"]) == (200, {"x": "2"})
        again = await apply(api, f"{MAPS}/a", config(x="2"))
        assert again.json == changed.json


async def test_two_managers_and_one_replica_count(served: Any) -> None:
    async with served() as api:
        path = f"{DEPLOYMENTS}/d"
        assert (await apply(api, path, complete(replicas=1), "a")).status == 201
        refused = await apply(api, path, deployment(replicas=2), "b")
        assert (refused.status, refused.json["reason"]) == (409, "Conflict")
        assert refused.json["details"] == {
            "causes": [
                {"reason": "FieldManagerConflict", "message": 'conflict with "a"', "field": ".spec.replicas"}
            ]
        }
        forced = await apply(api, path, deployment(replicas=2), "b", "&force=true")
        assert (forced.status, forced.json["spec"]["replicas"]) == (200, 2)
        assert "f:replicas" not in owners(forced)["a", "Apply"]["f:spec"]
        assert owners(forced)["b", "Apply"] == {"f:spec": {"f:replicas": {}}}


async def test_invalid_apply_options_and_bodies_are_refused(served: Any) -> None:
    async with served() as api:
        refused = await api.call("PATCH", f"{MAPS}/a", config(), type=APPLY)
        assert refused.status == 422
        assert "fieldManager: Required value: is required for apply patch" in refused.json["message"]
        strange = await api.call("PATCH", f"{MAPS}/a?force=true", {}, type="application/merge-patch+json")
        assert strange.status == 422
        assert "may not be specified for non-apply patch" in strange.json["message"]
        long = await apply(api, f"{MAPS}/a", config(), "m" * 129)
        assert (long.status, long.json["details"]["causes"][0]["field"]) == (422, "fieldManager")
        managed = {**config(), "metadata": {"name": "a", "managedFields": []}}
        assert (await apply(api, f"{MAPS}/a", managed)).json[
            "message"
        ] == "metadata.managedFields must be nil"
        other = await apply(api, f"{MAPS}/a", {**config(), "kind": "Secret"})
        assert (other.status, other.json["message"]) == (400, "invalid object type: /v1, Kind=Secret")
        assert (await apply(api, f"{MAPS}/a", b"a: [")).status == 400
        assert (await apply(api, f"{MAPS}/a", b"[]")).status == 400
        assert (await apply(api, f"{MAPS}/b", config("a"))).status == 400
        unknown = await apply(api, f"{MAPS}/a", {**config(), "colour": "red"})
        assert unknown.status == 400
        assert unknown.json["message"] == (
            "failed to create typed patch object (default/a; /v1, Kind=ConfigMap): "
            ".colour: field not declared in schema"
        )
        wrong = await apply(api, f"{DEPLOYMENTS}/d", complete(replicas="many"))
        assert wrong.status == 400
        gone = await apply(api, f"{DEPLOYMENTS}/d/status", deployment())
        assert gone.status == 404
        uid = {**config(), "metadata": {"name": "a", "uid": "u"}}
        assert (await apply(api, f"{MAPS}/a", uid)).status == 409
        twice = await apply(api, f"{MAPS}/a", b'{"apiVersion":"v1","kind":"ConfigMap","kind":"ConfigMap"}')
        assert twice.status == 400  # it has no name, but the warning is sent, too
        assert any("already set in map" in w for w in twice.warnings)


async def test_yaml_dry_run_and_stale_versions(served: Any) -> None:
    async with served() as api:
        text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '1'}\n"
        dry = await apply(api, f"{MAPS}/a", text, more="&dryRun=All")
        assert dry.status == 201
        assert (await api.get(f"{MAPS}/a")).status == 404
        made = await apply(api, f"{MAPS}/a", text)
        stale = {**config(x="2"), "metadata": {"name": "a", "resourceVersion": "1"}}
        assert (await apply(api, f"{MAPS}/a", stale)).status == 409
        fresh = made.json["metadata"]["resourceVersion"]
        current = {**config(x="2"), "metadata": {"name": "a", "resourceVersion": fresh}}
        assert (await apply(api, f"{MAPS}/a", current)).status == 200


async def test_status_has_its_own_owners(served: Any) -> None:
    async with served() as api:
        await apply(api, f"{CLAIMS}/c", CLAIM, "a")
        status = {**CLAIM, "status": {"phase": "Bound"}}
        main = await apply(api, f"{CLAIMS}/c", status, "a")
        assert main.json["status"]["phase"] == "Pending"
        assert "f:status" not in owners(main)["a", "Apply"]
        below = await apply(api, f"{CLAIMS}/c/status", {**status, "spec": {}}, "k")
        assert (below.status, below.json["status"]["phase"]) == (200, "Bound"), below.json
        entry = next(e for e in below.json["metadata"]["managedFields"] if e["manager"] == "k")
        assert (entry["subresource"], entry["fieldsV1"]) == ("status", {"f:status": {"f:phase": {}}})


async def test_creating_by_apply_needs_permission_to_create(served: Any) -> None:
    async with served() as api:
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}]
        roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        await api.post(f"{roles}/roles", {"metadata": {"name": "r"}, "rules": rules})
        group = "rbac.authorization.k8s.io"
        await api.post(
            f"{roles}/rolebindings",
            {
                "metadata": {"name": "r"},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
                "subjects": [{"apiGroup": group, "kind": "User", "name": "eve"}],
            },
        )
        eve = api.server.in_process_transport(RequestUser("eve"))
        mine = {"metadata": {"name": "a"}, "data": {"x": "1"}}
        with pytest.raises(Forbidden, match='cannot create resource "configmaps"'):
            await eve.patch(ConfigMap, "a", "default", mine, PatchStyle.APPLY, manager="m")
        await api.post(MAPS, config())
        applied = await eve.patch(ConfigMap, "a", "default", mine, PatchStyle.APPLY, manager="m")
        assert applied.data == {"x": "1"}


async def test_custom_resources_are_applied_too(served: Any) -> None:
    async with served() as api:
        kind = Kind(None, "example.com", "v1", "Thing", "things", subresources=(STATUS,))
        api.server.backend.registry.add(kind)
        path = "/apis/example.com/v1/namespaces/default/things/t"
        thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
        made = await apply(api, path, {**thing, "spec": {"a": 1, "list": [1]}}, "a")
        assert made.status == 201, made.json
        assert owners(made)["a", "Apply"] == {"f:spec": {"f:a": {}, "f:list": {}}}
        refused = await apply(api, path, {**thing, "spec": {"a": 2}}, "b")
        assert refused.json["details"]["causes"][0]["field"] == ".spec.a"
        await api.merge(f"{path}?fieldManager=editor", {"spec": {"b": 1}})
        dropped = await apply(api, path, {**thing, "spec": {"list": [2]}}, "a")
        assert dropped.json["spec"] == {"list": [2], "b": 1}
        status = await apply(api, f"{path}/status", {**thing, "status": {"ready": True}}, "s")
        assert status.json["status"] == {"ready": True}


def definition() -> dict[str, Any]:
    part = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}
    parts = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["id"],
        "items": {**part, "required": ["id"]},
    }
    spec = {"type": "object", "properties": {"size": {"type": "integer", "default": 1}, "parts": parts}}
    status = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


async def test_custom_resources_merge_by_their_schema(served: Any) -> None:
    async with served() as api:
        crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com"
        assert (await apply(api, crd, definition())).status == 201
        path = "/apis/example.com/v1/namespaces/default/things/t"
        for _ in range(200):
            if (await api.get(path)).json.get("details", {}).get("kind") == "things":
                break
            await asyncio.sleep(0.02)
        head = {"apiVersion": "example.com/v1", "kind": "Thing"}

        def thing(finalizers: list[str], **spec: Any) -> dict[str, Any]:
            return {**head, "metadata": {"name": "t", "finalizers": finalizers}, "spec": spec}

        one, two = {"id": "1", "n": 1}, {"id": "2", "n": 2}
        made = await apply(api, path, thing(["a/b"], parts=[one]), "a")
        assert (made.status, made.json["spec"]["size"]) == (201, 1), made.json
        same = await apply(api, path, thing(["a/b"], parts=[one]), "a")
        assert same.json == made.json
        both = await apply(api, path, thing(["c/d"], parts=[two]), "b")
        assert both.json["spec"]["parts"] == [one, two]
        assert both.json["metadata"]["finalizers"] == ["a/b", "c/d"]
        unknown = await apply(api, path, thing([], colour="red"), "b")
        assert (unknown.status, ".spec.colour: field not declared" in unknown.json["message"]) == (400, True)
        refused = await apply(api, path, thing([], parts=[{"id": "1", "n": 5}]), "b")
        assert refused.json["details"]["causes"][0]["field"] == '.spec.parts[id="1"].n'
        status = await apply(api, f"{path}/status", {**head, "status": {"ready": True}}, "s")
        assert status.json["status"] == {"ready": True}, status.json
        entry = next(e for e in status.json["metadata"]["managedFields"] if e["manager"] == "s")
        assert entry["subresource"] == "status"
        left = await apply(api, path, thing([]), "a")
        assert left.json["spec"]["parts"] == [two]


async def test_the_owner_of_an_attachments_status_is_kept(served: Any) -> None:
    async with served() as api:
        path = "/apis/storage.k8s.io/v1/volumeattachments"
        spec = {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}
        await api.post(f"{path}?fieldManager=a", {"metadata": {"name": "v"}, "spec": spec})
        said = await api.merge(f"{path}/v/status?fieldManager=attacher", {"status": {"attached": True}})
        assert owners(said)["attacher", "Update"] == {"f:status": {"f:attached": {}}}
        assert (await api.get(f"{path}/v")).json == said.json


# Other writes


async def test_a_create_begins_and_updates_move_owners(served: Any) -> None:
    async with served() as api:
        made = await api.post(f"{MAPS}?fieldManager=a", config(x="1", y="1"))
        assert owners(made) == {("a", "Update"): {"f:data": {".": {}, "f:x": {}, "f:y": {}}}}
        patched = await api.merge(f"{MAPS}/a?fieldManager=b", {"data": {"y": "2", "z": "1"}})
        assert owners(patched) == {
            ("a", "Update"): {"f:data": {".": {}, "f:x": {}}},
            ("b", "Update"): {"f:data": {"f:y": {}, "f:z": {}}},
        }
        same = await api.merge(f"{MAPS}/a?fieldManager=c", {"data": {"y": "2"}})
        assert same.json == patched.json
        removed = await api.merge(f"{MAPS}/a?fieldManager=c", {"data": {"y": None, "z": None}})
        assert owners(removed) == {("a", "Update"): {"f:data": {".": {}, "f:x": {}}}}


async def test_the_default_field_manager_comes_from_the_user_agent(served: Any) -> None:
    async with served() as api:
        made = await api.post(MAPS, config(x="1"), user_agent="kubectl/v1.35 (linux)")
        assert list(owners(made)) == [("kubectl", "Update")]
        changed = await api.merge(f"{MAPS}/a", {"data": {"x": "2"}})
        assert ("unknown", "Update") in owners(changed)
        empty = await api.post(MAPS, config("b"))
        assert owners(empty) == {}  # it has no fields that can be owned


async def test_owners_can_be_reset_and_are_kept_when_omitted(served: Any) -> None:
    async with served() as api:
        made = await api.post(f"{MAPS}?fieldManager=a", config(x="1"))
        bare = {**made.json, "metadata": {"name": "a"}, "data": {"x": "1", "y": "1"}}
        put = await api.put(f"{MAPS}/a?fieldManager=b", bare)
        assert set(owners(put)) == {("a", "Update"), ("b", "Update")}
        reset = await api.merge(f"{MAPS}/a", {"metadata": {"managedFields": []}})
        assert "managedFields" not in reset.json["metadata"]
        untracked = await api.merge(f"{MAPS}/a?fieldManager=b", {"data": {"x": "2"}})
        assert "managedFields" not in untracked.json["metadata"]
        refused = await apply(api, f"{MAPS}/a", config(x="3"))
        assert (
            refused.json["details"]["causes"][0]["message"] == 'conflict with "before-first-apply" using v1'
        )


async def test_a_client_may_rewrite_the_owners(served: Any) -> None:
    async with served() as api:
        made = await api.post(f"{MAPS}?fieldManager=csa", config(x="1"))
        entries = made.json["metadata"]["managedFields"]
        mine = [{**entries[0], "manager": "kubectl", "operation": "Apply"}]
        operations = [{"op": "replace", "path": "/metadata/managedFields", "value": mine}]
        moved = await api.call("PATCH", f"{MAPS}/a", operations, type="application/json-patch+json")
        assert list(owners(moved)) == [("kubectl", "Apply")]
        nonsense = [{"op": "replace", "path": "/metadata/managedFields/0/operation", "value": "Sell"}]
        kept = await api.call("PATCH", f"{MAPS}/a", nonsense, type="application/json-patch+json")
        assert list(owners(kept)) == [("kubectl", "Apply")]


async def test_scale_has_its_own_entry(served: Any) -> None:
    async with served() as api:
        await apply(api, f"{DEPLOYMENTS}/d", complete(replicas=1), "a")
        await api.merge(f"{DEPLOYMENTS}/d/scale?fieldManager=s", {"spec": {"replicas": 3}})
        found = await api.get(f"{DEPLOYMENTS}/d")
        entry = next(e for e in found.json["metadata"]["managedFields"] if e["manager"] == "s")
        assert (entry["subresource"], entry["fieldsV1"]) == ("scale", {"f:spec": {"f:replicas": {}}})
        refused = await apply(api, f"{DEPLOYMENTS}/d", complete(replicas=1), "a")
        cause = refused.json["details"]["causes"][0]["message"]
        assert cause == 'conflict with "s" with subresource "scale" using apps/v1'


async def test_objects_created_in_process_have_no_owner_until_the_first_apply(served: Any) -> None:
    async with served() as api:
        local = api.server.in_process_transport()
        made = await local.create(ConfigMap(metadata=ObjectMeta(name="a"), data={"x": "1"}), "default")
        assert made.metadata.managed_fields == ()
        patch = {"data": {"x": "2"}}
        changed = await local.patch(ConfigMap, "a", "default", patch, PatchStyle.MERGE)
        assert changed.metadata.managed_fields == ()
        await apply(api, f"{MAPS}/a", config(x="2"))
        tracked = await local.patch(ConfigMap, "a", "default", {"data": {"x": "3"}}, PatchStyle.MERGE)
        assert [e.manager for e in tracked.metadata.managed_fields] == [
            "before-first-apply",
            "kubernetes-admin",
        ]
        mine = {"metadata": {"name": "a"}, "data": {"y": "1"}}
        applied = await local.patch(ConfigMap, "a", "default", mine, PatchStyle.APPLY, manager="me")
        assert applied.metadata.managed_fields[0].manager == "me"


# kubectl


class Kubectl:
    def __init__(self, api: Any, home: Path) -> None:
        self.env = {**os.environ, "KUBECONFIG": str(api.server.kubeconfig), "HOME": str(home)}

    async def __call__(self, *words: str, text: Any = None, fails: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *words,
            env=self.env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(60):
            output, _ = await process.communicate(json.dumps(text).encode() if text else b"")
        output_text = output.decode()
        assert (process.returncode != 0) is fails, output_text
        return output_text


@pytest.mark.peer("kubectl")
async def test_kubectl_applies_on_the_server(served: Any, tmp_path: Path) -> None:
    async with served() as api:
        kubectl = Kubectl(api, tmp_path)
        ssa = ("apply", "--server-side", "-f", "-")
        created = await kubectl(*ssa, text=complete(replicas=1))
        assert "deployment.apps/d serverside-applied" in created
        await kubectl(*ssa, text=complete(replicas=2))
        conflict = await kubectl(*ssa, "--field-manager=other", text=complete(replicas=3), fails=True)
        assert 'Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas' in conflict
        taken = await kubectl(*ssa, "--field-manager=other", "--force-conflicts", text=complete(replicas=3))
        assert "serverside-applied" in taken
        assert await kubectl("get", "deploy", "d", "-o", "jsonpath={.spec.replicas}") == "3"
        shown = await kubectl("get", "deploy", "d", "-o", "yaml", "--show-managed-fields")
        assert "manager: other" in shown
        assert "operation: Apply" in shown
        unknown = await kubectl(*ssa, text=complete(colour="red"), fails=True)
        assert ".spec.colour: field not declared in schema" in unknown
        assert "created" in await kubectl("apply", "-f", "-", text=config(x="1"))
        moved = await kubectl(*ssa, text=config(x="2"))
        assert "configmap/a serverside-applied" in moved
        assert await kubectl("get", "cm", "a", "-o", "jsonpath={.data.x}") == "2"
        await kubectl("diff", "--server-side", "-f", "-", text=config(x="2"))
