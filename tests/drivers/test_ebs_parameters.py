"""StorageClass parameters, sizes and access modes of the EBS driver."""

from __future__ import annotations

import pytest

from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, Code
from volplane.drivers.ebs import parameters
from volplane.drivers.ebs.device_names import DeviceNames
from volplane.drivers.ebs.parameters import GIB, DiskParameters

MODE = v1.VolumeCapability.AccessMode


def test_keys_are_read_in_any_case() -> None:
    disk = parameters.parse({"Type": "IO2", "iopsPerGB": "50", "Encrypted": "true", "kmsKeyId": "k"})
    assert disk == DiskParameters(type="io2", iops_per_gib=50, encrypted=True, key="k")
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"type": "floppy"},
        {"iops": "many"},
        {"encrypted": "perhaps"},
        {"iopsPerGB": "1", "type": "st1"},
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
