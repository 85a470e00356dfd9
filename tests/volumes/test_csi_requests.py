"""Fields of the node's CSI requests, and when the kubelet applies the fsGroup."""

from __future__ import annotations

import json
from typing import Any

import pytest

from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, Pod, Volume
from volplane.api.storage import CSIDriver
from volplane.csi import v1
from volplane.volumes.base import PodVolumeSpec, VolumeOperationError
from volplane.volumes.csi import request
from volplane.volumes.csi.drivers import Rpc

Mode = v1.VolumeCapability.AccessMode


def spec(
    modes: tuple[str, ...] = ("ReadWriteOnce",),
    *,
    fs_type: str = "ext4",
    group: int | None = 7,
    readonly: bool = False,
) -> PodVolumeSpec:
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"securityContext": {}}}
    if group is not None:
        pod["spec"] = {"securityContext": {"fsGroup": group}}
    volume = {
        "metadata": {"name": "pv"},
        "spec": {
            "accessModes": list(modes),
            "mountOptions": ["noatime"],
            "csi": {
                "driver": "d.test",
                "volumeHandle": "v-1",
                "fsType": fs_type,
                "volumeAttributes": {"k": "v"},
            },
        },
    }
    return PodVolumeSpec(
        "kubernetes.io/csi",
        "kubernetes.io/csi/d.test^v-1",
        "pv",
        convert(Pod, pod),
        Volume(name="data"),
        volume=convert(PersistentVolume, volume),
        readonly=readonly,
    )


def inline(fs_type: str = "ext4") -> PodVolumeSpec:
    pod = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": {"securityContext": {"fsGroup": 7}},
    }
    source = convert(Volume, {"name": "data", "csi": {"driver": "d.test", "fsType": fs_type}})
    return PodVolumeSpec("kubernetes.io/csi", "kubernetes.io/csi/u-data", "data", convert(Pod, pod), source)


def driver(**fields: Any) -> CSIDriver:
    return convert(CSIDriver, {"metadata": {"name": "d.test"}, "spec": fields})


NONE: frozenset[int] = frozenset()
GROUPS = {
    "File always": (spec(("ReadWriteMany",), fs_type=""), driver(fsGroupPolicy="File"), NONE, True),
    "File, read-only": (spec(readonly=True), driver(fsGroupPolicy="File"), NONE, False),
    "None never": (spec(), driver(fsGroupPolicy="None"), NONE, False),
    "default: one writer with a file system": (spec(), driver(), NONE, True),
    "default without a CSIDriver": (spec(), None, NONE, True),
    "default, no file system type": (spec(fs_type=""), driver(), NONE, False),
    "default, many writers": (spec(("ReadWriteMany",)), driver(), NONE, False),
    "default, inline counts as one writer": (inline(), driver(), NONE, True),
    "no group asked for": (spec(group=None), driver(fsGroupPolicy="File"), NONE, False),
    "the driver does it": (spec(), driver(fsGroupPolicy="File"), frozenset({Rpc.VOLUME_MOUNT_GROUP}), False),
}


@pytest.mark.parametrize(("wanted", "about", "can", "changes"), GROUPS.values(), ids=GROUPS)
def test_who_changes_the_group(
    wanted: PodVolumeSpec, about: CSIDriver | None, can: frozenset[int], changes: bool
) -> None:
    assert request.node_applies_fs_group(wanted, about, can) is changes


@pytest.mark.parametrize(
    ("modes", "can", "mode"),
    [
        (("ReadWriteOnce",), NONE, Mode.SINGLE_NODE_WRITER),
        ((), NONE, Mode.SINGLE_NODE_WRITER),
        (("ReadOnlyMany", "ReadWriteOnce"), NONE, Mode.MULTI_NODE_READER_ONLY),
        (("ReadWriteOncePod",), NONE, Mode.SINGLE_NODE_WRITER),
        (
            ("ReadWriteOncePod",),
            frozenset({Rpc.SINGLE_NODE_MULTI_WRITER}),
            Mode.SINGLE_NODE_SINGLE_WRITER,
        ),
        (("ReadWriteOnce",), frozenset({Rpc.SINGLE_NODE_MULTI_WRITER}), Mode.SINGLE_NODE_MULTI_WRITER),
    ],
)
def test_the_first_mode_counts(modes: tuple[str, ...], can: frozenset[int], mode: int) -> None:
    made = request.capability(spec(modes), can, group=None)
    assert made.access_mode.mode == mode
    assert list(made.mount.mount_flags) == ["noatime"]


def test_a_driver_that_can_gets_the_group_passed() -> None:
    can = frozenset({Rpc.VOLUME_MOUNT_GROUP})
    assert request.capability(spec(), can, group=7).mount.volume_mount_group == "7"
    assert request.capability(spec(), NONE, group=7).mount.volume_mount_group == ""


def test_modes_of_life_that_a_driver_does_not_offer() -> None:
    with pytest.raises(VolumeOperationError) as failure:
        request.check_lifecycle(inline(), None)
    assert (
        str(failure.value) == 'volume mode "Ephemeral" not supported by driver d.test (no CSIDriver object)'
    )
    with pytest.raises(VolumeOperationError, match="only supports"):
        request.check_lifecycle(inline(), driver())
    with pytest.raises(VolumeOperationError, match="Persistent"):
        request.check_lifecycle(spec(), driver(volumeLifecycleModes=["Ephemeral"]))
    request.check_lifecycle(inline(), driver(volumeLifecycleModes=["Ephemeral", "Persistent"]))


def test_the_attributes_of_the_volume_are_never_changed() -> None:
    wanted = spec()
    request.volume_attributes(wanted)["x"] = "y"
    assert request.volume_attributes(wanted) == {"k": "v"}


def test_tokens_keep_their_audiences() -> None:
    made = request.token_attributes(
        [("", "t1", "2026-01-01T00:00:00Z"), ("vault", "t2", "2026-01-01T00:00:00Z")]
    )
    body = json.loads(made["csi.storage.k8s.io/serviceAccount.tokens"])
    assert body[""]["token"] == "t1"
    assert body["vault"]["expirationTimestamp"] == "2026-01-01T00:00:00Z"
    assert request.token_attributes([]) == {}


def test_what_a_later_life_must_know() -> None:
    known = request.pod_data(spec(), "n")
    assert known.pop("attachmentID").startswith("csi-")
    assert known == {
        "driverName": "d.test",
        "nodeName": "n",
        "specVolID": "pv",
        "volumeHandle": "v-1",
        "volumeLifecycleMode": "Persistent",
    }
