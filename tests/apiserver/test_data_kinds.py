"""Kinds that nothing here acts on: every one is stored, changed, applied, watched and printed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.test_kubectl import Kubectl
from volplane.api import codec, kinds
from volplane.api.kinds import Kind, data
from volplane.api.object import Field, Object, schema
from volplane.api.published_schema import required_fields
from volplane.apiserver.tables.columns import printer_of

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

SCALARS: dict[str, Any] = {"string": "x", "bytes": "eA==", "integer": 1, "number": 1.5, "boolean": True}
FORMATS: dict[str, Any] = {
    "quantity": "1",
    "date-time": "2026-01-02T03:04:05Z",
    "micro-time": "2026-01-02T03:04:05.000006Z",
    "int-or-string": 80,
}


def example(of: type[Object], *, everything: bool) -> dict[str, Any]:
    """Plain data with all fields of a type, or with the required ones."""
    wanted = schema(of).keys() if everything else required_fields(of)
    return {name: value(schema(of)[name], everything=everything) for name in wanted if name != "metadata"}


def value(field: Field, *, everything: bool) -> Any:
    if field.format:
        return FORMATS[field.format]
    if field.shape == "any":
        return {"kind": "Parameters"}
    if field.type is not None:
        return example(field.type, everything=everything)
    if field.item is not None:
        inner = value(field.item, everything=everything)
        return [inner] if field.shape == "list" else {"key": inner}
    return SCALARS[field.shape]


def new_object(kind: Kind, *, everything: bool) -> dict[str, Any]:
    assert kind.type is not None
    body = example(kind.type, everything=everything)
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}, **body}


def subset(small: Any, large: Any) -> bool:
    if isinstance(small, dict):
        return isinstance(large, dict) and all(k in large and subset(v, large[k]) for k, v in small.items())
    if isinstance(small, list):
        return isinstance(large, list) and len(small) == len(large) and all(map(subset, small, large))
    return bool(small == large)


@pytest.mark.parametrize("kind", data.KINDS, ids=lambda kind: kind.resource)
async def test_an_object_is_stored_changed_applied_watched_and_printed(served: Any, kind: Kind) -> None:
    given = new_object(kind, everything=True)
    collection = kind.path(namespace="default")
    async with served() as api, api.watch(f"{collection}?resourceVersion=0") as events:
        created = await api.post(collection, given)
        assert created.status == 201, created.body
        assert created.warnings == [f'299 - "{kind.kind} is stored but {kind.inactive}"']
        expected = {k: v for k, v in given.items() if k != "status" or not kind.has_status}
        assert subset(expected, created.json)
        assert ("status" in created.json) is ("status" in given and not kind.has_status)
        assert (await events.next())["object"] == created.json

        one = f"{collection}/one"
        assert (await api.get(one)).json == created.json
        labels = {"metadata": {"labels": {"a": "b"}}}
        changed = await api.call("PATCH", one, labels, type=STRATEGIC)
        assert changed.json["metadata"]["labels"] == {"a": "b"}
        assert changed.warnings == []
        applied = {**given, "metadata": {"name": "one", "labels": {"a": "c"}}}
        answer = await api.call("PATCH", f"{one}?fieldManager=m&force=true", applied, type=APPLY)
        assert answer.status == 200, answer.body
        assert answer.json["metadata"]["labels"] == {"a": "c"}
        if kind.has_status:
            status = await api.put(f"{one}/status", {**answer.json, "status": given["status"]})
            assert status.status == 200, status.body
            assert subset(given["status"], status.json["status"])

        table = (await api.get(collection, accept=TABLE)).json
        assert [len(table["columnDefinitions"])] == [len(row["cells"]) for row in table["rows"]]
        assert (await api.delete(one)).status == 200
        assert (await api.get(one)).status == 404


@pytest.mark.parametrize("kind", data.KINDS, ids=lambda kind: kind.resource)
async def test_required_fields_are_enough_and_none_may_be_left_out(served: Any, kind: Kind) -> None:
    collection = kind.path(namespace="default")
    given = new_object(kind, everything=False)
    async with served() as api:
        for name in (k for k in given if k not in ("apiVersion", "kind", "metadata", "status")):
            without = {k: v for k, v in given.items() if k != name}
            refused = (await api.post(collection, without)).json
            assert [c["field"] for c in refused["details"]["causes"]] == [name]
        assert (await api.post(collection, given)).status == 201


async def test_a_field_that_does_not_exist_or_has_another_type_is_refused(served: Any) -> None:
    path = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
    async with served() as api:
        wrong = {"metadata": {"name": "i"}, "spec": {"rules": [{"hosts": "a.example"}]}}
        refused = await api.post(f"{path}?fieldValidation=Strict", wrong)
        assert refused.status == 400
        assert 'unknown field "spec.rules[0].hosts"' in refused.json["message"]
        wrong = {"metadata": {"name": "i"}, "spec": {"rules": "a.example"}}
        assert (await api.post(path, wrong)).status == 400
        backend = {"backend": {"service": {"port": {"number": 80}}}}
        wrong = {"metadata": {"name": "i"}, "spec": {"rules": [{"http": {"paths": [backend]}}]}}
        refused = await api.post(path, wrong)
        fields = [cause["field"] for cause in refused.json["details"]["causes"]]
        where = "spec.rules[0].http.paths[0]"
        assert sorted(fields) == [f"{where}.backend.service.name", f"{where}.pathType"]


async def test_a_cluster_answers_for_every_kind_of_the_published_schema(served: Any) -> None:
    async with served() as api:
        groups = (await api.get("/apis")).json["groups"]
        served_kinds = set()
        for version in [v["groupVersion"] for g in groups for v in g["versions"]]:
            listed = (await api.get(f"/apis/{version}")).json["resources"]
            served_kinds |= {entry["kind"] for entry in listed}
        wanted = {"Ingress", "NetworkPolicy", "HorizontalPodAutoscaler", "APIService", "FlowSchema"}
        assert wanted <= served_kinds
        assert {kind.kind for kind in kinds.ALL if kind.group} <= served_kinds


@pytest.mark.peer("kubectl")
async def test_kubectl_creates_explains_and_prints_them(served: Any, tmp_path: Path) -> None:
    async with served() as api:
        kubectl = Kubectl(api.server.kubeconfig, tmp_path)
        rule = "--rule=a.example/*=web:80,tls=cert"
        made = await kubectl("create", "ingress", "web", "--class=nginx", rule)
        assert "ingress.networking.k8s.io/web created" in made
        assert "Warning: Ingress is stored but no traffic is routed" in made
        stored = json.loads(await kubectl("get", "ingress", "web", "-o", "json"))
        assert stored["spec"]["rules"][0] == {
            "host": "a.example",
            "http": {
                "paths": [
                    {
                        "path": "/",
                        "pathType": "Prefix",
                        "backend": {"service": {"name": "web", "port": {"number": 80}}},
                    }
                ]
            },
        }
        row = (await kubectl("get", "ing")).splitlines()[1].split()
        assert row[:5] == ["web", "nginx", "a.example", "80,", "443"]
        assert "IngressRule" in await kubectl("explain", "ingress.spec.rules")
        deployment = "create deployment web --image=busybox"
        await kubectl(*deployment.split())
        await kubectl("autoscale", "deployment/web", "--max=3", "--cpu-percent=50")
        row = (await kubectl("get", "hpa")).splitlines()[1].split()
        assert row[:5] == ["web", "Deployment/web", "cpu:", "<unknown>/50%", "1"]
        v2 = json.loads(await kubectl("get", "horizontalpodautoscalers.v2.autoscaling", "web", "-o", "json"))
        target = {"type": "Utilization", "averageUtilization": 50}
        assert v2["spec"]["metrics"] == [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
        v1 = json.loads(await kubectl("get", "horizontalpodautoscalers.v1.autoscaling", "web", "-o", "json"))
        assert v1["spec"]["targetCPUUtilizationPercentage"] == 50
        assert "deployment.apps/web" in await kubectl("get", "all")
        assert "horizontalpodautoscaler.autoscaling/web" in await kubectl("get", "all")


@pytest.mark.parametrize(
    ("plural", "titles", "cells"),
    [
        (
            "storageversions.internal.apiserver.k8s.io",
            "Name CommonEncodingVersion StorageVersions Age",
            ["one", "x", "x=x"],
        ),
        ("ipaddresses.networking.k8s.io", "Name ParentRef", ["10.0.0.1", "x.x/x/x"]),
        (
            "storageversionmigrations.storagemigration.k8s.io",
            "Name Resource Status",
            ["one", "x.x", "Unknown"],
        ),
        (
            "podcertificaterequests.certificates.k8s.io",
            "Name PodName ServiceAccountName NodeName SignerName State UnverifiedUserAnnotations",
            ["one", "x", "x", "x", "x", "Pending", "key=x"],
        ),
        (
            "devicetaintrules.resource.k8s.io",
            "Name Key Value Effect TimeAdded Age",
            ["one", "x", "x", "x"],
        ),
        ("resourceslices.resource.k8s.io", "Name Node Driver Pool Age", ["one", "x", "x", "x"]),
        (
            "flowschemas.flowcontrol.apiserver.k8s.io",
            "Name PriorityLevel MatchingPrecedence DistinguisherMethod Age MissingPL",
            ["one", "x", 1, "x"],
        ),
    ],
)
def test_columns_are_upstreams(plural: str, titles: str, cells: list[Any]) -> None:
    kind = next(kind for kind in kinds.ALL if kind.resource == plural)
    printer = printer_of(kind)
    assert [column.name for column in printer.columns] == titles.split()
    assert {column.type for column in printer.columns} == {"string"}
    body = new_object(kind, everything=True)
    body["metadata"]["name"] = cells[0]
    assert kind.type is not None
    row = printer.cells(codec.convert(kind.type, body), datetime.now(UTC))
    assert row[: len(cells)] == cells


HPAS = "/apis/autoscaling/{}/namespaces/default/horizontalpodautoscalers"


async def test_an_autoscaler_without_metrics_scales_by_cpu(served: Any) -> None:
    target = {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3}
    async with served() as api:
        for version in ("v1", "v2"):
            made = await api.post(HPAS.format(version), {"metadata": {"name": version}, "spec": target})
            assert made.status == 201
            seen = (await api.get(f"{HPAS.format('v2')}/{version}")).json["spec"]
            (metric,) = seen["metrics"]
            assert metric["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}
            seen = (await api.get(f"{HPAS.format('v1')}/{version}")).json["spec"]
            assert (seen["minReplicas"], seen["targetCPUUtilizationPercentage"]) == (1, 80)


async def test_the_behavior_of_an_autoscaler_is_completed(served: Any) -> None:
    behavior = {"scaleUp": {"selectPolicy": "Min", "stabilizationWindowSeconds": 5}}
    target = {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3, "behavior": behavior}
    percent = {"type": "Percent", "value": 100, "periodSeconds": 15}
    async with served() as api:
        made = await api.post(HPAS.format("v2"), {"metadata": {"name": "web"}, "spec": target})
        assert made.json["spec"]["behavior"] == {
            "scaleUp": {
                "selectPolicy": "Min",
                "stabilizationWindowSeconds": 5,
                "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, percent],
            },
            "scaleDown": {"selectPolicy": "Max", "policies": [percent]},
        }
