"""iscsi volumes: logins, mounts and their undoing, with an `iscsiadm` that makes loop devices."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.loops.inprocess import world
from tests.node.node_env import path_exists, read, write
from tests.support.iscsi_target import IscsiTarget
from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, Pod, Secret
from volplane.client.client import Client
from volplane.host import Host, NodePaths, mounts
from volplane.volumes.base import (
    NodeContext,
    NotAttachedError,
    PodVolumeSpec,
    StagedVolumeRef,
    TransientOperationError,
    UncertainProgressError,
    VolumeOperationError,
)
from volplane.volumes.iscsi import IscsiPlugin
from volplane.volumes.iscsi.initiator import IscsiSettings
from volplane.volumes.iscsi.plugin import NO_PROGRAM, NO_TRANSPORT

REAL_TARGET = "VOLPLANE_TEST_ISCSI_TARGET"  # portal,iqn,lun of a disk that may be formatted
IQN, OTHER = "iqn.2026-01.com.example:a", "iqn.2026-01.com.example:b"
PORTAL, SECOND = "10.0.0.1:3260", "10.0.0.2:3260"
LUN_0: dict[str, Any] = {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0}
POINTS = [
    "file:iscsi:write:before",
    "iscsi:login:before",
    "iscsi:login:after",
    "host:mkfs:after",
    "host:mount:after",
    "host:bind:before",
    "host:bind:after",
]
STAGE = """
import asyncio, sys
from tests.volumes.test_iscsi import LUN_0, inline, on_node
from volplane.volumes.iscsi import IscsiPlugin
from volplane.volumes.iscsi.initiator import IscsiSettings

async def main(root, sys_path, by_path):
    async with on_node(root) as context:
        plugin = IscsiPlugin(context, IscsiSettings(sys=sys_path, by_path=by_path))
        wanted = inline(LUN_0)
        await plugin.stage(wanted)
        await plugin.publish(wanted)

