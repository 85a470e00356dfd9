"""Atomic files, and access to volumes whose owner is hostile."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from volplane.base.files import atomic_write, remove_with_leftovers
from volplane.host import Host, NodePaths, PathEscapesVolume
from volplane.host.files import make_directory, open_below, split_subpath


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "vol_data.json"
    atomic_write(str(file), b"one", 0o640)
    atomic_write(str(file), b"two", 0o640, durable=True)
    assert file.read_bytes() == b"two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["vol_data.json"]


def test_a_file_goes_with_what_killed_writers_have_left(tmp_path: Path) -> None:
    file, other = tmp_path / "vol_data.json", tmp_path / ".vol_data.json.keep"
    atomic_write(str(file), b"one")
    (tmp_path / ".vol_data.json.4711.7f0.tmp").write_bytes(b"tw")
    other.touch()
    for _ in range(2):
        remove_with_leftovers(str(file))
    assert os.listdir(tmp_path) == [other.name]
    remove_with_leftovers(str(tmp_path / "gone" / "vol_data.json"))


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_write(str(tmp_path / "taken"), b"x")
    assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../x"])
def test_paths_that_climb_are_refused(path: str) -> None:
    with pytest.raises(PathEscapesVolume):
        split_subpath(path)


def test_a_missing_subpath_is_made_with_the_roots_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    make_directory(str(tmp_path), "a/./b")
    make_directory(str(tmp_path), "a/b/c")
    assert all(stat.S_IMODE((tmp_path / p).stat().st_mode) == 0o2775 for p in ("a", "a/b", "a/b/c"))


def test_a_subpath_is_not_made_through_a_link(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    (volume / "link").symlink_to(outside)
    with pytest.raises(PathEscapesVolume):
        make_directory(str(volume), "link/made")
    assert not (outside / "made").exists()


def test_a_link_inside_the_volume_is_followed_and_one_out_of_it_is_not(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "real").mkdir(parents=True)
    (volume / "inside").symlink_to("real")
    (volume / "outside").symlink_to("/etc")
    with open_below(str(volume), "inside") as descriptor:
        assert os.path.samestat(os.fstat(descriptor), os.stat(volume / "real"))
    with pytest.raises(PathEscapesVolume), open_below(str(volume), "outside"):
        pass


def test_a_link_swapped_in_after_resolving_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "volume"
    (volume / "sub").mkdir(parents=True)
    resolve = os.path.realpath

    def swap(path: str) -> str:
        resolved = resolve(path)
        if resolved.endswith("/sub"):
            (volume / "sub").rmdir()
            (volume / "sub").symlink_to("/")
        return resolved

    monkeypatch.setattr(os.path, "realpath", swap)
    with pytest.raises(PathEscapesVolume), open_below(str(volume), "sub"):
        pass


@pytest.mark.root
async def test_a_subpath_is_bound_and_its_bind_kept(host: Host, room: Path) -> None:
    volume, target = room / "volume", room / "subpaths" / "0"
    (volume / "a").mkdir(parents=True)
    (volume / "a" / "file").write_text("x")
    await host.bind_below(str(volume), "a", str(target))
    await host.bind_below(str(volume), "a", str(target))
    assert (target / "file").read_text() == "x"
    assert len((await host.mounts()).under(str(target))) == 1
    await host.bind_below(str(volume), "a/file", str(room / "subpaths" / "1"), readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (room / "subpaths" / "1").write_text("y")


@pytest.mark.root
async def test_a_group_gets_a_volume(host: Host, room: Path) -> None:
    volume, outside = room / "volume", room / "outside"
    (volume / "directory").mkdir(parents=True, mode=0o700)
    (volume / "directory" / "file").touch(mode=0o600)
    outside.touch(mode=0o600)
    (volume / "link").symlink_to(outside)
    assert await host.apply_fs_group(str(volume), 4242) == 4
    assert stat.S_IMODE((volume / "directory" / "file").stat().st_mode) == 0o660
    assert (volume / "directory").stat().st_mode & 0o2770 == 0o2770
    assert {p.lstat().st_gid for p in (volume, *volume.rglob("*"))} == {4242}
    assert (outside.stat().st_gid, stat.S_IMODE(outside.stat().st_mode)) == (0, 0o600)


@pytest.mark.root
async def test_a_volume_whose_root_fits_is_not_walked_again(host: Host, room: Path) -> None:
    await host.apply_fs_group(str(room), 4242)
    (room / "later").touch(mode=0o600)
    assert await host.apply_fs_group(str(room), 4242, only_if_root_differs=True) == 0
    assert await host.apply_fs_group(str(room), 4243, only_if_root_differs=True) == 2


def test_wire_and_real_paths_of_a_node_among_several() -> None:
    paths = NodePaths("/d/n/1")
    assert paths.real("/var/lib/kubelet") == "/d/n/1"
    assert (
        paths.real(paths.csi_target("uid", "pv-1")) == "/d/n/1/pods/uid/volumes/kubernetes.io~csi/pv-1/mount"
    )
    assert paths.real("/dev/xvdba") == "/d/n/1/dev/xvdba"
    assert paths.wire("/d/n/1/dev/xvdba") == "/dev/xvdba"
    assert paths.real("/var/lib/kubelet2") == "/var/lib/kubelet2"
    assert paths.real("/etc/hosts") == "/etc/hosts"
    log = paths.log_file("ns", "pod", "uid", "c", 2)
    assert log == "/var/log/pods/ns_pod_uid/c/2.log"
    assert paths.real(log) == "/d/n/1/logs/ns_pod_uid/c/2.log"
    for wire in (log, paths.registry, paths.staging("d", "h")):
        assert paths.wire(paths.real(wire)) == wire


def test_a_real_node_has_its_own_paths() -> None:
    paths = NodePaths("/var/lib/kubelet", identity=True)
    assert paths.real("/dev/xvdba") == "/dev/xvdba"
    assert paths.dev == "/dev"
    staging = paths.staging("ebs.csi.aws.com", "vol-1")
    assert paths.real(staging) == staging
    assert staging.startswith("/var/lib/kubelet/plugins/kubernetes.io/csi/ebs.csi.aws.com/")


def test_a_node_behind_a_link_has_real_paths_as_the_mount_table_names_them(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    named, real = f"{tmp_path}/link/n", f"{tmp_path}/real/n"
    among, alone = NodePaths(named), NodePaths(named, identity=True)
    assert (among.root, alone.root) == (real, real)
    assert among.real("/var/lib/kubelet/pods/u") == f"{real}/pods/u"
    # The wire has the name that the node was given, since drivers were given it, too.
    assert alone.pod("u") == f"{named}/pods/u"
    assert alone.real(alone.pod("u")) == f"{real}/pods/u"
    assert alone.wire(f"{real}/pods/u") == alone.pod("u")


def test_the_layout_is_the_contracts() -> None:
    paths = NodePaths("/d/n/1")
    root, digest = "/var/lib/kubelet", "d1d1c0ffee"
    assert paths.staging("d", "h").split("/")[-2] != digest
    assert len(paths.staging("d", "h").split("/")[-2]) == 64
    csi = f"{root}/plugins/kubernetes.io/csi"
    assert paths.staging_data("d", "h") == paths.staging("d", "h").replace("globalmount", "vol_data.json")
    assert paths.csi_data("u", "s") == f"{root}/pods/u/volumes/kubernetes.io~csi/s/vol_data.json"
    assert paths.block_staging("s") == f"{csi}/volumeDevices/staging/s"
    assert paths.block_target("u", "s") == f"{csi}/volumeDevices/publish/s/u"
    assert paths.block_map("u", "s") == f"{csi}/volumeDevices/s/dev/u"
    assert paths.block_data("s") == f"{csi}/volumeDevices/s/data/vol_data.json"
    assert paths.block_link("u", "s") == f"{root}/pods/u/volumeDevices/kubernetes.io~csi/s"
    assert paths.subpath("u", "s", "c", 0) == f"{root}/pods/u/volume-subpaths/s/c/0"
    assert (
        paths.volume("u", "kubernetes.io/empty-dir", "v")
        == f"{root}/pods/u/volumes/kubernetes.io~empty-dir/v"
    )
