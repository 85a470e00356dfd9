"""Contract api-server C, CRUD semantics: the cases to test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api_server.samples import (
    COORDINATION,
    STORAGE,
    attachment,
    claim,
    config,
    lease,
    make,
    make_pod,
    pod,
    volume,
)


async def test_post_pvc_twice_is_409_alreadyexists(shared: Any) -> None:
    async with shared() as api:
        path = api.at("persistentvolumeclaims")
        await make(api, path, claim())
        again = await api.post(path, claim())
        assert again.status == 409
        assert again.json == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": 'persistentvolumeclaims "data" already exists',
            "reason": "AlreadyExists",
            "details": {"name": "data", "kind": "persistentvolumeclaims"},
            "code": 409,
        }
        await api.delete(f"{path}/data")
        going = await api.post(path, claim())
        assert going.json["message"] == (
            'object is being deleted: persistentvolumeclaims "data" already exists'
        )


async def test_post_into_a_missing_namespace_is_404(shared: Any) -> None:
    async with shared() as api:
        lost = await api.post("/api/v1/namespaces/x/persistentvolumeclaims", claim())
        assert (lost.status, lost.json["message"]) == (404, 'namespaces "x" not found')


async def test_post_into_a_terminating_namespace_is_403_with_its_cause(shared: Any) -> None:
    async with shared() as api:
        await api.delete(f"/api/v1/namespaces/{api.space}")
        late = await api.post(api.at("persistentvolumeclaims"), claim())
        assert late.status == 403
        assert late.json["details"]["causes"] == [
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {api.space} is being terminated",
                "field": "metadata.namespace",
            }
        ]


async def test_post_csistoragecapacity_with_an_invalid_name_is_422(shared: Any) -> None:
    async with shared() as api:
        path = api.at("csistoragecapacities", group="storage.k8s.io/v1")
        refused = await api.post(
            path, {"metadata": {"name": "#%123-invalid-name"}, "storageClassName": "some"}
        )
        assert (refused.status, refused.json["reason"]) == (422, "Invalid")
        assert refused.json["details"]["kind"] == "CSIStorageCapacity"
        assert refused.json["details"]["causes"][0]["field"] == "metadata.name"


async def test_put_lease_without_rv_is_422_stale_is_409_identical_keeps_the_rv(shared: Any) -> None:
    async with shared() as api:
        path = api.at("leases", group=COORDINATION)
        made = await make(api, path, lease())
        bare = await api.put(f"{path}/leader", lease())
        assert (bare.status, bare.json["message"]) == (
            422,
            'leases.coordination.k8s.io "leader" is invalid: metadata.resourceVersion: Invalid value: 0: '
            "must be specified for an update",
        )
        same = await api.put(f"{path}/leader", made)
        assert same.status == 200
        assert same.json["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        changed = {**made, "spec": {**made["spec"], "holderIdentity": "b"}}
        assert (await api.put(f"{path}/leader", changed)).status == 200
        stale = await api.put(f"{path}/leader", changed)
        assert (stale.status, stale.json["reason"]) == (409, "Conflict")
        assert stale.json["message"] == (
            'Operation cannot be fulfilled on leases.coordination.k8s.io "leader": the object has been '
            "modified; please apply your changes to the latest version and try again"
        )
        assert stale.json["details"] == {"name": "leader", "group": "coordination.k8s.io", "kind": "leases"}


async def test_put_pvc_with_changed_status_on_the_main_url_leaves_status(shared: Any) -> None:
    async with shared() as api:
        path = api.at("persistentvolumeclaims")
        made = await make(api, path, claim())
        assert made["status"] == {"phase": "Pending"}
        put = await api.put(f"{path}/data", {**made, "status": {"phase": "Bound"}})
        assert (put.status, put.json["status"]) == (200, {"phase": "Pending"})


async def test_patch_va_status_with_an_annotation_is_ignored(shared: Any) -> None:
    async with shared() as api:
        path = f"{STORAGE}/volumeattachments"
        await make(api, path, attachment("va-c"))
        patch = {"metadata": {"annotations": {"a": "b"}}, "status": {"attached": True}}
        patched = await api.merge(f"{path}/va-c/status", patch)
        assert patched.status == 200
        assert patched.json["status"] == {"attached": True}
        assert "annotations" not in patched.json["metadata"]


async def test_delete_pvc_with_a_finalizer_then_patch_them_away(shared: Any) -> None:
    async with shared() as api:
        path = api.at("persistentvolumeclaims")
        made = await make(api, path, claim())
        assert made["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        async with api.watch(f"{path}?resourceVersion={made['metadata']['resourceVersion']}") as watch:
            deleted = await api.delete(f"{path}/data")
            assert deleted.status == 200
            assert deleted.json["kind"] == "PersistentVolumeClaim"
            assert deleted.json["metadata"]["deletionTimestamp"]
            assert deleted.json["metadata"]["deletionGracePeriodSeconds"] == 0
            patched = await api.merge(f"{path}/data", {"metadata": {"finalizers": []}})
            assert patched.status == 200
            assert (await api.get(f"{path}/data")).status == 404
            events = await watch.take(2)
        assert [e["type"] for e in events] == ["MODIFIED", "DELETED"]
        first, last = (int(e["object"]["metadata"]["resourceVersion"]) for e in events)
        assert last > first


async def test_delete_configmap_is_a_success_status_with_its_uid(shared: Any) -> None:
    async with shared() as api:
        made = await make(api, api.at("configmaps"), config())
        gone = await api.delete(api.at("configmaps", "m"))
        assert (gone.status, gone.json) == (
            200,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": {"name": "m", "kind": "configmaps", "uid": made["metadata"]["uid"]},
            },
        )


async def test_delete_a_running_pod_gives_grace_30_and_grace_0_removes_it(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api, nodeName="n1")
        marked = await api.delete(api.at("pods", "p"), {"propagationPolicy": "Background"})
        assert (marked.status, marked.json["kind"]) == (200, "Pod")
        assert marked.json["metadata"]["deletionGracePeriodSeconds"] == 30
        assert (await api.get(api.at("pods", "p"))).status == 200
        gone = await api.delete(api.at("pods", "p"), {"gracePeriodSeconds": 0})
        assert gone.status == 200
        assert (await api.get(api.at("pods", "p"))).status == 404


async def test_post_pod_with_spec_foo_warns_and_strict_is_400(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api, "before")
        warned = await api.post(api.at("pods"), pod("a", foo=1))
        assert warned.status == 201
        assert warned.warnings == ['299 - "unknown field \\"spec.foo\\""']
        refused = await api.post(f"{api.at('pods')}?fieldValidation=Strict", pod("b", foo=1))
        assert (refused.status, refused.json["reason"]) == (400, "BadRequest")
        assert refused.json["message"].endswith('strict decoding error: unknown field "spec.foo"')
        ignored = await api.post(f"{api.at('pods')}?fieldValidation=Ignore", pod("c", foo=1))
        assert (ignored.status, ignored.warnings) == (201, [])
        patched = await api.call(
            "PATCH",
            f"{api.at('pods', 'c')}?fieldValidation=Strict",
            {"spec": {"foo": 1}},
            type="application/merge-patch+json",
        )
        assert patched.status == 422
        assert patched.json["details"]["causes"][0]["field"] == "patch"


# The prose


@pytest.mark.parametrize(
    ("body", "code", "reported"),
    [
        (
            {"apiVersion": "v2", **config()},
            400,
            "the API version in the data (v2) does not match the expected API version (v1)",
        ),
        (
            {"metadata": {"name": "m", "namespace": "other"}},
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            {"metadata": {}},
            422,
            'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required',
        ),
        (
            {"metadata": {"name": "m", "resourceVersion": "5"}},
            500,
            "resourceVersion should not be set on objects to be created",
        ),
    ],
)
async def test_what_cannot_be_created_says_why(shared: Any, body: Any, code: int, reported: str) -> None:
    async with shared() as api:
        refused = await api.post(api.at("configmaps"), body)
        assert (refused.status, refused.json["message"]) == (code, reported)


async def test_a_name_that_differs_from_the_url_is_400(shared: Any) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config("b"))
        refused = await api.put(api.at("configmaps", "b"), config("a"))
        assert (refused.status, refused.json["message"]) == (
            400,
            "the name of the object (a) does not match the name on the URL (b)",
        )


async def test_a_body_over_3_mib_is_413(shared: Any) -> None:
    async with shared() as api:
        refused = await api.post(api.at("configmaps"), config(text="x" * (3 << 20)))
        assert (refused.status, refused.json["reason"]) == (413, "RequestEntityTooLarge")
        assert refused.json["message"] == "Request entity too large: limit is 3145728"


async def test_generated_names_are_the_base_and_five_characters(shared: Any) -> None:
    async with shared() as api:
        made = await make(api, api.at("configmaps"), {"metadata": {"generateName": "x" * 70}})
        name = made["metadata"]["name"]
        assert len(name) == 63
        assert set(name[-5:]) <= set("bcdfghjklmnpqrstvwxz2456789")


@pytest.mark.parametrize(
    ("group", "plural", "name", "created"),
    [
        ("coordination.k8s.io/v1", "leases", "l", True),
        ("", "endpoints", "e", True),
        ("", "limitranges", "r", True),
        ("rbac.authorization.k8s.io/v1", "roles", "r", True),
        ("", "configmaps", "c", False),
        ("", "secrets", "s", False),
    ],
)
async def test_put_on_a_missing_object_creates_some_kinds(
    shared: Any, group: str, plural: str, name: str, created: bool
) -> None:
    async with shared() as api:
        put = await api.put(api.at(plural, name, group=group), {"metadata": {"name": name}})
        assert put.status == (201 if created else 404), put.json


async def test_dry_run_does_everything_but_store(shared: Any) -> None:
    async with shared() as api:
        path = api.at("configmaps")
        before = (await api.get(path)).json["metadata"]["resourceVersion"]
        tried = await api.post(f"{path}?dryRun=All", config())
        assert tried.status == 201
        assert tried.json["metadata"]["uid"]
        assert (await api.get(f"{path}/m")).status == 404
        assert (await api.get(path)).json["metadata"]["resourceVersion"] == before
        made = await make(api, path, config())
        dropped = await api.delete(f"{path}/m?dryRun=All")
        assert dropped.status == 200
        assert (await api.get(f"{path}/m")).json == made
        half = await api.post(f"{path}?dryRun=Some", config("n"))
        assert half.status == 422
        assert half.json["details"]["causes"][0]["field"] == "dryRun"


async def test_dry_run_of_what_connects_is_400(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api, nodeName="n1")
        for below in ("exec", "attach", "portforward"):
            refused = await api.post(f"{api.at('pods', 'p', below)}?dryRun=All&command=a", None)
            assert (refused.status, refused.json["message"]) == (400, "dryRun is not supported")


async def test_preconditions_and_contradictory_options(shared: Any) -> None:
    async with shared() as api:
        made = await make(api, api.at("configmaps"), config())
        uid = made["metadata"]["uid"]
        path = api.at("configmaps", "m")
        other = await api.delete(path, {"preconditions": {"uid": "other"}})
        assert other.status == 409
        assert other.json["message"] == (
            'Operation cannot be fulfilled on ConfigMap "m": the UID in the precondition (other) does not '
            f"match the UID in record ({uid}). The object might have been deleted and then recreated"
        )
        assert (await api.delete(path, {"preconditions": {"resourceVersion": "1"}})).status == 409
        both = await api.delete(path, {"orphanDependents": True, "propagationPolicy": "Orphan"})
        assert (both.status, both.json["reason"]) == (422, "Invalid")
        query = await api.delete(f"{path}?propagationPolicy=Foreground")
        assert query.json["metadata"]["finalizers"] == ["foregroundDeletion"]


async def test_put_with_a_uid_creates_nothing(shared: Any) -> None:
    async with shared() as api:
        body = {"metadata": {"name": "e", "uid": "abc"}}
        refused = await api.put(api.at("endpoints", "e"), body)
        assert (refused.status, refused.json["reason"]) == (409, "Conflict")
        assert (
            "Precondition failed: UID in precondition: abc, UID in object meta: " in refused.json["message"]
        )


async def test_what_a_writer_says_about_its_own_end_is_not_heard(shared: Any) -> None:
    async with shared() as api:
        body = config(a="1")
        body["metadata"] |= {"deletionTimestamp": "2020-01-02T03:04:05Z", "uid": "mine"}
        made = await make(api, api.at("configmaps"), body)
        assert "deletionTimestamp" not in made["metadata"]
        assert made["metadata"]["uid"] != "mine"
        (owner,) = made["metadata"]["managedFields"]
        assert owner["fieldsV1"] == {"f:data": {".": {}, "f:a": {}}}


async def test_finalizers_cannot_be_added_to_a_deleting_object(shared: Any) -> None:
    async with shared() as api:
        body = {"metadata": {"name": "m", "finalizers": ["example.com/a"]}}
        await make(api, api.at("configmaps"), body)
        await api.delete(api.at("configmaps", "m"))
        more = {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}
        refused = await api.merge(api.at("configmaps", "m"), more)
        assert refused.status == 422
        assert "no new finalizers can be added if the object is being deleted" in refused.json["message"]
        await api.merge(api.at("configmaps", "m"), {"metadata": {"finalizers": None}})


async def test_deletecollection_honours_selectors_and_answers_the_list(shared: Any) -> None:
    async with shared() as api:
        path = api.at("configmaps")
        for name in ("a", "b", "c"):
            body = {"metadata": {"name": name, "labels": {"keep": str(name == "b").lower()}}}
            await make(api, path, body)
        gone = await api.delete(f"{path}?labelSelector=keep%3Dfalse")
        assert (gone.status, gone.json["kind"]) == (200, "ConfigMapList")
        assert [i["metadata"]["name"] for i in gone.json["items"]] == ["a", "c"]
        left = (await api.get(path)).json["items"]
        assert [i["metadata"]["name"] for i in left] == ["b"]
        rest = await api.delete(f"{path}?fieldSelector=metadata.name%3Db")
        assert len(rest.json["items"]) == 1


async def test_first_deletion_mark_counts_a_generation(shared: Any) -> None:
    async with shared() as api:
        made = await make_pod(api, nodeName="n1")
        assert made["metadata"]["generation"] == 1
        assert (await api.delete(api.at("pods", "p"))).json["metadata"]["generation"] == 2
        stored = await make(api, "/api/v1/persistentvolumes", volume("pv-generation"))
        assert "generation" not in stored["metadata"]


async def test_who_manages_which_fields_is_written_down(shared: Any) -> None:
    async with shared() as api:
        made = await api.post(
            f"{api.at('configmaps')}?fieldManager=me", config(a="1"), user_agent="kubectl/v1 (linux)"
        )
        (entry,) = made.json["metadata"]["managedFields"]
        assert entry["manager"] == "me"
        assert (entry["operation"], entry["apiVersion"]) == ("Update", "v1")
        assert entry["fieldsType"] == "FieldsV1"
        assert entry["fieldsV1"] == {"f:data": {".": {}, "f:a": {}}}
        other = await api.post(api.at("configmaps"), config("n", a="1"), user_agent="kubectl/v1 (linux)")
        assert other.json["metadata"]["managedFields"][0]["manager"] == "kubectl"
        reset = await api.merge(api.at("configmaps", "n"), {"metadata": {"managedFields": [{}]}})
        assert "managedFields" not in reset.json["metadata"]


async def test_methods_that_a_kind_does_not_have_are_405(shared: Any) -> None:
    async with shared() as api:
        refused = await api.delete("/api/v1/namespaces")
        assert (refused.status, refused.json["reason"]) == (405, "MethodNotAllowed")
        assert refused.json["details"] == {"kind": "namespaces"}
        unknown = await api.get("/apis/apps/v1/nothings")
        assert (unknown.status, unknown.json["message"]) == (
            404,
            "the server could not find the requested resource",
        )
        assert unknown.json["details"] == {}


async def test_malformed_known_query_keys_are_400_and_unknown_ones_ignored(shared: Any) -> None:
    async with shared() as api:
        path = api.at("configmaps")
        assert (await api.get(f"{path}?timeout=32s&nonsense=1")).status == 200
        for query in ("limit=a", "timeoutSeconds=a&watch=1", "resourceVersion=x"):
            assert (await api.get(f"{path}?{query}")).status == 400, query
