"""Contract api-server L, building blocks: the cases to test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.contract.api_server.people import person
from tests.contract.api_server.samples import PROTOBUF
from volplane.api import kinds
from volplane.api.meta import DeleteOptions
from volplane.apiserver import decode

DEFINITIONS = "kubernetes-json-schema/v1.35.0-local/_definitions.json"
SAMPLES = {
    s["name"]: s
    for s in json.loads((Path(__file__).parents[2] / "apiserver_rules" / "protobuf.samples.json").read_text())
}
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def test_the_conditions_of_a_claim_merge_by_type_in_the_definitions_and_in_ours(shared: Any) -> None:
    name = "io.k8s.api.core.v1.PersistentVolumeClaimStatus"
    text = (Path(kubernetes_validate.__file__).parent / DEFINITIONS).read_text()
    published = json.loads(text)["$defs"][name]["properties"]["conditions"]
    async with shared() as api:
        index = (await api.get("/openapi/v3")).json["paths"]
        document = (await api.get(index["api/v1"]["serverRelativeURL"])).json
    ours = document["components"]["schemas"][name]["properties"]["conditions"]
    for found in (published, ours):
        assert found["x-kubernetes-patch-merge-key"] == "type"
        assert found["x-kubernetes-list-type"] == "map"
        assert found["x-kubernetes-list-map-keys"] == ["type"]


@pytest.mark.parametrize("name", ["a lease", "an event", "a volume"])
def test_a_recorded_protobuf_body_is_what_a_json_client_would_have_sent(name: str) -> None:
    sample = SAMPLES[name]
    kind = kinds.by_kind(sample["json"]["apiVersion"], sample["json"]["kind"])
    assert kind is not None
    read, _ = decode.decode_body(kind, bytes.fromhex(sample["protobuf"]), PROTOBUF, "Strict")
    sent, _ = decode.decode_body(kind, json.dumps(sample["json"]).encode(), "application/json", "Ignore")
    assert read == sent


def test_recorded_delete_options_are_what_a_json_client_would_have_sent() -> None:
    sample = SAMPLES["delete options"]
    read = decode.decode_options(DeleteOptions, bytes.fromhex(sample["protobuf"]), PROTOBUF)
    sent = decode.decode_options(DeleteOptions, json.dumps(sample["json"]).encode(), "application/json")
    assert read == sent


async def test_a_certificate_names_alice_and_the_same_port_takes_a_token(served: Any) -> None:
    async with served() as api:
        async with person(api.server, "alice", "dev") as alice:
            who = (await alice.post(REVIEWS, {})).json["status"]["userInfo"]
        assert who["username"] == "alice"
        assert who["groups"] == ["dev", "system:authenticated"]
        async with person(api.server, token=api.server.admin_token) as admin:
            assert (await admin.post(REVIEWS, {})).json["status"]["userInfo"][
                "username"
            ] == "kubernetes-admin"
