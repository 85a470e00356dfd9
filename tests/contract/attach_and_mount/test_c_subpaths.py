"""Section C8: a subPath never leads out of its volume, whatever the pod puts there and whenever."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.node.node_env import NodeEnv, write
from volplane.api.core import Pod
from volplane.host import files, mounts

pytestmark = pytest.mark.root

SECRET = "outside the volume"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    inside = tmp_path / "volume"
    (inside / "dir").mkdir(parents=True)
    write(inside / "dir" / "file", "inside")
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside" / "file", SECRET)
    return inside


def swap(volume: Path, stop: threading.Event, target: str) -> None:
    """Exchange a directory and a link to somewhere else, over and over."""
    link, kept = volume / "link", volume / "kept"
    link.symlink_to(target)
    while not stop.is_set():
        os.rename(volume / "dir", kept)
        os.rename(link, volume / "dir")
        os.rename(volume / "dir", link)
        os.rename(kept, volume / "dir")


@pytest.mark.parametrize("target", ["/", "../outside"])
def test_subpath_swapped_to_a_symlink_between_check_and_mount_mount_refused(
    volume: Path, tmp_path: Path, target: str
) -> None:
    stop = threading.Event()
    attacker = threading.Thread(target=swap, args=(volume, stop, target))
    attacker.start()
    mounted = refused = 0
    place = str(tmp_path / "target")
    inside = os.stat(volume).st_dev, {e.inode() for e in os.scandir(volume)}
    try:
        for _ in range(400):
            try:
                files.bind_below(str(volume), "dir", place)
            except OSError:
                refused += 1
                continue
            mounted += 1
            info = os.stat(place)
            try:
                assert (info.st_dev, info.st_ino in inside[1]) == (inside[0], True)
                assert not os.path.exists(f"{place}/etc")
                if os.path.exists(f"{place}/file"):
                    assert Path(f"{place}/file").read_text() == "inside"
            finally:
                mounts.unmount(place)
    finally:
        stop.set()
        attacker.join()
        while mounts.unmount(place):
            pass
    assert refused + mounted == 400
    files.bind_below(str(volume), "dir", place)  # it was the attack that was refused, and nothing else
    mounts.unmount(place)


@pytest.mark.parametrize("subpath", ["/etc", "../outside", "dir/../../outside", ".."])
def test_absolute_and_climbing_paths_are_refused(volume: Path, tmp_path: Path, subpath: str) -> None:
    with pytest.raises(files.PathEscapesVolume):
        files.bind_below(str(volume), subpath, str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_missing_directory_is_never_made_through_a_link(volume: Path, tmp_path: Path) -> None:
    (volume / "out").symlink_to("../outside")
    with pytest.raises(OSError, match="link"):
        files.make_directory(str(volume), "out/new/deep")
    assert not (tmp_path / "outside" / "new").exists()


def test_a_link_that_stays_inside_the_volume_is_followed(volume: Path, tmp_path: Path) -> None:
    (volume / "alias").symlink_to("dir")
    place = str(tmp_path / "target")
    files.bind_below(str(volume), "alias", place)
    try:
        assert Path(f"{place}/file").read_text() == "inside"
    finally:
        mounts.unmount(place)


def test_a_single_file_is_bound_as_a_file(volume: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "target")
    files.bind_below(str(volume), "dir/file", place)
    try:
        assert Path(place).read_text() == "inside"
    finally:
        mounts.unmount(place)


async def attacked(here: NodeEnv, command: str, subpath: str) -> Pod:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()
    init = {
        "name": "evil",
        "image": "busybox",
        "command": ["sh", "-c", command],
        "volumeMounts": [{"name": "data", "mountPath": "/v"}],
    }
    return await here.pod(
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        mounts=[{"name": "data", "mountPath": "/x", "subPath": subpath}],
        initContainers=[init],
        container={"image": "busybox", "command": ["sh", "-c", "ls /x; exec sleep 1000"]},
    )


@pytest.mark.parametrize(
    ("command", "subpath"),
    [
        ("ln -s / /v/root", "root"),
        ("ln -s / /v/root", "root/etc"),
        ("mkdir /v/a; ln -s ../../.. /v/a/up", "a/up"),
        ("ln -s /proc/1/root /v/magic", "magic/etc"),
    ],
)
async def test_symlink_to_root_exposes_nothing_and_names_no_path_of_the_machine(
    command: str, subpath: str
) -> None:
    async with node_world() as here:
        await attacked(here, command, subpath)
        reported = await here.wait_for_event("subPath")
        assert reported in (
            'Error: failed to prepare subPath for volumeMount "data" of container "main"',
            'Error: failed to create subPath directory for volumeMount "data" of container "main"',
        )
        assert await here.phase() != "Running"
        await here.delete(grace=0)
        await here.wait_for_phase("gone")
