"""Access modes as the attacher, the node and the provisioner read them."""

from __future__ import annotations

import pytest

from volplane.csi import convert, v1
from volplane.csi.convert import ROX, RWO, RWOP, RWX

MODE = v1.VolumeCapability.AccessMode


@pytest.mark.parametrize(
    ("modes", "plain", "precise"),
    [
        ([RWO], MODE.SINGLE_NODE_WRITER, MODE.SINGLE_NODE_MULTI_WRITER),
        ([RWOP], MODE.SINGLE_NODE_WRITER, MODE.SINGLE_NODE_SINGLE_WRITER),
        ([ROX], MODE.MULTI_NODE_READER_ONLY, MODE.MULTI_NODE_READER_ONLY),
        ([RWO, RWX], MODE.MULTI_NODE_MULTI_WRITER, MODE.MULTI_NODE_MULTI_WRITER),
        ([ROX, RWO, RWX], MODE.MULTI_NODE_MULTI_WRITER, MODE.MULTI_NODE_MULTI_WRITER),
    ],
)
def test_one_attach_mode_for_all_modes(modes: list[str], plain: int, precise: int) -> None:
    assert convert.attach_access_mode(modes) == plain
    assert convert.attach_access_mode(modes, multi_writer=True) == precise


@pytest.mark.parametrize("modes", [[RWO, ROX], [RWOP, RWO], [RWOP, RWX], [], ["Sometimes"]])
def test_modes_that_cannot_be_expressed(modes: list[str]) -> None:
    with pytest.raises(convert.UnsupportedModes):
        convert.attach_access_mode(modes)


def test_the_node_takes_the_first_mode() -> None:
    assert convert.node_access_mode([RWOP, RWO]) == MODE.SINGLE_NODE_WRITER
    assert convert.node_access_mode([RWX, RWO]) == MODE.MULTI_NODE_MULTI_WRITER
    assert convert.node_access_mode([]) == MODE.SINGLE_NODE_WRITER
    assert convert.node_access_mode([], multi_writer=True) == MODE.SINGLE_NODE_MULTI_WRITER


def test_capabilities() -> None:
    block = convert.capability(MODE.SINGLE_NODE_WRITER, block=True, fs_type="ext4")
    assert block.WhichOneof("access_type") == "block"
    mount = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type="xfs", mount_flags=["noatime"], group="1000")
    assert (mount.mount.fs_type, list(mount.mount.mount_flags)) == ("xfs", ["noatime"])
    assert mount.mount.volume_mount_group == "1000"
