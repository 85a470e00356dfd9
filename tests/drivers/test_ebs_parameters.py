"""StorageClass parameters, sizes and access modes of the EBS driver."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, Code
from volplane.drivers.ebs import format_options, parameters, snapshot_parameters
from volplane.drivers.ebs.device_names import DeviceNames
from volplane.drivers.ebs.parameters import GIB, DiskParameters

MODE = v1.VolumeCapability.AccessMode


def test_keys_are_read_in_any_case() -> None:
    disk = parameters.parse({"Type": "IO2", "iopsPerGB": "50", "Encrypted": "true", "kmsKeyId": "k"})
    tags = {"ebs.csi.aws.com/IOPSPerGb": "50"}
    assert disk == DiskParameters(type="io2", iops_per_gib=50, encrypted=True, key="k", tags=tags)
    assert disk.request(10, "z") == {
        "Size": "10",
        "AvailabilityZone": "z",
        "VolumeType": "io2",
        "Iops": "500",
        "Encrypted": "true",
        "KmsKeyId": "k",
    }


def test_metadata_and_tag_parameters_become_tags() -> None:
    disk = parameters.parse({"csi.storage.k8s.io/pvc/name": "data", "tagSpecification_1": "team=storage"})
    assert disk.tags == {"kubernetes.io/created-for/pvc/name": "data", "team": "storage"}
    named = {"tagSpecification_2": "of={{ .PVCName }} in {{.PVCNamespace}}"}
    disk = parameters.parse({**named, "csi.storage.k8s.io/pvc/name": "data"})
    assert disk.tags["of"] == "data in "


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"type": "floppy"},
        {"iops": "many"},
        {"encrypted": "perhaps"},
        {"iopsPerGB": "1", "type": "st1"},
        {"iopsPerGB": "1", "iops": "3000"},
        {"blockSize": "4 -n"},
        {"tagSpecification_1": "no value"},
        {"tagSpecification_1": "a={{ .PVCName | toUpper }}"},
        {"volumeInitializationRate": "fast"},
    ],
)
def test_nonsense_is_infeasible(wrong: dict[str, str]) -> None:
    with pytest.raises(CallError) as caught:
        parameters.parse(wrong)
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("kind", "required", "limit", "size"),
    [
        ("gp3", GIB, 0, 1),
        ("gp3", GIB + 1, 0, 2),
        ("gp3", 0, 0, 100),
        ("gp3", 0, 10 * GIB, 10),
        ("io2", GIB, 0, 4),
        ("st1", GIB, 0, 125),
        ("gp3", 3 * GIB, 3 * GIB, 3),
    ],
)
def test_sizes_are_rounded_up(kind: str, required: int, limit: int, size: int) -> None:
    assert (
        DiskParameters(type=kind).size(v1.CapacityRange(required_bytes=required, limit_bytes=limit)) == size
    )


@pytest.mark.parametrize(
    ("kind", "required", "limit"), [("gp3", 1, GIB - 1), ("gp2", 20000 * GIB, 0), ("io2", GIB, 2 * GIB)]
)
def test_sizes_that_no_disk_has(kind: str, required: int, limit: int) -> None:
    with pytest.raises(CallError) as caught:
        DiskParameters(type=kind).size(v1.CapacityRange(required_bytes=required, limit_bytes=limit))
    assert caught.value.code is Code.OUT_OF_RANGE


def test_a_disk_is_on_one_node() -> None:
    fine = [
        convert.capability(MODE.SINGLE_NODE_WRITER, fs_type="xfs"),
        convert.capability(MODE.SINGLE_NODE_WRITER, block=True),
    ]
    assert parameters.unsupported_reason(fine) == ""
    shared = [convert.capability(MODE.MULTI_NODE_MULTI_WRITER, block=True)]
    assert parameters.unsupported_reason(shared) == ""
    assert parameters.needs_multi_attach(shared)
    assert not parameters.needs_multi_attach(fine)
    assert "MULTI_NODE_MULTI_WRITER" in parameters.unsupported_reason(
        [convert.capability(MODE.MULTI_NODE_MULTI_WRITER)]
    )
    assert "fat" in parameters.unsupported_reason(
        [convert.capability(MODE.SINGLE_NODE_WRITER, fs_type="fat")]
    )


def test_device_names_are_given_once() -> None:
    names = DeviceNames()
    assert [names.reserve("i-1"), names.reserve("i-1"), names.reserve("i-2")] == [
        "/dev/xvdba",
        "/dev/xvdbb",
        "/dev/xvdba",
    ]
    names.finish_attach("i-1", "/dev/xvdba", attached=False)
    assert names.reserve("i-1") == "/dev/xvdba"
    names.finish_attach("i-1", "/dev/xvdba", attached=True)
    names.refresh("i-1", ["/dev/xvda1", "/dev/xvdba", "/dev/xvdbc"])
    assert names.reserve("i-1") == "/dev/xvdbd"  # xvdbb is still on its way
    names.free("i-1", "/dev/xvdbc")
    assert names.reserve("i-1") == "/dev/xvdbc"


def test_names_end() -> None:
    names = DeviceNames()
    assert len({names.reserve("i-1") for _ in range(78)}) == 78
    assert names.reserve("i-1") == ""


def test_what_a_class_says_to_sidecars_is_passed_over_where_it_comes_unstripped() -> None:
    given = {
        "type": "gp3",
        "csi.storage.k8s.io/fstype": "xfs",
        "csi.storage.k8s.io/node-stage-secret-name": "s",
    }
    assert parameters.driver_parameters(given) == {"type": "gp3"}


ACCEPTED = {
    **dict.fromkeys(("iops", "throughput", "volumeInitializationRate", "blockSize", "inodeSize"), "1"),
    **dict.fromkeys(("iopsPerGB", "bytesPerInode", "numberOfInodes", "ext4ClusterSize"), "1"),
    **dict.fromkeys(("encrypted", "ext4BigAlloc", "ext4EncryptionSupport", "blockExpress"), "true"),
    **dict.fromkeys(("allowAutoIOPSPerGBIncrease", "allowAutoIOPSIncreaseOnModify"), "true"),
    "blockAttachUntilInitialized": "true",
    "csi.storage.k8s.io/fstype": "ext4",
    "csi.storage.k8s.io/pv/name": "pv",
    "fstype": "ext4",
    "kmsKeyId": "k",
    "tagSpecification_1": "a=b",
    "type": "gp3",
}


@pytest.mark.parametrize("key", ACCEPTED)
def test_every_parameter_of_awss_driver_is_known(key: str) -> None:
    parameters.parse({key: ACCEPTED[key]})


def test_what_a_snapshot_is_restored_with_is_asked_for() -> None:
    disk = parameters.parse({"volumeInitializationRate": "200"})
    assert disk.request(1, "z")["VolumeInitializationRate"] == "200"


EXT4, XFS = (convert.capability(MODE.SINGLE_NODE_WRITER, fs_type=kind) for kind in ("ext4", "xfs"))
RAW = convert.capability(MODE.SINGLE_NODE_WRITER, block=True)


@pytest.mark.parametrize(
    ("given", "capability", "arguments"),
    [
        ({"blockSize": "1024", "inodeSize": "512"}, EXT4, ["-b", "1024", "-I", "512"]),
        ({"blockSize": "1024", "inodeSize": "512"}, XFS, ["-b", "size=1024", "-i", "size=512"]),
        ({"bytesPerInode": "8192", "numberOfInodes": "100"}, EXT4, ["-i", "8192", "-N", "100"]),
        ({"ext4BigAlloc": "true", "ext4ClusterSize": "16384"}, EXT4, ["-O", "bigalloc", "-C", "16384"]),
        ({"ext4EncryptionSupport": "true"}, EXT4, ["-O", "encrypt"]),
        ({"ext4BigAlloc": "no"}, XFS, []),
    ],
)
def test_a_disk_is_formatted_as_its_class_says(
    given: dict[str, str], capability: v1.VolumeCapability, arguments: list[str]
) -> None:
    assert format_options.mkfs_arguments(parameters.parse(given).context, capability) == arguments


@pytest.mark.parametrize(
    ("given", "capability", "text"),
    [
        ({"blockSize": "1024"}, RAW, "Cannot use blockSize with block volume"),
        ({"numberOfInodes": "9"}, XFS, "Cannot use numberOfInodes with fstype xfs"),
        ({"ext4ClusterSize": "16384"}, EXT4, "Cannot set ext4ClusterSize when ext4BigAlloc is not true"),
    ],
)
def test_formats_that_do_not_exist(given: dict[str, str], capability: Any, text: str) -> None:
    with pytest.raises(CallError, match=text) as caught:
        format_options.mkfs_arguments(parameters.parse(given).context, capability)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_disk_keeps_its_iops_for_each_gib_when_it_is_expanded_if_its_class_says_so() -> None:
    tags = parameters.parse({"type": "io2", "iopsPerGB": "50", "allowAutoIOPSIncreaseOnModify": "true"}).tags
    assert parameters.grown_iops(tags, "io2", 10) == 500
    assert parameters.grown_iops({**tags, parameters.GROW_IOPS_TAG: "false"}, "io2", 10) == 0
    assert parameters.grown_iops({}, "io2", 10) == 0


def test_a_volume_attributes_class_may_change_tags() -> None:
    wanted = {"tagSpecification_1": "team=db", "tagDeletion_1": "old", "iopsPerGB": "50"}
    disk = parameters.parse_change({**wanted, "csi.storage.k8s.io/pvc/name": "data"})
    assert (disk.tags["team"], disk.removed_tags, disk.type) == ("db", ("old",), "")
    with pytest.raises(CallError, match="Invalid mutable parameter key: encrypted"):
        parameters.parse_change({"encrypted": "true"})


def test_the_parameters_of_a_snapshot_class() -> None:
    found = snapshot_parameters.parse(
        {
            "csi.storage.k8s.io/volumesnapshot/name": "s",
            "tagSpecification_1": "of={{ .VolumeSnapshotName }}",
            "fastSnapshotRestoreAvailabilityZones": "us-east-1a, us-east-1b",
            "lockMode": "governance",
            "lockDuration": "1",
            "lockCoolOffPeriod": "2",
            "lockExpirationDate": "2030-01-31T12:00:00Z",
        }
    )
    assert found.tags == {"kubernetes.io/created-for/volumesnapshot/name": "s", "of": "s"}
    assert found.fast_restore_zones == ("us-east-1a", "us-east-1b")
    assert found.lock == {
        "LockMode": "governance",
        "LockDuration": "1",
        "CoolOffPeriod": "2",
        "ExpirationDate": "2030-01-31T12:00:00Z",
    }


@pytest.mark.parametrize(
    "wrong",
    [{"outpostArn": "arn:aws:x"}, {"lockDuration": "long"}, {"lockExpirationDate": "tomorrow"}, {"a": "b"}],
)
def test_snapshot_parameters_that_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(CallError) as caught:
        snapshot_parameters.parse(wrong)
    assert caught.value.code is Code.INVALID_ARGUMENT