asyncio.run(main(*sys.argv[1:]))
"""


def pod(source: dict[str, Any] | None, uid: str, group: int | None) -> Pod:
    volumes = [{"name": "data", "iscsi": source}] if source is not None else [{"name": "data"}]
    security = {"fsGroup": group} if group is not None else {}
    spec = {"volumes": volumes, "securityContext": security}
    return convert(Pod, {"metadata": {"name": "app", "namespace": "default", "uid": uid}, "spec": spec})


def inline(source: dict[str, Any], uid: str = "uid-1", group: int | None = None) -> PodVolumeSpec:
    owner = pod(source, uid, group)
    return resolve(owner, "data", None)


def persistent(source: dict[str, Any], **spec: Any) -> PodVolumeSpec:
    owner = pod(None, "uid-1", None)
    body = {"metadata": {"name": "pv"}, "spec": {"iscsi": source, **spec}}
    volume = convert(PersistentVolume, body)
    return resolve(owner, "pv", volume)


def resolve(owner: Pod, name: str, volume: PersistentVolume | None) -> PodVolumeSpec:
    plugin = IscsiPlugin(NodeContext("n", cast("Any", None), NodePaths("/nonexistent"), cast("Any", None)))
    given = owner.spec.volumes[0]
    assert plugin.supports(given, volume)
    return PodVolumeSpec(
        plugin.name,
        plugin.unique_name(owner, name, volume),
        name,
        owner,
        given,
        volume=volume,
        readonly=plugin.is_readonly(given, volume),
    )


@asynccontextmanager
async def on_node(root: Path | str, client: Client | None = None) -> AsyncIterator[NodeContext]:
    host = Host()
    try:
        yield NodeContext("n", host, NodePaths(str(root)), cast("Any", client))
    finally:
        await host.close()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IscsiTarget]:
    made = IscsiTarget(tmp_path, monkeypatch, {IQN: [0, 1], OTHER: [0]})
    yield made
    for entry in mounts.read_table().under(str(tmp_path)):
        mounts.unmount(entry.target)
    made.close()


async def release(plugin: IscsiPlugin, *wanted: PodVolumeSpec) -> None:
    """As a kubelet that was restarted: by what is on disk alone."""
    for spec in wanted:
        await plugin.unpublish(await plugin.reconstruct(spec.pod.uid, spec.name))
    for device in await plugin.find_staged_volumes():
        await plugin.unstage(device)
        await plugin.unstage(device)  # again, after a crash


def assert_nothing_left(root: Path) -> None:
    assert not mounts.read_table().under(str(root))
    assert not [path for path in root.rglob("*") if not path.is_dir()]


@pytest.mark.root
async def test_a_disk_is_logged_in_mounted_and_logged_out_with_upstreams_commands(
    tmp_path: Path, target: IscsiTarget
) -> None:
    root = tmp_path / "kubelet"
    async with on_node(root) as context:
        plugin, wanted = IscsiPlugin(context, target.settings()), inline(LUN_0)
        assert wanted.unique_name == f"kubernetes.io/iscsi/{PORTAL}:{IQN}:0"
        await plugin.stage(wanted)
        database = ["-m", "discoverydb", "-t", "sendtargets", "-p", PORTAL, "-I", "default"]
        node = ["-m", "node", "-p", PORTAL, "-T", IQN]
        assert target.calls() == [
            ["-m", "iface", "-I", "default", "-o", "show"],
            [*database, "-o", "new"],
            [*database, "--discover"],
            [*node, "-I", "default", "-o", "update", "-n", "node.session.scan", "-v", "manual"],
            [*node, "-I", "default", "--login"],
            [*node, "-o", "update", "-n", "node.startup", "-v", "manual"],
        ]
        assert target.scans() == ["0 0 0"]
        staged = root / f"plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-0"
        entry = mounts.read_table().at(str(staged))
        assert entry is not None
        assert entry.fstype == "ext4"
        await plugin.stage(wanted)  # it is mounted once
        await plugin.publish(wanted)
        await plugin.publish(wanted)
        write(f"{plugin.path(wanted)}/file", "kept")
        assert target.calls() == []
        await release(IscsiPlugin(context, target.settings()), wanted)
        assert target.calls() == [
            [*node, "--logout", "-I", "default"],
            [*node, "-o", "delete", "-I", "default"],
        ]
        assert_nothing_left(root)
        await plugin.stage(wanted)
        await plugin.publish(wanted)
        assert read(f"{plugin.path(wanted)}/file") == "kept"
        await release(plugin, wanted)


@pytest.mark.root
async def test_a_session_stays_while_another_lun_of_its_target_is_used(
    tmp_path: Path, target: IscsiTarget
) -> None:
    root = tmp_path / "kubelet"
    async with on_node(root) as context:
        plugin = IscsiPlugin(context, target.settings())
        first, second = inline(LUN_0), inline(LUN_0 | {"lun": 1}, "uid-2")
        await asyncio.gather(plugin.stage(first), plugin.stage(second))
        assert sum("--login" in call for call in target.calls()) == 1
        # As after a crash between the login and the mount: only the record shows that LUN 1 is used.
        mounts.unmount(str(root / f"plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-1"))
        await plugin.unstage(StagedVolumeRef(plugin.name, first.unique_name))
        assert target.calls() == []
        assert target.deletions() == ["0"]
        await plugin.stage(second)
        await plugin.publish(second)
        assert target.calls() == [["-m", "iface", "-I", "default", "-o", "show"]]
        assert target.sessions() == [f"{PORTAL}-{IQN}"]
        await release(plugin, second)
        assert target.sessions() == []
        assert_nothing_left(root)


@pytest.mark.root
async def test_a_session_stays_while_another_node_of_the_machine_has_its_disk_mounted(
    tmp_path: Path, target: IscsiTarget
) -> None:
    async with on_node(tmp_path / "a") as one, on_node(tmp_path / "b") as other:
        first, second = IscsiPlugin(one, target.settings()), IscsiPlugin(other, target.settings())
        await first.stage(inline(LUN_0))
        await second.stage(inline(LUN_0 | {"lun": 1}))
        await release(first)
        assert target.sessions() == [f"{PORTAL}-{IQN}"]
        assert target.deletions() == ["0"]
        assert_nothing_left(tmp_path / "a")
        await release(second)
        assert target.sessions() == []


@pytest.mark.root
async def test_pods_share_the_mount_of_a_disk(tmp_path: Path, target: IscsiTarget) -> None:
    root = tmp_path / "kubelet"
    async with on_node(root) as context:
        plugin = IscsiPlugin(context, target.settings())
        one, two = inline(LUN_0, group=4000), inline(LUN_0 | {"readOnly": True}, "uid-2")
        assert one.unique_name == two.unique_name
        await plugin.stage(one)
        await plugin.publish(one)
        await plugin.publish(two)
        write(f"{plugin.path(one)}/file", "shared")
        assert read(f"{plugin.path(two)}/file") == "shared"
        assert (await context.host.call(os.stat, plugin.path(one))).st_gid == 4000
        with pytest.raises(OSError, match="Read-only file system"):
            write(f"{plugin.path(two)}/file", "")
        await plugin.unpublish(one.ref)
        with pytest.raises(UncertainProgressError, match="still mounted by other references"):
            await plugin.unstage((await plugin.find_staged_volumes())[0])
        assert target.sessions()
        await release(plugin, two)
        assert_nothing_left(root)


@pytest.mark.root
async def test_a_persistent_volume_has_mount_options_and_a_pod_may_only_read(
    tmp_path: Path, target: IscsiTarget
) -> None:
    async with on_node(tmp_path / "kubelet") as context:
        plugin = IscsiPlugin(context, target.settings())
        wanted = persistent(LUN_0 | {"fsType": "ext2"}, mountOptions=["noatime"])
        await plugin.stage(wanted)
        staged = mounts.read_table().under(str(tmp_path))[0]
        assert "noatime" in staged.options
        assert staged.fstype == "ext2"
        await release(plugin)
        readonly = persistent(LUN_0, accessModes=["ReadOnlyMany"])
        await plugin.stage(readonly)
        assert mounts.read_table().under(str(tmp_path))[0].readonly
        await release(plugin)


@pytest.mark.root
async def test_one_portal_is_enough(tmp_path: Path, target: IscsiTarget) -> None:
    root = tmp_path / "kubelet"
    target.configure(answers={PORTAL: "refuse"})
    async with on_node(root) as context:
        plugin = IscsiPlugin(context, target.settings())
        wanted = inline(LUN_0 | {"portals": ["10.0.0.2", PORTAL]})
        await plugin.stage(wanted)
        assert target.sessions() == [f"{SECOND}-{IQN}"]
        assert [
            *["-m", "discoverydb", "-t", "sendtargets", "-p", PORTAL],
            *["-I", "default", "-o", "delete"],
        ] in target.calls()
        await plugin.publish(wanted)
        await release(plugin, wanted)
        assert target.sessions() == []
        target.configure(answers={PORTAL: "refuse", SECOND: "refuse"})
        with pytest.raises(UncertainProgressError) as failed:
            await plugin.stage(wanted)
        assert f"portal {PORTAL}: " in str(failed.value)
        assert f"portal {SECOND}: " in str(failed.value)
        assert f"cannot make connection to {SECOND}" in str(failed.value)
        with pytest.raises(TransientOperationError, match="is not mounted on this node"):
            await plugin.publish(wanted)
        await release(plugin)
        assert_nothing_left(root)


@pytest.mark.root
async def test_chap_secrets_are_set_and_not_logged(
    tmp_path: Path, target: IscsiTarget, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = {
        "discovery.sendtargets.auth.username": b"finder",
        "discovery.sendtargets.auth.password": b"first-secret",
        "node.session.auth.username": b"worker",
        "node.session.auth.password": b"second-secret",
    }
    source = LUN_0 | {"chapAuthDiscovery": True, "chapAuthSession": True, "secretRef": {"name": "chap"}}
    async with world() as env, on_node(tmp_path / "kubelet", env.client) as context:
        plugin, wanted = IscsiPlugin(context, target.settings()), inline(source)
        with pytest.raises(NotAttachedError, match="couldn't get secret default/chap"):
            await plugin.stage(wanted)
        assert target.calls() == []
        body = {
            "metadata": {"name": "chap", "namespace": "default"},
            "type": "kubernetes.io/iscsi-chap",
            "data": {key: base64.b64encode(value).decode() for key, value in keys.items()},
        }
        await env.client.create(convert(Secret, body))
        target.configure(fail_update="node.session.auth.password")
        with pytest.raises(UncertainProgressError) as failed:
            await plugin.stage(wanted)
        assert "-n node.session.auth.password -v ***: exit status 6" in str(failed.value)
        target.configure()
        target.calls()
        await plugin.stage(wanted)
        updates = [call[-3:] for call in target.calls() if "update" in call and ".auth." in call[-3]]
        assert updates == [
            ["discovery.sendtargets.auth.authmethod", "-v", "CHAP"],
            *([key, "-v", value.decode()] for key, value in list(keys.items())[:2]),
            ["node.session.auth.authmethod", "-v", "CHAP"],
            *([key, "-v", value.decode()] for key, value in list(keys.items())[2:]),
        ]
        for value in (b"finder", b"first-secret", b"worker", b"second-secret"):
            assert value.decode() not in f"{caplog.text} {failed.value}"
        assert "node.session.auth.password" in caplog.text
        await release(plugin)


@pytest.mark.root
async def test_an_initiator_name_gets_an_interface_of_its_own(tmp_path: Path, target: IscsiTarget) -> None:
    name = "iqn.2026-01.com.example:worker"
    async with on_node(tmp_path / "kubelet") as context:
        plugin = IscsiPlugin(context, target.settings())
        await plugin.stage(persistent(LUN_0 | {"iscsiInterface": "eth", "initiatorName": name}))
        interface = ["-m", "iface", "-I", f"{PORTAL}:pv", "-o"]
        assert target.calls()[:5] == [
            ["-m", "iface", "-I", "eth", "-o", "show"],
            [*interface, "new"],
            [*interface, "update", "-n", "iface.initiatorname", "-v", name],
            [*interface, "update", "-n", "iface.net_ifacename", "-v", "eth1"],
            [*interface, "update", "-n", "iface.transport_name", "-v", "tcp"],
        ]
        await release(plugin)
        assert target.calls()[-1] == [*interface, "delete"]
        assert_nothing_left(tmp_path / "kubelet")


@pytest.mark.root
async def test_a_call_that_hangs_ends_and_blocks_no_other_target(tmp_path: Path, target: IscsiTarget) -> None:
    target.configure(answers={SECOND: "hang"})
    async with on_node(tmp_path / "kubelet") as context:
        plugin = IscsiPlugin(context, target.settings(call_timeout=4.0))
        hanging = asyncio.create_task(plugin.stage(inline(LUN_0 | {"targetPortal": SECOND})))
        await plugin.stage(inline(LUN_0 | {"iqn": OTHER}))
        assert not hanging.done()
        with pytest.raises(UncertainProgressError, match="--discover: no answer within 4 s"):
            await hanging
        await release(plugin)
        assert target.sessions() == []
        assert_nothing_left(tmp_path / "kubelet")


@pytest.mark.root
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_node_leaves_nothing_after_its_restart(
    tmp_path: Path, target: IscsiTarget, point: str
) -> None:
    root, settings = tmp_path / "kubelet", target.settings()
    argv = [sys.executable, "-c", STAGE, str(root), settings.sys, settings.by_path]
    killed = await asyncio.to_thread(
        subprocess.run, argv, env={**os.environ, "VOLPLANE_FAILPOINT": point}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert bool(target.sessions()) is (point not in POINTS[:2])
    async with on_node(root) as context:
        plugin, wanted = IscsiPlugin(context, settings), inline(LUN_0)
        await release(plugin, *([wanted] if path_exists(plugin.path(wanted)) else []))
        assert target.sessions() == []
        assert_nothing_left(root)


@pytest.mark.parametrize("installed", [False, True])
async def test_a_node_names_what_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if installed:
        IscsiTarget(tmp_path, monkeypatch, {})
    else:
        monkeypatch.setenv("PATH", "/nonexistent")
    async with on_node(tmp_path / "kubelet") as context:
        plugin = IscsiPlugin(context, IscsiSettings(sys=f"{tmp_path}/sys", modules=f"{tmp_path}/modules"))
        with pytest.raises(NotAttachedError) as refused:
            await plugin.stage(inline(LUN_0))
        missing = [*([] if installed else [NO_PROGRAM]), NO_TRANSPORT]
        assert str(refused.value) == f"cannot attach {PORTAL}:{IQN}:0: {'; '.join(missing)}"
        assert not path_exists(tmp_path / "kubelet")


async def test_a_module_that_is_installed_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    modules = tmp_path / os.uname().release
    modules.mkdir()
    (modules / "modules.dep").write_text("kernel/drivers/scsi/iscsi_tcp.ko.xz: kernel/libiscsi.ko\n")
    async with on_node(tmp_path / "kubelet") as context:
        plugin = IscsiPlugin(context, IscsiSettings(sys=f"{tmp_path}/sys", modules=str(tmp_path)))
        with pytest.raises(NotAttachedError) as refused:
            await plugin.stage(inline(LUN_0))
        assert str(refused.value).endswith(f": {NO_PROGRAM}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iqn": "iqn.2026-01.x:a/../b"}, 'iqn "iqn.2026-01.x:a/../b" is empty, begins with'),
        ({"targetPortal": ""}, 'targetPortal or portals ":3260" is empty'),
        ({"iscsiInterface": "-x"}, 'iscsiInterface "-x" is empty'),
    ],
)
async def test_a_field_that_cannot_be_used_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    async with on_node(tmp_path / "kubelet") as context:
        with pytest.raises(VolumeOperationError) as refused:
            await IscsiPlugin(context).stage(inline(LUN_0 | change))
        assert str(refused.value).startswith(message)


def test_portals_get_the_default_port() -> None:
    for given, known in [
        ("10.0.0.1", "10.0.0.1:3260"),
        ("10.0.0.1:3261", "10.0.0.1:3261"),
        ("[fd00::1]", "[fd00::1]:3260"),
        ("[fd00::1]:3261", "[fd00::1]:3261"),
    ]:
        unique = inline(LUN_0 | {"targetPortal": given}).unique_name
        assert unique == f"kubernetes.io/iscsi/{known}:{IQN}:0"


@pytest.mark.root
async def test_links_of_devices_have_ipv6_addresses_without_brackets(
    tmp_path: Path, target: IscsiTarget
) -> None:
    async with on_node(tmp_path / "kubelet") as context:
        plugin = IscsiPlugin(context, target.settings())
        await plugin.stage(inline(LUN_0 | {"targetPortal": "[fd00::1]"}))
        await release(plugin)
        assert target.sessions() == []


@pytest.mark.root
@pytest.mark.skipif(REAL_TARGET not in os.environ, reason=f"{REAL_TARGET} does not name a disk to format")
async def test_a_disk_of_a_real_target_is_mounted(tmp_path: Path) -> None:
    portal, iqn, lun = os.environ[REAL_TARGET].split(",")
    async with on_node(tmp_path / "kubelet") as context:
        plugin = IscsiPlugin(context)
        wanted = inline({"targetPortal": portal, "iqn": iqn, "lun": int(lun)})
        await plugin.stage(wanted)
        await plugin.publish(wanted)
        write(f"{plugin.path(wanted)}/volplane-test", "written")
        os.unlink(f"{plugin.path(wanted)}/volplane-test")
        await release(plugin, wanted)
        assert_nothing_left(tmp_path / "kubelet")
