"""Objects and bodies that several sections need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Json = Any
JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON};as=Table;v=v1beta1;g=meta.k8s.io,{JSON}"
STORAGE = "/apis/storage.k8s.io/v1"
COORDINATION = "coordination.k8s.io/v1"
BODIES = {
    s["name"]: bytes.fromhex(s["protobuf"])
    for s in json.loads((Path(__file__).parents[2] / "apiserver_rules" / "protobuf.samples.json").read_text())
}


def claim(name: str = "data", **spec: Json) -> Json:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"metadata": {"name": name}, "spec": wanted}


def volume(name: str, **spec: Json) -> Json:
    given = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d.example.com", "volumeHandle": name},
        **spec,
    }
    return {"metadata": {"name": name}, "spec": given}


def pod(name: str = "p", **spec: Json) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "a:1"}], **spec}}


def attachment(name: str, node: str = "n1") -> Json:
    spec = {"attacher": "d.example.com", "nodeName": node, "source": {"persistentVolumeName": "pv"}}
    return {"metadata": {"name": name}, "spec": spec}


def config(name: str = "m", **data: str) -> Json:
    return {"metadata": {"name": name}, "data": data}


def lease(name: str = "leader", **spec: Json) -> Json:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, **spec}}


def deployment(name: str = "web", replicas: int = 1) -> Json:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


async def account(api: Any) -> None:
    """The account that pods run as: its controller does not run here."""
    made = await api.post(api.at("serviceaccounts"), {"metadata": {"name": "default"}})
    assert made.status in (201, 409), made.json


async def make(api: Any, path: str, body: Json) -> Json:
    made = await api.post(path, body)
    assert made.status == 201, made.json
    return made.json


async def make_pod(api: Any, name: str = "p", **spec: Json) -> Json:
    await account(api)
    return await make(api, api.at("pods"), pod(name, **spec))
