"""nfs volumes: mounted by a helper program, or refused with what the node is missing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.node.node_env import path_exists, write
from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, Pod, Volume
from volplane.host import Host, NodePaths, mounts
from volplane.volumes import nfs
from volplane.volumes.base import NodeContext, PodVolumeSpec, VolumeOperationError, VolumePlugin
from volplane.volumes.nfs import NfsPlugin

EXPORT = "VOLPLANE_TEST_NFS_EXPORT"  # server:/path, writable by root of this machine
POD = convert(Pod, {"metadata": {"name": "app", "namespace": "default", "uid": "uid-1"}})
HELPER = """#!/bin/sh
echo "$@" >> {log}
mount -t tmpfs -o size=1m${{4:+,}}$(echo "$4" | sed 's/nfsvers=[0-9.]*,*//') tmpfs "$2"
"""
BROKEN = """#!/bin/sh
mount -t tmpfs tmpfs "$2"
echo "mount.nfs: $3" >&2
exit 32
"""


def spec(source: dict[str, Any], *, plugin: VolumePlugin, options: list[str] | None = None) -> PodVolumeSpec:
    volume = None
    given = convert(Volume, {"name": "data", **source})
    if options is not None:
        body = {"metadata": {"name": "pv"}, "spec": {**source, "mountOptions": options}}
        volume, given = convert(PersistentVolume, body), Volume(name="data")
    return PodVolumeSpec(
        plugin.name,
        plugin.unique_name(POD, "data", volume),
        "pv" if volume is not None else "data",
        POD,
        given,
        volume=volume,
        readonly=plugin.is_readonly(given, volume),
    )


@asynccontextmanager
async def on_node(tmp_path: Path) -> AsyncIterator[NodeContext]:
    host = Host()
    try:
        yield NodeContext("n", host, NodePaths(str(tmp_path / "kubelet")), cast("Any", None))
    finally:
        await host.close()


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a program on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / name).write_text(script)
    (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def lacks_helper() -> bool:
    return mounts.helper_for("nfs") is None


def lacks_client() -> bool:
    return not {"nfs", "nfs4"} & {line.split()[-1] for line in Path(nfs.FILESYSTEMS).read_text().splitlines()}


@pytest.mark.root
@pytest.mark.skipif(not lacks_helper(), reason="this machine has its own mount.nfs")
async def test_the_helper_gets_server_path_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "mount.nfs", HELPER.format(log=tmp_path / "log"))
    async with on_node(tmp_path) as context:
        plugin = NfsPlugin(context)
        source = {"nfs": {"server": "fd00::1", "path": "/exports/a", "readOnly": True}}
        wanted = spec(source, plugin=plugin, options=["nfsvers=4.2"])
        assert wanted.readonly
        path = plugin.path(wanted)
        assert path.endswith("/pods/uid-1/volumes/kubernetes.io~nfs/pv")
        await plugin.publish(wanted)
        await plugin.publish(wanted)  # it is mounted once
        assert (tmp_path / "log").read_text() == f"[fd00::1]:/exports/a {path} -o nfsvers=4.2,ro\n"
        with pytest.raises(OSError, match="Read-only file system"):
            write(f"{path}/x", "")
        await plugin.unpublish(await plugin.reconstruct("uid-1", "pv"))
        assert not mounts.is_mount(path)
        assert not path_exists(path)
        await plugin.unpublish(wanted.ref)  # again, after a crash


async def test_a_server_is_not_taken_for_an_option(tmp_path: Path) -> None:
    async with on_node(tmp_path) as context:
        plugin = NfsPlugin(context)
        wanted = spec({"nfs": {"server": "-V", "path": "/p"}}, plugin=plugin)  # mount.nfs -V succeeds
        with pytest.raises(VolumeOperationError, match="would take it for an option"):
            await plugin.publish(wanted)


@pytest.mark.root
@pytest.mark.skipif(not lacks_helper(), reason="this machine has its own mount.nfs")
async def test_files_stay_on_the_server_when_the_volume_is_unmounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = tmp_path / "exported"
    exported.mkdir()
    install(tmp_path, monkeypatch, "mount.nfs", f'#!/bin/sh\nmount --bind {exported} "$2"\n')
    async with on_node(tmp_path) as context:
        plugin = NfsPlugin(context)
        wanted = spec({"nfs": {"server": "s", "path": "/p"}}, plugin=plugin)
        await plugin.publish(wanted)
        write(f"{plugin.path(wanted)}/file", "kept")
        await plugin.unpublish(wanted.ref)
        assert (exported / "file").read_text() == "kept"


@pytest.mark.root
@pytest.mark.skipif(not lacks_helper(), reason="this machine has its own mount.nfs")
async def test_a_mount_that_fails_leaves_nothing_and_names_what_the_kernel_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "mount.nfs", BROKEN)
    async with on_node(tmp_path) as context:
        plugin = NfsPlugin(context)
        wanted = spec({"nfs": {"server": "s", "path": "/p"}}, plugin=plugin)
        with pytest.raises(VolumeOperationError) as refused:
            await plugin.publish(wanted)
        assert str(refused.value).startswith("cannot mount s:/p: ")
        assert "mount.nfs" in str(refused.value)
        assert (nfs.NO_KERNEL_CLIENT in str(refused.value)) is lacks_client()
        assert not path_exists(plugin.path(wanted))
        assert not mounts.is_mount(plugin.path(wanted))


@pytest.mark.skipif(not lacks_helper(), reason="this machine has its own mount.nfs")
async def test_a_node_without_the_helper_says_so(tmp_path: Path) -> None:
    async with on_node(tmp_path) as context:
        plugin = NfsPlugin(context)
        wanted = spec({"nfs": {"server": "files.example.com", "path": "/exports"}}, plugin=plugin)
        with pytest.raises(VolumeOperationError) as refused:
            await plugin.publish(wanted)
        missing = [nfs.NO_HELPER, *([nfs.NO_KERNEL_CLIENT] if lacks_client() else [])]
        assert str(refused.value) == f"cannot mount files.example.com:/exports: {'; '.join(missing)}"
        assert not path_exists(plugin.path(wanted))


@pytest.mark.root
@pytest.mark.skipif(lacks_helper() or lacks_client(), reason="this machine has no NFS client")
@pytest.mark.skipif(EXPORT not in os.environ, reason=f"{EXPORT} does not name an export to mount")
async def test_an_export_is_mounted_by_the_kernel(tmp_path: Path) -> None:
    server, _, exported = os.environ[EXPORT].rpartition(":")
    async with on_node(tmp_path) as context:
        plugin = NfsPlugin(context)
        wanted = spec({"nfs": {"server": server, "path": exported}}, plugin=plugin)
        await plugin.publish(wanted)
        entry = mounts.read_table().at(plugin.path(wanted))
        assert entry is not None
        assert entry.fstype in ("nfs", "nfs4")
        write(f"{plugin.path(wanted)}/volplane-test", "written")
        os.unlink(f"{plugin.path(wanted)}/volplane-test")
        await plugin.unpublish(wanted.ref)
        assert not path_exists(plugin.path(wanted))
