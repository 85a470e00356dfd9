"""Contract provisioning C: classes of the in-tree EBS plugin, provisioned by its CSI driver."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.provisioning.claims_env import PATIENCE, ClaimsEnv, claims_env
from tests.loops.inprocess import running, until
from tests.support import scripted
from volplane import sdk
from volplane.api import codec
from volplane.api.annotations import (
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    PROVISIONED_BY_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
    STORAGE_RESIZER_ANNOTATION,
)
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import CSINode
from volplane.base import metrics
from volplane.controllers.expand.controller import Expansion
from volplane.sidecars.resizer import service as resizer

both = pytest.mark.both
DRIVER, PLUGIN = "ebs.csi.aws.com", "kubernetes.io/aws-ebs"
ZONE, CSI_ZONE = "topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"


async def add_node(s: ClaimsEnv, zone: str) -> None:
    labels = {ZONE: zone, CSI_ZONE: zone}
    await s.client.create(codec.convert(Node, {"metadata": {"name": "n", "labels": labels}}))
    drivers = [{"name": DRIVER, "nodeID": "n", "topologyKeys": [CSI_ZONE]}]
    await s.client.create(codec.convert(CSINode, {"metadata": {"name": "n"}, "spec": {"drivers": drivers}}))


def topologies(key: str, zone: str) -> list[dict[str, Any]]:
    return [{"matchLabelExpressions": [{"key": key, "values": [zone]}]}]


@both
async def test_an_in_tree_class_gives_an_in_tree_volume_that_its_driver_deletes() -> None:
    driver = scripted.driver("topology", name=DRIVER)
    async with claims_env(driver) as s:
        await add_node(s, "us-east-1a")
        parameters = {"fsType": "xfs", "iopsPerGB": "10", "type": "io1"}
        allowed = topologies("failure-domain.beta.kubernetes.io/zone", "us-east-1a")
        await s.storage_class(provisioner=PLUGIN, parameters=parameters, allowedTopologies=allowed)
        await s.claim()
        held, volume = await s.bound()
        (request,) = driver.requests_of("CreateVolume")
        assert request.parameters == {"iopsPerGB": "10", "type": "io1", "allowautoiopspergbincrease": "true"}
        assert request.volume_capabilities[0].mount.fs_type == "xfs"
        (term,) = request.accessibility_requirements.requisite
        assert dict(term.segments) == {CSI_ZONE: "us-east-1a"}
        _check_volume(volume)
        notes = held.metadata.annotations
        for name in (STORAGE_PROVISIONER_ANNOTATION, BETA_STORAGE_PROVISIONER_ANNOTATION):
            assert notes[name] == DRIVER
        assert notes[MIGRATED_TO_ANNOTATION] == DRIVER

        async def is_marked() -> bool:
            found = await s.find(PersistentVolume, volume.name)
            return bool(found.metadata.annotations.get(MIGRATED_TO_ANNOTATION) == DRIVER)

        await until(is_marked, PATIENCE)
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolume, volume.name)
        (deletion,) = driver.requests_of("DeleteVolume")
        assert deletion.volume_id == f"vol-{volume.name}"
        counted = metrics.render().decode()
        for method in ("CreateVolume", "DeleteVolume"):
            called = f'driver_name="{DRIVER}",grpc_status_code="OK",method_name="/csi.v1.Controller/{method}"'
            assert f'csi_sidecar_operations_seconds_count{{{called},migrated="true"}} ' in counted


def _check_volume(volume: PersistentVolume) -> None:
    assert volume.spec.csi is None
    assert volume.spec.aws_elastic_block_store is not None
    assert volume.spec.aws_elastic_block_store.volume_id == f"vol-{volume.name}"
    assert volume.spec.aws_elastic_block_store.fs_type == "xfs"
    assert volume.metadata.annotations[PROVISIONED_BY_ANNOTATION] == PLUGIN
    assert volume.metadata.labels == {ZONE: "us-east-1a", "topology.kubernetes.io/region": "us-east-1"}


@both
async def test_a_volume_in_a_zone_that_is_not_of_aws_is_deleted_again() -> None:
    driver = scripted.driver("topology", name=DRIVER)
    async with claims_env(driver) as s:
        await add_node(s, "rack-7")
        await s.storage_class(provisioner=PLUGIN)
        await s.claim()
        await s.event(
            "ProvisioningFailed",
            'failed to translate the volume to its in-tree form: "rack-7" is not the name of an AWS zone',
        )
        await s.called("DeleteVolume")
        assert await s.volumes() == []


@both
async def test_a_class_that_cannot_be_translated_is_named() -> None:
    driver = scripted.driver(name=DRIVER)
    async with claims_env(driver) as s:
        allowed = topologies(ZONE, "us-east-1a")
        await s.storage_class(provisioner=PLUGIN, parameters={"zone": "a"}, allowedTopologies=allowed)
        await s.claim()
        await s.event(
            "ProvisioningFailed", "failed to translate storage class: StorageClass fast: parameters"
        )
        assert not driver.requests_of("CreateVolume")


@both
async def test_the_same_driver_still_makes_csi_volumes_for_its_own_classes() -> None:
    driver = scripted.driver(name=DRIVER)
    async with claims_env(driver) as s:
        await s.storage_class(provisioner=DRIVER)
        await s.claim()
        _, volume = await s.bound()
        assert volume.spec.csi is not None
        assert volume.metadata.annotations[PROVISIONED_BY_ANNOTATION] == DRIVER


@pytest.mark.virtual
async def test_an_in_tree_volume_is_expanded_by_the_resizer_of_its_driver() -> None:
    driver = scripted.driver("expand", name=DRIVER)
    async with claims_env(driver) as s:
        await s.storage_class(provisioner=PLUGIN, allowVolumeExpansion=True)
        await s.claim()
        _, volume = await s.bound()
        caller = sdk.Local(driver, component="csi-resizer")
        client = s.around.role("csi-resizer")
        resizing = resizer.run(client, resizer.ResizerOptions(), caller=caller, identity="me")
        async with running(Expansion(s.around.role("expand")).run(), resizing):
            size = {"resources": {"requests": {"storage": "2Gi"}}}
            await s.edit(PersistentVolumeClaim, "data", {"spec": size})
            (request,) = await s.called("ControllerExpandVolume")
            await s.event("FileSystemResizeRequired")
        await caller.close()
        assert request.volume_id == f"vol-{volume.name}"
        claim = await s.find(PersistentVolumeClaim, "data")
        assert claim.metadata.annotations[STORAGE_RESIZER_ANNOTATION] == DRIVER
        grown = await s.find(PersistentVolume, volume.name)
        assert grown.spec.capacity == {"storage": "2Gi"}
        assert grown.spec.aws_elastic_block_store == volume.spec.aws_elastic_block_store
