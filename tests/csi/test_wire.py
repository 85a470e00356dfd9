"""The messages and services are CSI v1.12's: counted, and spot-checked where a wrong number would do harm."""

from __future__ import annotations

import pytest

from volplane.csi import redact, v1
from volplane.csi.services import METHODS, SERVICES


def test_all_services_and_methods_are_there() -> None:
    assert {name: len(methods) for name, methods in SERVICES.items()} == {
        "csi.v1.Identity": 3,
        "csi.v1.Controller": 15,
        "csi.v1.GroupController": 4,
        "csi.v1.SnapshotMetadata": 2,
        "csi.v1.Node": 8,
        "pluginregistration.Registration": 2,
    }
    assert METHODS["NodeStageVolume"].path == "/csi.v1.Node/NodeStageVolume"
    assert [m.name for m in METHODS.values() if m.streams] == ["GetMetadataAllocated", "GetMetadataDelta"]


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (v1.ControllerPublishVolumeRequest(volume_id="v", node_id="n", readonly=True), "0a01761201 6e2001"),
        (v1.NodePublishVolumeRequest(staging_target_path="s", target_path="t"), "1a0173 220174"),
        (v1.CapacityRange(required_bytes=1, limit_bytes=2), "0801 1002"),
        (v1.VolumeCapability(block=v1.VolumeCapability.BlockVolume()), "0a00"),
        (v1.NodeGetInfoResponse(node_id="i", max_volumes_per_node=28), "0a0169 101c"),
    ],
)
def test_field_numbers(message: object, wire: str) -> None:
    assert message.SerializeToString(deterministic=True) == bytes.fromhex(wire)  # type: ignore[attr-defined]


def test_secrets_never_reach_a_log_line() -> None:
    request = v1.NodeStageVolumeRequest(volume_id="vol-1", secrets={"password": "hunter2"})
    request.volume_capability.mount.fs_type = "ext4"
    line = redact.text(request)
    assert "hunter2" not in line
    assert "password" not in line
    assert '"secrets":"***stripped***"' in line
    assert '"fs_type":"ext4"' in line


def test_enums_and_lists_are_readable() -> None:
    kind = v1.NodeServiceCapability.RPC
    reply = v1.NodeGetCapabilitiesResponse(
        capabilities=[v1.NodeServiceCapability(rpc=kind(type=kind.STAGE_UNSTAGE_VOLUME))]
    )
    assert redact.text(reply) == '{"capabilities":[{"rpc":{"type":"STAGE_UNSTAGE_VOLUME"}}]}'
    assert (
        redact.text(v1.GetCapacityResponse(maximum_volume_size={"value": 5})) == '{"maximum_volume_size":"5"}'
    )
