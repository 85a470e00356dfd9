"""Contract api-server B, content types: the cases to test."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.contract.api_server.definitions import define, widget
from tests.contract.api_server.samples import (
    BODIES,
    COORDINATION,
    JSON,
    PROTOBUF,
    STORAGE,
    TABLE,
    YAML,
    claim,
    config,
    make,
)

MEDIA = "application/json, application/yaml, application/vnd.kubernetes.protobuf"


async def test_post_lease_in_protobuf_is_201_json_with_six_digits(shared: Any) -> None:
    async with shared() as api:
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        made = await api.post(path, BODIES["a lease"], type=PROTOBUF, accept=f"{PROTOBUF}, */*")
        assert (made.status, made.headers.get("content-type")) == (201, JSON)
        assert (made.json["kind"], made.json["apiVersion"]) == ("Lease", COORDINATION)
        assert made.json["spec"]["renewTime"] == "2026-01-02T03:04:05.000000Z"


async def test_delete_pv_with_protobuf_delete_options_is_200(shared: Any) -> None:
    async with shared() as api:
        await api.post("/api/v1/persistentvolumes", BODIES["a volume"], type=PROTOBUF)
        path = "/api/v1/persistentvolumes/pv"
        gone = await api.call("DELETE", path, BODIES["empty delete options"], type=PROTOBUF)
        assert (gone.status, gone.json["kind"]) == (200, "PersistentVolume")


async def test_protobuf_pvc_with_an_empty_class_keeps_it_and_an_absent_one_is_filled(shared: Any) -> None:
    async with shared() as api:
        annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
        standard = {"metadata": {"name": "std", "annotations": annotations}, "provisioner": "x"}
        await make(api, f"{STORAGE}/storageclasses", standard)
        path = "/api/v1/namespaces/default/persistentvolumeclaims"
        empty = await api.post(path, BODIES["a claim with the empty class"], type=PROTOBUF)
        assert empty.json["spec"]["storageClassName"] == ""
        await api.delete(f"{path}/c")
        await api.merge(f"{path}/c", {"metadata": {"finalizers": None}})
        filled = await api.post(path, BODIES["a claim without a class"], type=PROTOBUF)
        assert filled.json["spec"]["storageClassName"] == "std"
        await api.delete(f"{STORAGE}/storageclasses/std")


async def test_post_custom_resource_in_protobuf_is_415(served: Any) -> None:
    async with served() as api:
        await define(api)
        path = "/apis/example.com/v1/namespaces/default/widgets"
        refused = await api.post(path, BODIES["a lease"], type=PROTOBUF)
        assert (refused.status, refused.json["reason"]) == (415, "UnsupportedMediaType")
        assert refused.json["message"].startswith(
            "the body of the request was in an unknown format - accepted media types include: "
        )
        await api.post(path, widget())
        assert (await api.get(path, accept=PROTOBUF)).status == 406
        assert (await api.get(path, accept=f"{PROTOBUF},{JSON}")).status == 200


@pytest.mark.parametrize("accept", ["application/xml", "application/cbor"])
async def test_accept_xml_or_cbor_only_is_406(shared: Any, accept: str) -> None:
    async with shared() as api:
        refused = await api.get(api.at("configmaps"), accept=accept)
        assert (refused.status, refused.json["reason"]) == (406, "NotAcceptable")
        assert refused.json["message"] == f"only the following media types are accepted: {MEDIA}"


async def test_the_content_type_of_a_get_error_is_exactly_application_json(shared: Any) -> None:
    async with shared() as api:
        missing = await api.get(api.at("configmaps", "none"))
        assert (missing.status, missing.headers.get("content-type")) == (404, JSON)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (f"{YAML};q=0.5,{JSON}", JSON),
        (f"{JSON};q=0.5,{YAML}", YAML),
        (f"{JSON};pretty=1", JSON),
        (f"{JSON};stream=watch", JSON),
        (f"application/xml,{YAML}", YAML),
        (PROTOBUF, JSON),
    ],
)
async def test_accept_is_ordered_by_quality_then_position(shared: Any, accept: str, media: str) -> None:
    async with shared() as api:
        got = await api.get(api.at("configmaps"), accept=accept)
        assert (got.status, got.headers.get("content-type")) == (200, media)


async def test_a_body_of_unknown_type_is_415_and_of_no_type_is_json(shared: Any) -> None:
    async with shared() as api:
        path = api.at("configmaps")
        refused = await api.post(path, b"<a/>", type="application/xml")
        assert (refused.status, refused.json["reason"]) == (415, "UnsupportedMediaType")
        reported = f"the body of the request was in an unknown format - accepted media types include: {MEDIA}"
        assert refused.json["message"] == reported
        assert (await api.post(path, json.dumps(config("a")).encode(), type="")).status == 201
        assert (await api.post(path, config("b"), type=f"{JSON}; charset=utf-8")).status == 201


async def test_json_is_compact_with_a_newline(shared: Any) -> None:
    async with shared() as api:
        body = (await api.get(api.at("configmaps"))).body
        assert body.endswith(b"}\n")
        assert b'": ' not in body


async def test_yaml_bodies_are_read_and_their_duplicate_keys_are_strict_errors(shared: Any) -> None:
    async with shared() as api:
        path = f"{api.at('configmaps')}?fieldValidation=Strict"
        double = b"metadata: {name: m}\ndata: {a: '1'}\ndata: {a: '2'}\n"
        refused = await api.post(path, double, type=YAML)
        assert refused.status == 400
        assert 'key "data" already set in map' in refused.json["message"]
        made = await api.post(path, b"metadata: {name: m}\ndata: {a: '1'}\n", type=YAML, accept=YAML)
        assert (made.status, made.headers.get("content-type")) == (201, YAML)
        assert yaml.safe_load(made.body)["data"] == {"a": "1"}


async def test_a_table_with_include_object_none_has_null_objects(shared: Any) -> None:
    async with shared() as api:
        path = api.at("persistentvolumeclaims")
        await make(api, path, claim())
        table = (await api.get(f"{path}?includeObject=None", accept=TABLE)).json
        assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
        assert [row["object"] for row in table["rows"]] == [None]
        partial = (await api.get(path, accept=TABLE)).json["rows"][0]["object"]
        assert (partial["kind"], partial["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
        whole = (await api.get(f"{path}?includeObject=Object", accept=TABLE)).json["rows"][0]["object"]
        assert (whole["kind"], whole["spec"]["accessModes"]) == ("PersistentVolumeClaim", ["ReadWriteOnce"])
        assert (await api.get(f"{path}?includeObject=Some", accept=TABLE)).status == 400


async def test_in_a_watch_as_table_the_second_event_has_no_columns(shared: Any) -> None:
    async with shared() as api:
        path = api.at("configmaps")
        async with api.watch(path, accept=TABLE) as watch:
            await make(api, path, config("a"))
            await make(api, path, config("b"))
            first, second = await watch.take(2)
        assert [c["name"] for c in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert not second["object"].get("columnDefinitions")


async def test_metadata_alone_and_the_single_form_on_a_list_is_406(shared: Any) -> None:
    async with shared() as api:
        path = api.at("configmaps")
        await make(api, path, config("a", key="value"))
        single = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        one = (await api.get(f"{path}/a", accept=single)).json
        assert set(one) == {"kind", "apiVersion", "metadata"}
        many = (await api.get(path, accept=single.replace("Metadata;", "MetadataList;"))).json
        assert (many["kind"], many["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
        assert (await api.get(path, accept=single)).status == 406
        assert (await api.get(path, accept=f"{single},{JSON}")).status in (200, 406)
