"""Contract provisioning F, admission and validation: the cases to test, over HTTPS as clients meet them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.api_server.people import person
from tests.contract.provisioning.claims_env import claims_env
from tests.loops.inprocess import running
from tests.support import scripted
from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.controllers.quota.controller import ResourceQuotas

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
IS_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
IMMUTABLE = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
NOT_RESIZABLE = (
    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must "
    "support resize"
)


def claim(name: str = "data", **spec: Any) -> dict[str, Any]:
    whole = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"metadata": {"name": name}, "spec": whole}


def volume(name: str = "v", **spec: Any) -> dict[str, Any]:
    csi = {"driver": "d.example.com", "volumeHandle": "h"}
    whole = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "csi": csi, **spec}
    return {"metadata": {"name": name}, "spec": whole}


def storage_class(name: str, *, default: bool = False, **more: Any) -> dict[str, Any]:
    notes = IS_DEFAULT if default else {}
    return {"metadata": {"name": name, "annotations": notes}, "provisioner": "d.example.com", **more}


async def make(api: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await api.post(path, body)
    assert answer.status == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


async def bound(api: Any, **spec: Any) -> None:
    await make(api, CLAIMS, claim(**spec))
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    answer = await api.merge(f"{CLAIMS}/data/status", {"status": status})
    assert answer.status == 200, answer.json


def grown(size: str) -> dict[str, Any]:
    return {"spec": {"resources": {"requests": {"storage": size}}}}


async def test_a_class_that_is_not_set_becomes_the_newest_default(served: Any) -> None:
    async with served() as api:
        await make(api, CLASSES, storage_class("older", default=True))
        await asyncio.sleep(1.1)  # stamps are whole seconds
        await make(api, CLASSES, storage_class("newer", default=True))
        assert (await make(api, CLAIMS, claim("unset")))["spec"]["storageClassName"] == "newer"
        none = await make(api, CLAIMS, claim("none", storageClassName=""))
        assert none["spec"]["storageClassName"] == ""


@pytest.mark.both
async def test_a_class_that_is_missing_is_accepted_and_the_claim_waits() -> None:
    async with claims_env(scripted.driver()) as s:
        await s.claim(cls="missing")
        reported = await s.event("ProvisioningFailed")
        assert (reported.type, reported.message) == (
            "Warning",
            'storageclass.storage.k8s.io "missing" not found',
        )
        await s.rest(60)
        assert (await s.find(PersistentVolumeClaim, "data")).status.phase == "Pending"


async def test_who_may_grow_a_claim(served: Any) -> None:
    async with served() as api:
        await make(api, CLASSES, storage_class("fixed"))
        await make(api, CLASSES, storage_class("elastic", allowVolumeExpansion=True))
        await make(api, CLAIMS, claim("waiting", storageClassName="elastic"))
        answer = await api.merge(f"{CLAIMS}/waiting", grown("2Gi"))
        assert answer.status == 422
        assert IMMUTABLE in answer.json["message"]
        await bound(api, storageClassName="fixed")
        answer = await api.merge(f"{CLAIMS}/data", grown("2Gi"))
        assert answer.status == 403
        assert NOT_RESIZABLE in answer.json["message"]
        await api.merge(f"{CLASSES}/fixed", {"allowVolumeExpansion": True})
        answer = await api.merge(f"{CLAIMS}/data", grown("2Gi"))
        assert answer.status == 200
        await api.delete(f"{CLASSES}/fixed")
        answer = await api.merge(f"{CLAIMS}/data", grown("3Gi"))
        assert answer.status == 403
        assert NOT_RESIZABLE in answer.json["message"]


async def test_a_request_shrinks_only_to_more_than_the_volume_has(served: Any) -> None:
    async with served() as api:
        await make(api, CLASSES, storage_class("elastic", allowVolumeExpansion=True))
        await bound(api, storageClassName="elastic")
        assert (await api.merge(f"{CLAIMS}/data", grown("5Gi"))).status == 200
        assert (await api.merge(f"{CLAIMS}/data", grown("2Gi"))).status == 200
        answer = await api.merge(f"{CLAIMS}/data", grown("1Gi"))
        assert answer.status == 422
        assert "field can not be less than status.capacity" in answer.json["message"]


async def test_a_namespace_limits_the_size_of_its_claims(served: Any) -> None:
    async with served() as api:
        await make(api, CLASSES, storage_class("elastic", allowVolumeExpansion=True))
        await bound(api, storageClassName="elastic")
        item = {"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}, "max": {"storage": "5Gi"}}
        limits = "/api/v1/namespaces/default/limitranges"
        await make(api, limits, {"metadata": {"name": "sizes"}, "spec": {"limits": [item]}})
        answer = await api.post(CLAIMS, claim("small"))
        assert (answer.status, answer.json["message"]) == (
            403,
            'persistentvolumeclaims "small" is forbidden: minimum storage usage per PersistentVolumeClaim '
            "is 2Gi, but request is 1Gi",
        )
        answer = await api.merge(f"{CLAIMS}/data", grown("6Gi"))
        assert answer.status == 403
        assert "PersistentVolumeClaim is 5Gi, but request is 6Gi" in answer.json["message"]
        # What is there already may be written on.
        assert (await api.merge(f"{CLAIMS}/data", {"metadata": {"labels": {"a": "b"}}})).status == 200
        assert (await api.merge(f"{CLAIMS}/data", grown("5Gi"))).status == 200


async def test_a_namespaces_quota_holds_for_the_number_and_the_size_of_its_claims(served: Any) -> None:
    quotas = "/api/v1/namespaces/default/resourcequotas"
    async with served() as api:
        fast = "fast.storageclass.storage.k8s.io/persistentvolumeclaims"
        hard = {"requests.storage": "3Gi", "persistentvolumeclaims": "10", fast: "1"}
        await make(api, quotas, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
        answers = await asyncio.gather(*(api.post(CLAIMS, claim(f"c{i}")) for i in range(5)))
        assert sorted(a.status for a in answers) == [201, 201, 201, 403, 403]
        reported = next(a.json["message"] for a in answers if a.status == 403)
        assert reported.endswith(
            "is forbidden: exceeded quota: q, requested: requests.storage=1Gi, used: requests.storage=3Gi, "
            "limited: requests.storage=3Gi"
        )
        kept = next(i for i, a in enumerate(answers) if a.status == 201)
        await api.merge(f"{CLAIMS}/c{kept}", {"metadata": {"finalizers": None}})
        await api.delete(f"{CLAIMS}/c{kept}")
        assert (await api.post(CLAIMS, claim("f", storageClassName="fast"))).status == 201
        await api.merge(f"{quotas}/q", {"spec": {"hard": {"requests.storage": "9Gi"}}})
        answer = await api.post(CLAIMS, claim("g", storageClassName="fast"))
        assert answer.status == 403
        assert f"requested: {fast}=1, used: {fast}=1, limited: {fast}=1" in answer.json["message"]


@pytest.mark.virtual
async def test_a_quota_tells_what_claims_use_of_it() -> None:
    async with claims_env(roles=()) as s, running(ResourceQuotas(s.around.role("quota")).run()):
        gold = {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}
        for name, more in (("all", {}), ("gold", {"scopeSelector": {"matchExpressions": [gold]}})):
            whole = {"hard": {"requests.storage": "5Gi", "persistentvolumeclaims": "9"}, **more}
            made = {"metadata": {"name": name, "namespace": "default"}, "spec": whole}
            await s.client.create(codec.convert(ResourceQuota, made))
        await s.claim("a", cls="")
        await s.claim("b", cls="", volumeAttributesClassName="gold")
        await asyncio.sleep(1)
        used = {q.name: q.status.used for q in await s.client.list(ResourceQuota)}
        assert used == {
            "all": {"requests.storage": "2Gi", "persistentvolumeclaims": "2"},
            "gold": {"requests.storage": "1Gi", "persistentvolumeclaims": "1"},
        }


@pytest.mark.parametrize(
    "change",
    [
        {"accessModes": ["ReadWriteMany"]},
        {"selector": {"matchLabels": {"a": "b"}}},
        {"volumeName": "other"},
        {"storageClassName": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_bound_claim_does_not_change(served: Any, change: dict[str, Any]) -> None:
    async with served() as api:
        await bound(api, storageClassName="fast", volumeName="v")
        answer = await api.merge(f"{CLAIMS}/data", {"spec": change})
        assert answer.status == 422
        assert IMMUTABLE in answer.json["message"]


async def test_a_class_is_given_once(served: Any) -> None:
    async with served() as api:
        await make(api, CLAIMS, claim())
        answer = await api.merge(f"{CLAIMS}/data", {"spec": {"storageClassName": "fast"}})
        assert answer.status == 200
        answer = await api.merge(f"{CLAIMS}/data", {"spec": {"storageClassName": "other"}})
        assert answer.status == 422


async def test_what_may_change_in_a_volume(served: Any) -> None:
    async with served() as api:
        ref = {"namespace": "default", "name": "data"}
        await make(api, VOLUMES, volume(claimRef=ref))
        answer = await api.merge(f"{VOLUMES}/v", {"spec": {"csi": {"volumeHandle": "other"}}})
        assert answer.status == 422
        assert "spec.persistentvolumesource is immutable after creation" in answer.json["message"]
        secret = {"csi": {"controllerExpandSecretRef": {"name": "s", "namespace": "default"}}}
        assert (await api.merge(f"{VOLUMES}/v", {"spec": secret})).status == 200
        secret["csi"]["controllerExpandSecretRef"]["name"] = "t"
        assert (await api.merge(f"{VOLUMES}/v", {"spec": secret})).status == 422
        answer = await api.merge(f"{VOLUMES}/v", {"spec": {"claimRef": None}})
        assert answer.status == 200
        assert "claimRef" not in answer.json["spec"]


async def test_what_may_change_in_a_class(served: Any) -> None:
    async with served() as api:
        await make(api, CLASSES, storage_class("fast", parameters={"type": "gp3"}))
        answer = await api.merge(f"{CLASSES}/fast", {"parameters": {"type": "io2"}})
        assert answer.status == 422
        assert "updates to parameters are forbidden." in answer.json["message"]
        for allowed in (True, False):
            answer = await api.merge(f"{CLASSES}/fast", {"allowVolumeExpansion": allowed})
            assert answer.status == 200


@pytest.mark.both
async def test_an_unknown_source_is_dropped_in_one_field_and_waits_for_a_populator_in_the_other() -> None:
    driver = scripted.driver()
    backup = {"apiGroup": "example.com", "kind": "Backup", "name": "b"}
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim("empty", dataSource=backup)
        mine, _ = await s.bound("empty")
        assert mine.spec.data_source is None
        assert not driver.requests_of("CreateVolume")[0].HasField("volume_content_source")
        await s.claim("filled", dataSourceRef=backup)
        reported = await s.event("Provisioning", "Assuming", about="filled")
        assert reported.message == "Assuming an external populator will provision the volume"
        await s.rest(600)
        assert (await s.find(PersistentVolumeClaim, "filled")).status.phase == "Pending"
        assert len(driver.requests_of("CreateVolume")) == 1


async def test_a_node_changes_only_what_nodes_may_in_a_claims_status(served: Any) -> None:
    async with served() as api:
        await make(api, "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        await make(api, "/api/v1/nodes", {"metadata": {"name": "n1"}})
        await make(api, VOLUMES, volume(claimRef={"namespace": "default", "name": "data"}))
        await bound(api, storageClassName="", volumeName="v")
        used = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
        spec = {"containers": [{"name": "c", "image": "i"}], "volumes": used, "nodeName": "n1"}
        await make(api, "/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": spec})
        async with person(api.server, "system:node:n1", "system:nodes") as node:
            answer = await node.merge(f"{CLAIMS}/data/status", {"status": {"capacity": {"storage": "2Gi"}}})
            assert answer.status == 200, answer.body
            answer = await node.merge(f"{CLAIMS}/data/status", {"metadata": {"labels": {"a": "b"}}})
            assert answer.status == 403
            answer = await node.merge(f"{CLAIMS}/data/status", {"status": {"phase": "Lost"}})
            assert answer.status == 403
