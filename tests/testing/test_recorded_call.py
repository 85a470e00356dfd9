"""Recorded calls as messages."""

from __future__ import annotations

from volplane.csi import redact, v1
from volplane.csi.call_interceptor import CsiCall
from volplane.testing.recorded_call import RecordedCall

CAPABILITY = v1.VolumeCapability(
    mount={"fs_type": "xfs", "mount_flags": ["noexec"]}, access_mode={"mode": "SINGLE_NODE_WRITER"}
)


def record(request: v1.CreateVolumeRequest, reply: v1.CreateVolumeResponse | None) -> RecordedCall:
    text = redact.text(reply) if reply is not None else ""
    code = "OK" if reply is not None else ""
    call = CsiCall(
        1, "CreateVolume", "csi-provisioner", "/csi.sock", redact.text(request), 0.0, 1.5, code, text
    )
    return RecordedCall(call)


def test_request_and_response_are_messages() -> None:
    request = v1.CreateVolumeRequest(
        name="pvc-1",
        capacity_range={"required_bytes": 1 << 40},
        parameters={"type": "gp3"},
        volume_capabilities=[v1.VolumeCapability(block={}, access_mode={"mode": "SINGLE_NODE_WRITER"})],
    )
    reply = v1.CreateVolumeResponse(volume={"volume_id": "vol-1", "volume_context": {"a": "b"}})
    found = record(request, reply)
    assert found.request == request
    assert found.response == reply
    assert (found.method, found.code, found.seconds) == ("CreateVolume", "OK", 1.5)


def test_secrets_are_left_out() -> None:
    request = v1.CreateVolumeRequest(
        name="pvc-1", secrets={"key": "sesame"}, volume_capabilities=[CAPABILITY]
    )
    found = record(request, None)
    assert found.response is None
    assert found.request.name == "pvc-1"
    assert dict(found.request.secrets) == {}
    assert found.request.volume_capabilities[0].mount.fs_type == "xfs"
    assert "sesame" not in repr(found)


def test_times_and_wrappers_are_kept() -> None:
    snapshot = v1.Snapshot(snapshot_id="snap-1", creation_time={"seconds": 1_700_000_000}, ready_to_use=True)
    reply = v1.CreateSnapshotResponse(snapshot=snapshot)
    request = v1.CreateSnapshotRequest(name="s", source_volume_id="vol-1")
    call = CsiCall(
        1,
        "CreateSnapshot",
        "snapshotter",
        "/csi.sock",
        redact.text(request),
        0.0,
        1.0,
        "OK",
        redact.text(reply),
    )
    assert RecordedCall(call).response == reply
    probe = v1.ProbeResponse(ready={"value": True})
    call = CsiCall(2, "Probe", "livenessprobe", "/csi.sock", "{}", 0.0, 1.0, "OK", redact.text(probe))
    assert RecordedCall(call).response == probe
