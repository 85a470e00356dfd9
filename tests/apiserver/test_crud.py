"""Create, read, update, delete over HTTPS (section C of the contract)."""

from __future__ import annotations

from typing import Any

import pytest

DEFAULT = "/api/v1/namespaces/default"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def claim(name: str = "c") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "busybox"}], **spec}}


def attachment() -> dict[str, Any]:
    source = {"persistentVolumeName": "pv"}
    return {"metadata": {"name": "va"}, "spec": {"attacher": "d.example", "nodeName": "n", "source": source}}


async def test_a_new_object_gets_its_identity_from_the_server(served: Any) -> None:
    async with served() as api:
        body = config_map(x="1")
        body["metadata"] |= {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
        made = await api.post(f"{DEFAULT}/configmaps", body)
        assert made.status == 201
        assert made.headers.get("content-type") == "application/json"
        assert made.body.endswith(b"}\n")
        meta = made.json["metadata"]
        assert (made.json["kind"], made.json["apiVersion"]) == ("ConfigMap", "v1")
        assert meta["uid"] != "mine"
        assert not meta["creationTimestamp"].startswith("2001")
        assert int(meta["resourceVersion"]) > 0
        assert "generation" not in meta
        assert (await api.get(f"{DEFAULT}/configmaps/a")).json == made.json


async def test_a_taken_name_is_refused(served: Any) -> None:
    async with served() as api:
        assert (await api.post(f"{DEFAULT}/persistentvolumeclaims", claim())).status == 201
        again = await api.post(f"{DEFAULT}/persistentvolumeclaims", claim())
        assert again.status == 409
        assert again.json == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": 'persistentvolumeclaims "c" already exists',
            "reason": "AlreadyExists",
            "details": {"name": "c", "kind": "persistentvolumeclaims"},
            "code": 409,
        }
        await api.delete(f"{DEFAULT}/persistentvolumeclaims/c")
        deleting = await api.post(f"{DEFAULT}/persistentvolumeclaims", claim())
        assert deleting.json["message"].startswith("object is being deleted: ")


async def test_nothing_is_created_in_a_missing_or_terminating_namespace(served: Any) -> None:
    async with served() as api:
        missing = await api.post("/api/v1/namespaces/x/configmaps", config_map())
        assert missing.status == 404
        assert missing.json["message"] == 'namespaces "x" not found'
        await api.post("/api/v1/namespaces", {"metadata": {"name": "x"}})
        gone = await api.delete("/api/v1/namespaces/x")
        assert gone.json["status"]["phase"] == "Terminating"
        refused = await api.post("/api/v1/namespaces/x/configmaps", config_map())
        assert refused.status == 403
        cause = refused.json["details"]["causes"][0]
        assert (cause["reason"], cause["field"]) == ("NamespaceTerminating", "metadata.namespace")


async def test_names_are_generated(served: Any) -> None:
    async with served() as api:
        made = await api.post(f"{DEFAULT}/configmaps", {"metadata": {"generateName": "web-"}})
        name = made.json["metadata"]["name"]
        assert made.status == 201
        assert name.startswith("web-")
        assert len(name) == len("web-") + 5


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (
            {"metadata": {}},
            422,
            'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required',
        ),
        (
            {"metadata": {"name": "a", "resourceVersion": "3"}},
            500,
            "resourceVersion should not be set on objects to be created",
        ),
        (
            {"metadata": {"name": "a", "namespace": "other"}},
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            {"apiVersion": "apps/v1", "metadata": {"name": "a"}},
            400,
            "the API version in the data (apps/v1) does not match the expected API version (v1)",
        ),
    ],
)
async def test_invalid_objects_are_refused_with_the_reason(
    served: Any, body: Any, code: int, message: str
) -> None:
    async with served() as api:
        refused = await api.post(f"{DEFAULT}/configmaps", body)
        assert (refused.status, refused.json["message"]) == (code, message)
        assert refused.headers.get("content-type") == "application/json"


