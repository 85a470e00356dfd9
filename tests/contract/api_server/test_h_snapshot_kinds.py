"""Section H, the snapshot kinds: rules, immutability, unknown fields, versions, tables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api_server.definitions import (
    CONTENTS,
    CRDS,
    SNAPSHOTS,
    conditions,
    content,
    error_message,
    install_snapshots,
    manifest,
    snapshot,
)

GROUPS = "/apis/groupsnapshot.storage.k8s.io"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def test_a_snapshot_with_both_sources_is_refused(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        both = snapshot(persistentVolumeClaimName="a", volumeSnapshotContentName="b")
        answer = await api.post(SNAPSHOTS, both)
        assert error_message(answer) == (
            "spec.source: Invalid value: "
            "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"
        )
        assert answer.json["details"]["kind"] == "VolumeSnapshot"
        assert "exactly one of" in error_message(await api.post(SNAPSHOTS, snapshot()))


async def test_the_source_of_a_snapshot_is_immutable(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        made = await api.post(SNAPSHOTS, snapshot(persistentVolumeClaimName="a"))
        assert made.status == 201
        changed = await api.merge(f"{SNAPSHOTS}/s", {"spec": {"source": {"persistentVolumeClaimName": "b"}}})
        assert error_message(changed) == (
            'spec.source.persistentVolumeClaimName: Invalid value: "b": '
            "persistentVolumeClaimName is immutable"
        )
        other = {"persistentVolumeClaimName": None, "volumeSnapshotContentName": "c"}
        swapped = await api.merge(f"{SNAPSHOTS}/s", {"spec": {"source": other}})
        assert (
            error_message(swapped)
            == "spec.source: Invalid value: persistentVolumeClaimName is required once set"
        )
        labelled = await api.merge(f"{SNAPSHOTS}/s", {"metadata": {"labels": {"a": "b"}}})
        assert labelled.status == 200


async def test_an_unknown_field_is_pruned_and_told(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        given = snapshot(persistentVolumeClaimName="a")
        given["spec"]["unknown"] = 1
        made = await api.post(SNAPSHOTS, given)
        assert (made.status, made.json["spec"]) == (201, {"source": {"persistentVolumeClaimName": "a"}})
        assert made.warnings == ['299 - "unknown field \\"spec.unknown\\""']
        strict = await api.post(f"{SNAPSHOTS}?fieldValidation=Strict", {**given, "metadata": {"name": "t"}})
        assert strict.status == 400
        assert strict.json["message"].endswith('strict decoding error: unknown field "spec.unknown"')
        silent = await api.post(f"{SNAPSHOTS}?fieldValidation=Ignore", {**given, "metadata": {"name": "u"}})
        assert (silent.status, silent.warnings) == (201, [])


async def test_main_and_status_endpoints_keep_to_their_part(served: Any) -> None:
    """PUT main with status: ignored; PUT /status with a spec change: ignored, generation unchanged."""
    async with served() as api:
        await install_snapshots(api)
        made = (await api.post(SNAPSHOTS, snapshot(persistentVolumeClaimName="a"))).json
        put = await api.put(f"{SNAPSHOTS}/s", {**made, "status": {"readyToUse": True}})
        assert (put.status, "status" in put.json) == (200, False)
        assert put.json["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        other = {
            **made,
            "spec": {"source": {"volumeSnapshotContentName": "x"}},
            "status": {"readyToUse": False},
        }
        other["metadata"] = {**made["metadata"], "labels": {"a": "b"}}
        status = await api.put(f"{SNAPSHOTS}/s/status", other)
        assert status.status == 200, status.json
        assert status.json["spec"] == made["spec"]
        assert status.json["status"] == {"readyToUse": False}
        assert (status.json["metadata"]["generation"], "labels" in status.json["metadata"]) == (1, False)


async def test_a_status_that_is_not_there_yet_is_replaced(served: Any) -> None:
    """Section D: csi-snapshotter replaces /status of an object that has none."""
    async with served() as api:
        await install_snapshots(api)
        await api.post(CONTENTS, content())
        patch = [{"op": "replace", "path": "/status", "value": {"readyToUse": False}}]
        answer = await api.call("PATCH", f"{CONTENTS}/c/status", patch, type="application/json-patch+json")
        assert (answer.status, answer.json["status"]) == (200, {"readyToUse": False})


async def test_the_last_finalizer_takes_the_object_with_it(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        given = content()
        given["metadata"]["finalizers"] = [
            "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
        ]
        await api.post(CONTENTS, given)
        assert (await api.delete(f"{CONTENTS}/c")).json["metadata"]["deletionTimestamp"]
        patch = [{"op": "replace", "path": "/metadata/finalizers", "value": None}]
        answer = await api.call("PATCH", f"{CONTENTS}/c", patch, type="application/json-patch+json")
        assert answer.status == 200, answer.json
        assert (await api.get(f"{CONTENTS}/c")).status == 404


async def test_a_version_is_read_as_another(served: Any) -> None:
    """GET at v1beta2 an object stored through v1: only apiVersion is rewritten."""
    async with served() as api:
        await install_snapshots(api)
        path = "namespaces/default/volumegroupsnapshots"
        given = {
            "apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshot",
            "metadata": {"name": "g"},
            "spec": {"source": {"selector": {"matchLabels": {"app": "db"}}}},
        }
        made = await api.post(f"{GROUPS}/v1/{path}", given)
        assert made.status == 201, made.json
        read = await api.get(f"{GROUPS}/v1beta2/{path}/g")
        assert read.json == {**made.json, "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2"}
        listed = await api.get(f"{GROUPS}/v1beta2/{path}")
        assert listed.json["items"] == [read.json]
        assert listed.json["apiVersion"] == "groupsnapshot.storage.k8s.io/v1beta2"
        async with api.watch(f"{GROUPS}/v1beta2/{path}") as watch:
            assert (await watch.next())["object"] == read.json
        old = await api.get(f"{GROUPS}/v1beta1/{path}/g")
        assert old.warnings == [
            '299 - "groupsnapshot.storage.k8s.io/v1beta1 VolumeGroupSnapshot is deprecated; '
            'use groupsnapshot.storage.k8s.io/v1 VolumeGroupSnapshot"'
        ]


async def test_versions_that_are_not_served_are_not_found(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        old = SNAPSHOTS.replace("/v1/", "/v1beta1/")
        assert (await api.get(old)).status == 404
        assert (await api.get("/apis/snapshot.storage.k8s.io/v1beta1")).status == 404


async def test_the_groups_appear_in_discovery(served: Any) -> None:
    """Section A: 404 before the definitions, the kinds and their group afterwards."""
    async with served() as api:
        assert (await api.get("/apis/snapshot.storage.k8s.io/v1")).status == 404
        await install_snapshots(api)
        listed = (await api.get("/apis/snapshot.storage.k8s.io/v1")).json["resources"]
        assert [r["name"] for r in listed] == [
            "volumesnapshotclasses",
            "volumesnapshotcontents",
            "volumesnapshotcontents/status",
            "volumesnapshots",
            "volumesnapshots/status",
        ]
        by_name = {r["name"]: r for r in listed}
        assert by_name["volumesnapshots"]["shortNames"] == ["vs"]
        assert by_name["volumesnapshotcontents"]["shortNames"] == ["vsc", "vscs"]
        assert by_name["volumesnapshotclasses"]["namespaced"] is False
        groups = {g["name"]: g for g in (await api.get("/apis")).json["groups"]}
        assert groups["snapshot.storage.k8s.io"]["preferredVersion"]["version"] == "v1"
        versions = [v["version"] for v in groups["groupsnapshot.storage.k8s.io"]["versions"]]
        assert versions == ["v1", "v1beta2", "v1beta1"]


async def test_the_definitions_say_that_they_are_served(served: Any) -> None:
    async with served() as api:
        for document in manifest():
            made = (await api.post(CRDS, document)).json
            assert conditions(made) == {
                "NamesAccepted": ("True", "NoConflicts"),
                "Established": ("True", "InitialNamesAccepted"),
                "KubernetesAPIApprovalPolicyConformant": ("True", "ApprovedAnnotation"),
            }
            stored = "v1" if made["spec"]["group"] == "snapshot.storage.k8s.io" else "v1beta2"
            assert made["status"]["storedVersions"] == [stored]
            assert made["status"]["acceptedNames"]["plural"] == document["spec"]["names"]["plural"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"source": {}}, "exactly one of volumeHandle and snapshotHandle must be set"),
        ({"deletionPolicy": "Keep"}, 'Unsupported value: "Keep": supported values: "Delete", "Retain"'),
        ({"driver": None}, "spec.driver: Required value"),
        (
            {"volumeSnapshotRef": {"name": "s"}},
            "spec.volumeSnapshotRef: Invalid value: "
            "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set",
        ),
    ],
)
async def test_contents_are_checked(served: Any, spec: Any, words: str) -> None:
    async with served() as api:
        await install_snapshots(api)
        assert words in error_message(await api.post(CONTENTS, content(**spec)))


async def test_sizes_are_numbers_or_amounts(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        await api.post(SNAPSHOTS, snapshot(persistentVolumeClaimName="a"))
        await api.post(CONTENTS, content())
        for size in (5, "1Gi", "0.5"):
            answer = await api.merge(f"{SNAPSHOTS}/s/status", {"status": {"restoreSize": size}})
            assert (answer.status, answer.json["status"]["restoreSize"]) == (200, size)
        wrong = await api.merge(f"{SNAPSHOTS}/s/status", {"status": {"restoreSize": "much"}})
        assert error_message(wrong).startswith(
            'status.restoreSize: Invalid value: "much": restoreSize in body should match'
        )
        negative = await api.merge(f"{CONTENTS}/c/status", {"status": {"restoreSize": -1}})
        assert error_message(negative) == (
            "status.restoreSize: Invalid value: -1: restoreSize in body should be greater than or equal to 0"
        )


async def test_tables_have_the_columns_of_the_definition(served: Any) -> None:
    async with served() as api:
        await install_snapshots(api)
        await api.post(SNAPSHOTS, snapshot(persistentVolumeClaimName="a"))
        await api.merge(f"{SNAPSHOTS}/s/status", {"status": {"readyToUse": True, "restoreSize": "1Gi"}})
        table = (await api.get(SNAPSHOTS, accept=TABLE)).json
        names = [column["name"] for column in table["columnDefinitions"]]
        assert names == [
            "Name", "ReadyToUse", "SourcePVC", "SourceSnapshotContent", "RestoreSize", "SnapshotClass",
            "SnapshotContent", "CreationTime", "Age",
        ]  # fmt: skip
        [row] = table["rows"]
        assert row["cells"][:-1] == ["s", True, "a", None, "1Gi", None, None, None]
        await api.post(CONTENTS, content())
        await api.merge(f"{CONTENTS}/c/status", {"status": {"restoreSize": 1073741824}})
        table = (await api.get(f"{CONTENTS}/c", accept=TABLE)).json
        assert [column["name"] for column in table["columnDefinitions"]] == [
            "Name", "ReadyToUse", "RestoreSize", "DeletionPolicy", "Driver", "VolumeSnapshotClass",
            "VolumeSnapshot", "VolumeSnapshotNamespace", "Age",
        ]  # fmt: skip
        cells = ["c", None, 1073741824, "Delete", "d.example.com", None, "s", "default"]
        assert table["rows"][0]["cells"][:-1] == cells


async def test_what_custom_kinds_do_not_speak(served: Any) -> None:
    """Sections B and D: no protobuf, no strategic merge patch."""
    async with served() as api:
        await install_snapshots(api)
        protobuf = "application/vnd.kubernetes.protobuf"
        posted = await api.post(SNAPSHOTS, b"k8s\x00\n\x00", type=protobuf)
        assert (posted.status, posted.json["reason"]) == (415, "UnsupportedMediaType")
        assert (await api.get(SNAPSHOTS, accept=protobuf)).status == 406
        either = await api.get(SNAPSHOTS, accept=f"{protobuf}, */*")
        assert (either.status, either.headers.get("content-type")) == (200, "application/json")
        await api.post(SNAPSHOTS, snapshot(persistentVolumeClaimName="a"))
        strategic = "application/strategic-merge-patch+json"
        assert (await api.call("PATCH", f"{SNAPSHOTS}/s", {}, type=strategic)).status == 415


async def test_deleting_a_definition_takes_its_objects_along(served: Any) -> None:
    """DELETE CRD: instances gone, the group no longer listed, informers get 404."""
    async with served() as api:
        await install_snapshots(api)
        await api.post(SNAPSHOTS, snapshot(persistentVolumeClaimName="a"))
        async with api.watch(SNAPSHOTS) as watch, api.watch(CRDS) as definitions:
            await watch.next()
            await definitions.take(6)
            names = [
                d["metadata"]["name"] for d in manifest() if d["spec"]["group"] == "snapshot.storage.k8s.io"
            ]
            for name in names:
                deleted = await api.delete(f"{CRDS}/{name}")
                assert (deleted.status, conditions(deleted.json)["Terminating"][0]) == (200, "True")
            assert (await watch.next())["type"] == "DELETED"
            assert await watch.has_ended()
            while names:
                event = await definitions.next()
                names = names[1:] if event["type"] == "DELETED" else names
        assert (await api.get(SNAPSHOTS)).status == 404
        groups = [g["name"] for g in (await api.get("/apis")).json["groups"]]
        assert "snapshot.storage.k8s.io" not in groups
        assert "groupsnapshot.storage.k8s.io" in groups
        assert not list(api.store.scan("/registry/volumesnapshots.snapshot.storage.k8s.io/"))
