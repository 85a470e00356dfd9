"""What is wrong with the fields of a body, and in which order it is told, as upstream's own tests expect."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from tests.contract.api_server.definitions import CRDS, INTEGER, STRING, Json, definition, obj

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
APPLY, YAML = "application/apply-patch+yaml", "application/yaml"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"

DEPLOYMENT = """
{"apiVersion": "apps/v1", "kind": "Deployment",
 "metadata": {"name": "other", "name": "d", "unknownMeta": "x", "labels": {"app": "x"}},
 "spec": {
  "unknown1": "1", "unknownDupe": "1", "unknownDupe": "2", "paused": true, "paused": false,
  "selector": {"matchLabels": {"app": "x"}},
  "template": {
   "metadata": {"labels": {"app": "x"}},
   "spec": {"containers": [{"name": "c", "image": "i", "unknownNested": "1",
                            "imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}
"""
DEPLOYMENT_YAML = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: other
  name: d
  unknownMeta: x
  labels:
    app: x
spec:
  unknown1: "1"
  unknownDupe: "1"
  unknownDupe: "2"
  paused: true
  paused: false
  selector:
    matchLabels:
      app: x
  template:
    metadata:
      labels:
        app: x
    spec:
      containers:
      - name: c
        image: i
        unknownNested: "1"
        imagePullPolicy: Always
        imagePullPolicy: Never
"""
DEPLOYMENT_MERGE = """
{"spec": {"unknown1": "1", "unknownDupe": "1", "unknownDupe": "2", "paused": true, "paused": false,
  "template": {"spec": {"containers": [{"name": "c", "image": "i", "unknownNested": "1",
                                        "imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}
"""
DEPLOYMENT_OPERATIONS = """
[{"op": "add", "path": "/spec/unknown1", "value": "1", "foo": "bar"},
 {"op": "add", "path": "/spec/unknown2", "path": "/spec/unknown3", "value": "1"},
 {"op": "add", "path": "/spec/unknownDupe", "value": "1"},
 {"op": "add", "path": "/spec/unknownDupe", "value": "2"},
 {"op": "add", "path": "/spec/paused", "value": true},
 {"op": "add", "path": "/spec/template/spec/containers/0/unknownNested", "value": "1"},
 {"op": "add", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "Never"}]
"""
TEMPLATE = """"selector": {"matchLabels": {"app": "x"}},
  "template": {"metadata": {"labels": {"app": "x"}},
   "spec": {"containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always"%s}]}}"""
SOUND = f"""
{{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {{"name": "d"}},
 "spec": {{{TEMPLATE % ""}}}}}
"""
DEPLOYMENT_APPLY = f"""
{{"apiVersion": "apps/v1", "kind": "Deployment",
 "metadata": {{"name": "d"}},
 "spec": {{
  "paused": false,
  "paused": true,
  {TEMPLATE % ', "imagePullPolicy": "Never"'}}}}}
"""

WIDGET = """
{"apiVersion": "example.com/v1", "kind": "Widget",
 "metadata": {"name": "other", "name": "w", "unknownMeta": "x"},
 "spec": {
  "unknown1": "1", "unknownDupe": "1", "unknownDupe": "2", "known": "1", "known": "2",
  "ports": [{"name": "p", "containerPort": 8080, "protocol": "TCP", "hostPort": 1, "hostPort": 2,
             "unknownNested": "1"}],
  "embedded": {"apiVersion": "v1", "kind": "ConfigMap",
               "metadata": {"name": "c", "namespace": "n", "unknownEmbeddedMeta": "x"}}}}
"""
WIDGET_YAML = """\
apiVersion: example.com/v1
kind: Widget
metadata:
  name: other
  name: w
  unknownMeta: x
spec:
  unknown1: "1"
  unknownDupe: "1"
  unknownDupe: "2"
  known: "1"
  known: "2"
  ports:
  - name: p
    containerPort: 8080
    protocol: TCP
    hostPort: 1
    hostPort: 2
    unknownNested: "1"
  embedded:
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: c
      namespace: n
      unknownEmbeddedMeta: x
"""
WIDGET_MERGE = """
{"spec": {"unknown1": "1", "unknownDupe": "1", "unknownDupe": "2", "known": "1", "known": "2",
  "ports": [{"name": "p", "containerPort": 8080, "protocol": "TCP", "hostPort": 1, "hostPort": 2,
             "unknownNested": "1"}]}}
"""
WIDGET_OPERATIONS = """
[{"op": "add", "path": "/spec/unknown1", "value": "1", "foo": "bar"},
 {"op": "add", "path": "/spec/unknown2", "path": "/spec/unknown3", "value": "1"},
 {"op": "add", "path": "/spec/unknownDupe", "value": "1"},
 {"op": "add", "path": "/spec/ports/0/unknownNested", "value": "1"}]
"""
SOUND_WIDGET = """
{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
 "spec": {"known": "1", "ports": [{"containerPort": 80, "protocol": "TCP"}]}}
"""


def schema(**more: Json) -> Json:
    port = obj(containerPort=INTEGER, hostPort=INTEGER, name=STRING, protocol=STRING)
    ports = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
        "items": {**port, "required": ["containerPort", "protocol"]},
    }
    embedded = obj(apiVersion=STRING, kind=STRING, metadata={"type": "object"})
    embedded["x-kubernetes-embedded-resource"] = True
    return obj(spec={**obj(known=STRING, ports=ports, embedded=embedded), **more})


def unknown(*paths: str) -> list[str]:
    return [f'unknown field "{path}"' for path in paths]


def duplicate(*paths: str) -> list[str]:
    return [f'duplicate field "{path}"' for path in paths]


def set_twice(**lines: int) -> str:
    """The duplicates of a YAML document."""
    named = [f'line {line}: key "{key}" already set in map' for key, line in lines.items()]
    return "yaml: unmarshal errors:\n  " + "\n  ".join(named)


NESTED, POLICY = (f"spec.template.spec.containers[0].{n}" for n in ("unknownNested", "imagePullPolicy"))
OPERATIONS = ['json patch unknown field "[0].foo"', 'json patch duplicate field "[1].path"']
IN_ORDER = [
    *duplicate("metadata.name"),
    *unknown("metadata.unknownMeta", "spec.unknown1", "spec.unknownDupe"),
    *duplicate("spec.paused"),
    *unknown(NESTED),
    *duplicate(POLICY),
]
YAML_LINES = {"name": 5, "unknownDupe": 12, "paused": 14, "imagePullPolicy": 28}
TYPED = {
    "post": ("POST", DEPLOYMENT, "application/json", IN_ORDER),
    "put": ("PUT", DEPLOYMENT, "application/json", IN_ORDER),
    "post yaml": (
        "POST",
        DEPLOYMENT_YAML,
        YAML,
        [
            set_twice(**YAML_LINES),
            *unknown("metadata.unknownMeta", NESTED, "spec.unknown1", "spec.unknownDupe"),
        ],
    ),
    "merge patch": (
        "PATCH",
        DEPLOYMENT_MERGE,
        MERGE,
        [
            *duplicate("spec.unknownDupe", "spec.paused", POLICY),
            *unknown(NESTED, "spec.unknown1", "spec.unknownDupe"),
        ],
    ),
    "strategic merge patch": (
        "PATCH",
        DEPLOYMENT_MERGE,
        "application/strategic-merge-patch+json",
        [
            *duplicate("spec.unknownDupe", "spec.paused", POLICY),
            *unknown(NESTED, "spec.unknown1", "spec.unknownDupe"),
        ],
    ),
    "json patch": (
        "PATCH",
        DEPLOYMENT_OPERATIONS,
        JSON_PATCH,
        [*OPERATIONS, *unknown(NESTED, "spec.unknown1", "spec.unknown3", "spec.unknownDupe")],
    ),
}
OF_WIDGETS = duplicate("spec.unknownDupe", "spec.known", "spec.ports[0].hostPort")
META, PORT = "metadata.unknownMeta", "spec.ports[0].unknownNested"
EMBEDDED = "spec.embedded.metadata.unknownEmbeddedMeta"
OPEN = {"x-kubernetes-preserve-unknown-fields": True}
WIDGET_LINES = {"name": 5, "unknownDupe": 10, "known": 12, "hostPort": 18}
UNKNOWN = ("spec.unknown1", "spec.unknownDupe")
CUSTOM = {
    "post": (
        "POST", WIDGET, "application/json", {},
        [*duplicate("metadata.name"), *OF_WIDGETS, *unknown(META, PORT, *UNKNOWN, EMBEDDED)],
    ),
    "post, open": (
        "POST", WIDGET, "application/json", OPEN,
        [*duplicate("metadata.name"), *OF_WIDGETS, *unknown(META, PORT, EMBEDDED)],
    ),
    "put": (
        "PUT", WIDGET, "application/json", {},
        [*duplicate("metadata.name"), *OF_WIDGETS, *unknown(META, PORT, *UNKNOWN, EMBEDDED)],
    ),
    "post yaml": (
        "POST", WIDGET_YAML, YAML, {},
        [set_twice(**WIDGET_LINES), *unknown(META, PORT, *UNKNOWN, EMBEDDED)],
    ),
    "post yaml, open": (
        "POST", WIDGET_YAML, YAML, OPEN, [set_twice(**WIDGET_LINES), *unknown(META, PORT, EMBEDDED)],
    ),
    "merge patch": ("PATCH", WIDGET_MERGE, MERGE, {}, [*OF_WIDGETS, *unknown(PORT, *UNKNOWN)]),
    "merge patch, open": ("PATCH", WIDGET_MERGE, MERGE, OPEN, [*OF_WIDGETS, *unknown(PORT)]),
    "json patch": (
        "PATCH", WIDGET_OPERATIONS, JSON_PATCH, {},
        [*OPERATIONS, *unknown(PORT, "spec.unknown1", "spec.unknown3", "spec.unknownDupe")],
    ),
    "json patch, open": ("PATCH", WIDGET_OPERATIONS, JSON_PATCH, OPEN, [*OPERATIONS, *unknown(PORT)]),
}  # fmt: skip


async def check(api: Any, method: str, path: str, body: str, type: str, told: list[str]) -> None:
    text = textwrap.dedent(body).encode()
    refused = await api.call(method, f"{path}?fieldValidation=Strict", text, type=type)
    assert refused.status == 400 if method != "PATCH" else 422, refused.json
    assert refused.json["message"].endswith(f"strict decoding error: {', '.join(told)}"), refused.json[
        "message"
    ]
    for validation in ("?fieldValidation=Warn", ""):
        if method == "PUT":
            version = (await api.get(path)).json["metadata"]["resourceVersion"]
            text = body.replace(
                '"metadata": {', f'"metadata": {{"resourceVersion": "{version}", ', 1
            ).encode()
        accepted = await api.call(method, f"{path}{validation}", text, type=type)
        assert accepted.status in (200, 201), accepted.json
        lines = [line for text in told for line in _warnings_of(text)]
        quoted = [line.replace('"', '\\"') for line in lines]
        assert accepted.warnings == [f'299 - "{line}"' for line in quoted]
        if method == "POST":
            await api.delete(f"{path}/{'d' if 'deployments' in path else 'w'}")


def _warnings_of(text: str) -> list[str]:
    """YAML's duplicates are one error, and a warning each."""
    return [line.strip() for line in text.split("\n")[1:]] if "\n" in text else [text]


@pytest.mark.parametrize(("method", "body", "type", "told"), TYPED.values(), ids=TYPED)
async def test_fields_of_a_built_in_kind(
    served: Any, method: str, body: str, type: str, told: list[str]
) -> None:
    async with served() as api:
        if method != "POST":
            assert (await api.post(DEPLOYMENTS, SOUND.encode())).status == 201
        await check(api, method, DEPLOYMENTS if method == "POST" else f"{DEPLOYMENTS}/d", body, type, told)


@pytest.mark.parametrize(("method", "body", "type", "more", "told"), CUSTOM.values(), ids=CUSTOM)
async def test_fields_of_a_custom_kind(
    served: Any, method: str, body: str, type: str, more: Json, told: list[str]
) -> None:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema(**more)}}
    async with served() as api:
        made = await api.post(CRDS, definition(version))
        assert made.status == 201, made.json
        if method != "POST":
            assert (await api.post(WIDGETS, SOUND_WIDGET.encode())).status == 201
        await check(api, method, WIDGETS if method == "POST" else f"{WIDGETS}/w", body, type, told)


async def test_duplicates_of_an_applied_configuration(served: Any) -> None:
    async with served() as api:
        path = f"{DEPLOYMENTS}/d?fieldManager=m"
        refused = await api.call(
            "PATCH", f"{path}&fieldValidation=Strict", DEPLOYMENT_APPLY.encode(), type=APPLY
        )
        assert refused.status == 400
        assert refused.json["message"] == (
            "error strict decoding YAML: error converting YAML to JSON: "
            + set_twice(paused=6, imagePullPolicy=9)
        )
        accepted = await api.call("PATCH", path, DEPLOYMENT_APPLY.encode(), type=APPLY)
        assert accepted.status == 201
        assert accepted.warnings == [
            '299 - "line 6: key \\"paused\\" already set in map"',
            '299 - "line 9: key \\"imagePullPolicy\\" already set in map"',
        ]