async def test_a_lease_is_updated_only_at_the_revision_its_writer_saw(served: Any) -> None:
    async with served() as api:
        made = (await api.post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})).json
        blind = await api.put(f"{LEASES}/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}})
        assert blind.status == 422
        assert (
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            in blind.json["message"]
        )
        same = await api.put(f"{LEASES}/l", made)
        assert same.status == 200
        assert same.json["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        newer = await api.put(f"{LEASES}/l", {**made, "spec": {"holderIdentity": "b"}})
        assert newer.status == 200
        stale = await api.put(f"{LEASES}/l", {**made, "spec": {"holderIdentity": "c"}})
        assert stale.status == 409
        assert stale.json["message"] == (
            'Operation cannot be fulfilled on leases.coordination.k8s.io "l": the object has been modified; '
            "please apply your changes to the latest version and try again"
        )
        assert stale.json["details"] == {"name": "l", "group": "coordination.k8s.io", "kind": "leases"}


async def test_a_put_creates_a_lease_but_not_a_config_map(served: Any) -> None:
    async with served() as api:
        assert (await api.put(f"{LEASES}/l", {"metadata": {"name": "l"}})).status == 201
        assert (await api.put(f"{DEFAULT}/configmaps/a", config_map())).status == 404


async def test_a_put_must_name_the_object_of_its_path_and_keep_its_uid(served: Any) -> None:
    async with served() as api:
        await api.post(f"{DEFAULT}/configmaps", config_map())
        other = await api.put(f"{DEFAULT}/configmaps/a", config_map("b"))
        assert other.json["message"] == ("the name of the object (b) does not match the name on the URL (a)")
        twin = await api.put(f"{DEFAULT}/configmaps/a", {"metadata": {"name": "a", "uid": "other"}})
        assert twin.status == 409
        assert "Precondition failed: UID in precondition: other, UID in object meta: " in twin.json["message"]


async def test_a_write_that_changes_nothing_is_no_event(served: Any) -> None:
    async with served() as api:
        made = (await api.post(f"{DEFAULT}/configmaps", config_map(x="1", y="2"))).json
        version = made["metadata"]["resourceVersion"]
        async with api.watch(f"{DEFAULT}/configmaps?resourceVersion={version}") as watch:
            reordered = {**made, "data": {"y": "2", "x": "1"}}
            for _ in range(2):
                same = await api.put(f"{DEFAULT}/configmaps/a", reordered)
                assert same.json["metadata"]["resourceVersion"] == version
            await api.merge(f"{DEFAULT}/configmaps/a", {"data": {"x": "1"}})
            await api.merge(f"{DEFAULT}/configmaps/a", {"data": {"x": "3"}})
            event = await watch.next()
            assert event["object"]["data"] == {"x": "3", "y": "2"}


async def test_the_main_endpoint_and_status_write_only_their_parts(served: Any) -> None:
    async with served() as api:
        made = (
            await api.post(f"{DEFAULT}/persistentvolumeclaims", {**claim(), "status": {"phase": "Bound"}})
        ).json
        assert made["status"] == {"phase": "Pending"}
        path = f"{DEFAULT}/persistentvolumeclaims/c"
        put = await api.put(path, {**made, "status": {"phase": "Lost"}})
        assert (put.status, put.json["status"]) == (200, {"phase": "Pending"})
        patched = await api.merge(
            f"{path}/status", {"status": {"phase": "Bound"}, "spec": {"volumeName": "x"}}
        )
        assert patched.json["status"]["phase"] == "Bound"
        assert "volumeName" not in patched.json["spec"]
        assert (await api.get(f"{path}/status")).json == patched.json


async def test_the_status_of_an_attachment_takes_no_metadata(served: Any) -> None:
    async with served() as api:
        assert (await api.post(ATTACHMENTS, attachment())).status == 201
        patch = {"metadata": {"annotations": {"a": "b"}}, "status": {"attached": True}}
        patched = await api.merge(f"{ATTACHMENTS}/va/status", patch)
        assert patched.status == 200
        assert patched.json["status"] == {"attached": True}
        assert "annotations" not in patched.json["metadata"]


async def test_pods_count_generations_and_claims_do_not(served: Any) -> None:
    async with served() as api:
        await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
        made = (await api.post(f"{DEFAULT}/pods", pod())).json
        assert made["metadata"]["generation"] == 1
        labelled = await api.merge(f"{DEFAULT}/pods/p", {"metadata": {"labels": {"a": "b"}}})
        assert labelled.json["metadata"]["generation"] == 1
        changed = await api.merge(f"{DEFAULT}/pods/p", {"spec": {"activeDeadlineSeconds": 60}})
        assert changed.json["metadata"]["generation"] == 2
        bound = (await api.post(f"{DEFAULT}/persistentvolumeclaims", claim())).json
        assert "generation" not in bound["metadata"]


async def test_a_dry_run_does_everything_except_storing(served: Any) -> None:
    async with served() as api:
        before = api.store.revision
        made = await api.post(f"{DEFAULT}/configmaps?dryRun=All", config_map())
        assert made.status == 201
        assert "resourceVersion" not in made.json["metadata"]
        assert (await api.get(f"{DEFAULT}/configmaps/a")).status == 404
        assert api.store.revision == before
        wrong = await api.post(f"{DEFAULT}/configmaps?dryRun=Some", config_map())
        assert (wrong.status, wrong.json["details"]["causes"][0]["field"]) == (422, "dryRun")
        await api.post(f"{DEFAULT}/configmaps", config_map())
        assert (await api.post(f"{DEFAULT}/configmaps?dryRun=All", config_map())).status == 409
        gone = await api.delete(f"{DEFAULT}/configmaps/a?dryRun=All")
        assert gone.status == 200
        assert (await api.get(f"{DEFAULT}/configmaps/a")).status == 200


async def test_unknown_fields_cause_a_warning_or_an_error(served: Any) -> None:
    async with served() as api:
        body = {**config_map(), "colour": "red"}
        warned = await api.post(f"{DEFAULT}/configmaps", body)
        assert warned.status == 201
        assert warned.warnings == ['299 - "unknown field \\"colour\\""']
        assert "colour" not in warned.json
        strict = await api.post(f"{DEFAULT}/configmaps?fieldValidation=Strict", body)
        assert strict.status == 400
        assert strict.json["message"].endswith('strict decoding error: unknown field "colour"')
        silent = await api.post(
            f"{DEFAULT}/configmaps?fieldValidation=Ignore", {**body, "metadata": {"name": "b"}}
        )
        assert (silent.status, silent.warnings) == (201, [])
        patched = await api.call(
            "PATCH",
            f"{DEFAULT}/configmaps/a?fieldValidation=Strict",
            {"colour": "red"},
            type="application/merge-patch+json",
        )
        assert (patched.status, patched.json["details"]["causes"][0]["field"]) == (422, "patch")


async def test_yaml_is_read_and_written(served: Any) -> None:
    async with served() as api:
        text = b"metadata:\n  name: a\ndata:\n  x: '1'\n"
        made = await api.post(
            f"{DEFAULT}/configmaps", text, type="application/yaml", accept="application/yaml"
        )
        assert made.status == 201
        assert made.headers.get("content-type") == "application/yaml"
        assert b"kind: ConfigMap\n" in made.body


async def test_paths_and_methods_that_are_not_served(served: Any) -> None:
    async with served() as api:
        unknown = await api.get("/api/v1/namespaces/default/unicorns")
        assert (unknown.status, unknown.json["details"]) == (404, {})
        assert unknown.json["message"] == "the server could not find the requested resource"
        assert (await api.get("/apis/storage.k8s.io/v2/storageclasses")).status == 404
        wrong = await api.delete("/api/v1/namespaces")
        assert wrong.status == 405
        assert wrong.json["message"] == 'deletecollection is not supported on resources of kind "namespaces"'
        assert (await api.get("/favicon.ico")).status == 404


async def test_a_body_of_more_than_three_megabytes_is_too_large(served: Any) -> None:
    async with served() as api:
        huge = await api.post(f"{DEFAULT}/configmaps", config_map(x="y" * (3 * 1024 * 1024)))
        assert huge.status == 413
        assert huge.json["message"] == "Request entity too large: limit is 3145728"
        assert huge.json["reason"] == "RequestEntityTooLarge"


async def test_unsupported_accept_headers_are_refused(served: Any) -> None:
    async with served() as api:
        for accept in ("application/xml", "application/cbor"):
            refused = await api.get(f"{DEFAULT}/configmaps", accept=accept)
            assert (refused.status, refused.json["reason"]) == (406, "NotAcceptable")
            assert refused.headers.get("content-type") == "application/json"
        protobuf = "application/vnd.kubernetes.protobuf, */*"
        assert (await api.get(f"{DEFAULT}/configmaps", accept=protobuf)).json["kind"] == "ConfigMapList"


async def test_metadata_alone_can_be_asked_for(served: Any) -> None:
    async with served() as api:
        made = (await api.post(f"{DEFAULT}/configmaps", config_map(x="1"))).json
        accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        one = (await api.get(f"{DEFAULT}/configmaps/a", accept=accept)).json
        assert one == {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": made["metadata"],
        }
        assert (await api.get(f"{DEFAULT}/configmaps", accept=accept)).status == 406
        many = (
            await api.get(f"{DEFAULT}/configmaps", accept=accept.replace("Metadata", "MetadataList"))
        ).json
        assert many["kind"] == "PartialObjectMetadataList"
        assert many["items"] == [one]
