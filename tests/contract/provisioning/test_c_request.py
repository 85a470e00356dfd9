"""Contract provisioning C.3 to C.5: the request and the volume's object, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format

from tests.contract.provisioning.claims_env import PATIENCE, claims_env
from tests.loops.inprocess import until
from tests.support import scripted
from volplane.api import codec
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import PersistentVolumeClaim, SecretReference
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER

pytestmark = pytest.mark.both

PREFIX = "csi.storage.k8s.io/"


def plain(request: Any) -> Any:
    return json_format.MessageToDict(request, preserving_proto_field_name=True)


async def test_the_plainest_claim() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class(mountOptions=["noatime"], parameters={"type": "gp3"})
        made = await s.claim(size="1Gi")
        mine, held = await s.bound()
        assert plain(driver.requests_of("CreateVolume")[0]) == {
            "name": f"pvc-{made.uid}",
            "capacity_range": {"required_bytes": str(1 << 30)},
            "volume_capabilities": [
                {"mount": {"mount_flags": ["noatime"]}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
            ],
            "parameters": {"type": "gp3"},
        }
        whole = json.loads(codec.encode(held))
        spec, metadata = whole["spec"], whole["metadata"]
        identity = spec["csi"]["volumeAttributes"].pop("storage.kubernetes.io/csiProvisionerIdentity")
        assert identity.endswith(f"-{scripted.NAME}")
        ref = spec.pop("claimRef")
        assert ref.pop("resourceVersion")
        assert ref == {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "default",
            "name": "data",
            "uid": made.uid,
        }
        assert spec == {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "persistentVolumeReclaimPolicy": "Delete",
            "mountOptions": ["noatime"],
            "volumeMode": "Filesystem",
            "csi": {
                "driver": scripted.NAME,
                "volumeHandle": f"vol-pvc-{made.uid}",
                "volumeAttributes": {"made": "here"},
            },
        }
        assert metadata["annotations"] == {
            "pv.kubernetes.io/provisioned-by": scripted.NAME,
            "volume.kubernetes.io/provisioner-deletion-secret-name": "",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
        }
        assert set(metadata["finalizers"]) == {"kubernetes.io/pv-protection", EXTERNAL_PROVISIONER_FINALIZER}
        assert mine.status.capacity == {"storage": "1Gi"}


@pytest.mark.parametrize(
    ("features", "modes", "expected"),
    [
        ((), ["ReadWriteOnce"], ["SINGLE_NODE_WRITER"]),
        ((), ["ReadWriteMany"], ["MULTI_NODE_MULTI_WRITER"]),
        ((), ["ReadOnlyMany"], ["MULTI_NODE_READER_ONLY"]),
        ((), ["ReadWriteOncePod"], ["SINGLE_NODE_WRITER"]),
        (("multi-writer",), ["ReadWriteOnce"], ["SINGLE_NODE_MULTI_WRITER"]),
        (("multi-writer",), ["ReadWriteOncePod"], ["SINGLE_NODE_SINGLE_WRITER"]),
        ((), ["ReadWriteOnce", "ReadOnlyMany"], ["SINGLE_NODE_WRITER", "MULTI_NODE_READER_ONLY"]),
    ],
)
async def test_one_capability_per_access_mode(
    features: tuple[str, ...], modes: list[str], expected: list[str]
) -> None:
    driver = scripted.driver(*features)
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim(accessModes=modes)
        await s.bound()
        capabilities = plain(driver.requests_of("CreateVolume")[0])["volume_capabilities"]
        assert [c["access_mode"]["mode"] for c in capabilities] == expected


async def test_a_block_volume_has_no_file_system() -> None:
    driver = scripted.driver()
    async with claims_env(driver, default_fstype="ext4") as s:
        await s.storage_class()
        await s.claim(volumeMode="Block")
        _, held = await s.bound()
        (capability,) = plain(driver.requests_of("CreateVolume")[0])["volume_capabilities"]
        assert capability == {"block": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
        assert held.spec.volume_mode == "Block"
        assert held.spec.csi is not None
        assert held.spec.csi.fs_type == ""


@pytest.mark.parametrize(
    ("parameters", "default", "fs_type", "passed"),
    [
        ({}, "", "", {}),
        ({}, "ext4", "ext4", {}),
        ({f"{PREFIX}fstype": "xfs"}, "ext4", "xfs", {}),
        ({"fsType": "xfs"}, "", "xfs", {"fsType": "xfs"}),
    ],
)
async def test_the_file_system(
    parameters: dict[str, str], default: str, fs_type: str, passed: dict[str, str]
) -> None:
    driver = scripted.driver()
    async with claims_env(driver, default_fstype=default) as s:
        await s.storage_class(parameters=parameters)
        await s.claim()
        _, held = await s.bound()
        (request,) = driver.requests_of("CreateVolume")
        assert request.volume_capabilities[0].mount.fs_type == fs_type
        assert dict(request.parameters) == passed
        assert held.spec.csi is not None
        assert held.spec.csi.fs_type == fs_type


async def test_two_spellings_of_the_file_system_are_refused() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class(parameters={f"{PREFIX}fstype": "xfs", "fstype": "ext4"})
        await s.claim()
        await s.event("ProvisioningFailed", "fstype")
        assert driver.calls == []


async def test_extra_metadata_names_and_their_length() -> None:
    driver = scripted.driver()
    flags: dict[str, Any] = {"volume_name_prefix": "vol", "volume_name_uuid_length": 8}
    async with claims_env(driver, extra_create_metadata=True, **flags) as s:
        await s.storage_class()
        made = await s.claim()
        _, held = await s.bound()
        name = f"vol-{made.uid.replace('-', '')[:8]}"
        assert held.name == name
        (request,) = driver.requests_of("CreateVolume")
        assert request.name == name
        assert dict(request.parameters) == {
            f"{PREFIX}pvc/name": "data",
            f"{PREFIX}pvc/namespace": "default",
            f"{PREFIX}pv/name": name,
        }


async def test_secrets_by_template() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.secret("data-key", password="hush")
        parameters = {
            f"{PREFIX}provisioner-secret-name": "${pvc.annotations['team']}-key",
            f"{PREFIX}provisioner-secret-namespace": "${pvc.namespace}",
            f"{PREFIX}node-stage-secret-name": "${pv.name}",
            f"{PREFIX}node-stage-secret-namespace": "vault",
            f"{PREFIX}controller-modify-secret-name": "m",
            f"{PREFIX}controller-modify-secret-namespace": "vault",
            f"{PREFIX}secret-name": "any",
            f"{PREFIX}secret-namespace": "${pvc.namespace}",
        }
        await s.storage_class(parameters=parameters)
        await s.claim(notes={"team": "data"})
        _, held = await s.bound()
        (request,) = driver.requests_of("CreateVolume")
        assert dict(request.secrets) == {"password": "hush"}
        assert dict(request.parameters) == {}
        source = held.spec.csi
        assert source is not None
        assert source.node_stage_secret_ref == SecretReference(name=held.name, namespace="vault")
        general = SecretReference(name="any", namespace="default")
        for each in (
            source.controller_publish_secret_ref,
            source.node_publish_secret_ref,
            source.controller_expand_secret_ref,
            source.node_expand_secret_ref,
        ):
            assert each == general
        notes = held.metadata.annotations
        assert notes["volume.kubernetes.io/provisioner-deletion-secret-name"] == "data-key"
        assert notes["volume.kubernetes.io/provisioner-deletion-secret-namespace"] == "default"
        assert notes["volume.kubernetes.io/controller-modify-secret-name"] == "m"
        await s.delete(PersistentVolumeClaim, "data")
        (deletion,) = await s.called("DeleteVolume")
        assert dict(deletion.secrets) == {"password": "hush"}


async def test_a_missing_secret_is_waited_for_and_no_call_is_made() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        parameters = {
            f"{PREFIX}provisioner-secret-name": "k",
            f"{PREFIX}provisioner-secret-namespace": "default",
        }
        await s.storage_class(parameters=parameters)
        await s.claim()
        await s.event("ProvisioningFailed", 'failed to load secret "default/k"')
        assert driver.calls == []
        await s.secret("k", a="b")
        await s.bound()


async def test_attributes_of_a_volume_attributes_class() -> None:
    driver = scripted.driver("modify")
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim(volumeAttributesClassName="gold")
        await s.event("ProvisioningFailed", '"gold" not found')
        assert driver.calls == []
        await s.attributes("gold", iops="3000")
        mine, held = await s.bound()
        assert dict(driver.requests_of("CreateVolume")[0].mutable_parameters) == {"iops": "3000"}
        assert held.spec.volume_attributes_class_name == "gold"
        assert mine.status.current_volume_attributes_class_name == "gold"


async def test_attributes_of_another_driver_and_a_driver_without_them_are_refused() -> None:
    for features, other in ((("modify",), "other.example.com"), ((), scripted.NAME)):
        driver = scripted.driver(*features)
        async with claims_env(driver) as s:
            await s.attributes("gold", driver=other, iops="3000")
            await s.storage_class()
            await s.claim(volumeAttributesClassName="gold")
            await s.event("ProvisioningFailed")
            assert driver.calls == []


async def test_a_selector_is_refused() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim(selector={"matchLabels": {"a": "b"}})
        await s.event("ProvisioningFailed", "claim Selector is not supported")
        assert driver.calls == []


async def test_read_only_many_alone_may_be_published_read_only() -> None:
    driver = scripted.driver()
    async with claims_env(driver, controller_publish_readonly=True) as s:
        await s.storage_class()
        await s.claim(accessModes=["ReadOnlyMany"])
        _, held = await s.bound()
        assert held.spec.csi is not None
        assert held.spec.csi.read_only


@pytest.mark.parametrize(
    ("flags", "selected", "allowed", "requisite", "preferred"),
    [
        ({}, "", None, ["a", "b", "c"], None),
        ({"immediate_topology": False}, "", None, None, None),
        ({"immediate_topology": False}, "", ["b", "c"], ["b", "c"], None),
        ({}, "n2", None, ["a", "b", "c"], ["b", "c", "a"]),
        ({"strict_topology": True}, "n2", None, ["b"], ["b"]),
        ({}, "n2", ["b", "c"], ["b", "c"], ["b", "c"]),
    ],
    ids=["immediate", "immediate, free", "immediate, allowed", "selected", "strict", "selected, allowed"],
)
async def test_topology(
    flags: dict[str, Any],
    selected: str,
    allowed: list[str] | None,
    requisite: list[str] | None,
    preferred: list[str] | None,
) -> None:
    driver = scripted.driver("topology")
    async with claims_env(driver, roles=("binder", "provisioner"), **flags) as s:
        for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "c")):
            await s.node(name, zone)
        terms = [{"matchLabelExpressions": [{"key": scripted.ZONE, "values": allowed}]}] if allowed else []
        mode = "WaitForFirstConsumer" if selected else "Immediate"
        await s.storage_class(mode=mode, allowedTopologies=terms)
        await s.claim(notes={SELECTED_NODE_ANNOTATION: selected} if selected else {})
        _, held = await s.bound()
        (request,) = driver.requests_of("CreateVolume")
        if requisite is None:
            assert not request.HasField("accessibility_requirements")
            return
        asked = request.accessibility_requirements
        assert [t.segments[scripted.ZONE] for t in asked.requisite] == requisite
        first = [t.segments[scripted.ZONE] for t in asked.preferred]
        assert sorted(first) == requisite
        assert preferred in (None, first)
        assert held.spec.node_affinity is not None
        assert held.spec.node_affinity.required is not None
        (term,) = held.spec.node_affinity.required.node_selector_terms
        (expression,) = term.match_expressions
        assert (expression.key, expression.operator, expression.values) == (
            scripted.ZONE,
            "In",
            (first[0],),
        )


async def test_claims_of_a_stateful_set_go_round_the_zones() -> None:
    driver = scripted.driver("topology")
    async with claims_env(driver, roles=("binder", "provisioner")) as s:
        for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "c")):
            await s.node(name, zone)
        await s.storage_class()
        for i in range(3):
            await s.claim(f"data-db-{i}")
        requests = await s.called("CreateVolume", 3)
        firsts = {r.accessibility_requirements.preferred[0].segments[scripted.ZONE] for r in requests}
        assert firsts == {"a", "b", "c"}


async def test_a_node_without_a_registration_is_given_back() -> None:
    driver = scripted.driver("topology")
    async with claims_env(driver, roles=("binder", "provisioner")) as s:
        await s.storage_class(mode="WaitForFirstConsumer")
        await s.claim(notes={SELECTED_NODE_ANNOTATION: "unknown"})
        await s.event("ProvisioningFailed", "error generating accessibility requirements")

        async def given_back() -> bool:
            mine = await s.find(PersistentVolumeClaim, "data")
            return SELECTED_NODE_ANNOTATION not in mine.metadata.annotations

        await until(given_back, PATIENCE)
        assert driver.calls == []
