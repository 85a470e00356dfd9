"""Definitions that the cases of section H use: our own snapshot kinds, and small ones made to measure."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

Json = Any
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SNAPSHOTS = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots"
CONTENTS = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}


def manifest() -> list[Json]:
    text = (resources.files("volplane") / "manifests" / "snapshots.yaml").read_text()
    return list(yaml.safe_load_all(text))


async def install_snapshots(api: Any) -> None:
    for document in manifest():
        answer = await api.post(CRDS, document)
        assert answer.status == 201, answer.json


def obj(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def version(name: str = "v1", spec: Json = None, *, storage: bool = True, **more: Json) -> Json:
    schema = obj(spec=spec or obj(size=INTEGER, colour=STRING), status=obj(ready={"type": "boolean"}))
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        **more,
    }


def definition(*versions: Json, group: str = "example.com", scope: str = "Namespaced", **names: Json) -> Json:
    called = {"plural": "widgets", "kind": "Widget", **names}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{called['plural']}.{group}"},
        "spec": {"group": group, "scope": scope, "names": called, "versions": list(versions) or [version()]},
    }


async def define(api: Any, *versions: Json, **more: Json) -> Json:
    answer = await api.post(CRDS, definition(*versions, **more))
    assert answer.status == 201, answer.json
    return answer.json


async def undefine(api: Any, name: str = "widgets.example.com") -> None:
    """Delete a definition, and wait until it is gone."""
    async with api.watch(f"{CRDS}?fieldSelector=metadata.name={name}") as watch:
        await watch.next()
        await api.delete(f"{CRDS}/{name}")
        while (await watch.next())["type"] != "DELETED":
            pass


def widget(name: str = "w", version: str = "v1", **spec: Json) -> Json:
    return {
        "apiVersion": f"example.com/{version}",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": spec,
    }


def snapshot(name: str = "s", **source: Json) -> Json:
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"source": source},
    }


def content(name: str = "c", **spec: Json) -> Json:
    given = {
        "deletionPolicy": "Delete",
        "driver": "d.example.com",
        "source": {"volumeHandle": "vol-1"},
        "volumeSnapshotRef": {"name": "s", "namespace": "default"},
        **spec,
    }
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": {key: value for key, value in given.items() if value is not None},
    }


def conditions(found: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in found["status"]["conditions"]}


def error_message(answer: Any) -> str:
    """What a refusal says, behind its usual beginning."""
    assert answer.status == 422, answer.json
    message: str = answer.json["message"]
    return message.partition(" is invalid: ")[2]
