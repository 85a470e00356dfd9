"""configMap, secret, projected, downwardAPI, emptyDir, hostPath and local volumes on a real node."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, node_env, path_exists, read
from volplane.api.codec import convert
from volplane.api.core import ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret
from volplane.host import mounts

pytestmark = pytest.mark.root


async def config(here: NodeEnv, name: str = "settings", **data: str) -> None:
    body = {"metadata": {"name": name, "namespace": "default"}, "data": data}
    await here.client.create(convert(ConfigMap, body))


async def mounted(here: NodeEnv, source: dict[str, Any], **spec: Any) -> tuple[Pod, str]:
    """A running pod with this one volume, and the path of its files."""
    volume = {"name": "v", **source}
    await here.pod(volumes=[volume], mounts=[{"name": "v", "mountPath": "/v"}], **spec)
    pod = await here.wait_until_ready()
    assert here.role is not None
    return pod, here.role.volumes.mounted_volumes(pod.uid)["v"].path


async def test_a_config_map_appears_and_follows_its_changes() -> None:
    async with node_env() as here:
        await here.start()
        await config(here, colour="red")
        _, path = await mounted(here, {"configMap": {"name": "settings"}})
        assert read(f"{path}/colour") == "red"
        await here.client.patch(ConfigMap, "settings", "default", merge={"data": {"colour": "blue"}})

        async def changed() -> bool:
            return read(f"{path}/colour") == "blue"

        await until(changed)
        await here.delete()
        await here.wait_for_phase("gone")
        assert not path_exists(path)


async def test_a_pod_waits_for_its_config_map_and_starts_when_it_comes() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(
            volumes=[{"name": "v", "configMap": {"name": "settings"}}],
            mounts=[{"name": "v", "mountPath": "/v"}],
        )
        await here.wait_for_event('MountVolume.SetUp failed for volume "v" : configmaps "settings" not found')
        await config(here, a="b")
        await here.wait_until_ready()


async def test_an_optional_config_map_may_be_missing() -> None:
    async with node_env() as here:
        await here.start()
        _, path = await mounted(here, {"configMap": {"name": "settings", "optional": True}})
        assert [n for n in os.listdir(path) if not n.startswith("..")] == []


async def test_a_secret_lives_in_memory() -> None:
    async with node_env() as here:
        await here.start()
        body = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"key": "geheim"}}
        made = convert(Secret, body)
        if not made.data:
            made = convert(Secret, {**body, "data": {"key": "Z2VoZWlt"}})
        await here.client.create(made)
        source = {"secret": {"secretName": "s", "items": [{"key": "key", "path": "a/b", "mode": 0o400}]}}
        _, path = await mounted(here, source)
        assert read(f"{path}/a/b") == "geheim"
        entry = mounts.read_table().at(path)
        assert entry is not None
        assert entry.fstype == "tmpfs"


async def test_a_projected_volume_gathers_its_sources() -> None:
    async with node_env() as here:
        await here.start()
        await config(here, **{"ca.crt": "PEM"})
        source = {
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"configMap": {"name": "settings"}},
                    {
                        "downwardAPI": {
                            "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                        }
                    },
                ]
            }
        }
        _, path = await mounted(here, source)
        assert read(f"{path}/namespace") == "default"
        assert read(f"{path}/ca.crt") == "PEM"
        if path_exists(f"{path}/token"):  # if the server issues tokens
            assert read(f"{path}/token").count(".") == 2


async def test_labels_are_written_again_when_they_change() -> None:
    async with node_env() as here:
        await here.start()
        item = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
        _, path = await mounted(here, {"downwardAPI": {"items": [item]}})
        await here.client.patch(Pod, "app", "default", merge={"metadata": {"labels": {"a": "b"}}})

        async def changed() -> bool:
            return read(f"{path}/labels") == 'a="b"'

        await until(changed)


async def test_an_empty_directory_in_memory() -> None:
    async with node_env() as here:
        await here.start()
        _, path = await mounted(here, {"emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}})
        assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize == 16 << 20
        assert os.stat(path).st_mode & 0o777 == 0o777
        await here.delete()
        await here.wait_for_phase("gone")
        assert not path_exists(path)
        assert here.list_mounts() == []


async def test_an_empty_directory_belongs_to_the_group() -> None:
    async with node_env() as here:
        await here.start()
        _, path = await mounted(here, {"emptyDir": {}}, securityContext={"fsGroup": 4321})
        assert os.stat(path).st_gid == 4321


async def test_a_host_path_is_checked_and_made() -> None:
    async with node_env() as here:
        await here.start()
        missing = f"{here.directory}/missing"
        await here.pod(
            "bad",
            volumes=[{"name": "v", "hostPath": {"path": missing, "type": "Directory"}}],
            mounts=[{"name": "v", "mountPath": "/v"}],
        )
        await here.wait_for_event(f"hostPath type check failed: {missing} is not a directory")
        await mounted(here, {"hostPath": {"path": missing, "type": "DirectoryOrCreate"}})
        assert path_exists(missing)
        await here.wait_until_ready("bad")
        for name in ("app", "bad"):
            await here.delete(name)
            await here.wait_for_phase("gone", name)
        assert path_exists(missing)


async def test_a_node_path_in_a_manifest_is_this_nodes_own() -> None:
    async with node_env() as here:
        await here.start()
        source = {"hostPath": {"path": "/var/lib/kubelet/plugins", "type": "Directory"}}
        _, path = await mounted(here, source)
        assert path == f"{here.paths.root}/plugins"


async def test_a_local_volume_is_bound_and_never_emptied() -> None:
    async with node_env() as here:
        await here.start()
        disk = Path(here.directory) / "disk"
        await asyncio.to_thread(disk.mkdir)
        await asyncio.to_thread((disk / "file").write_text, "kept")
        claim = await here.client.create(
            convert(
                PersistentVolumeClaim,
                {
                    "metadata": {"name": "data", "namespace": "default"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                        "volumeName": "local",
                        "storageClassName": "",
                    },
                },
            )
        )
        term = {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker-1"]}]
        }
        volume = {
            "metadata": {"name": "local"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "local": {"path": str(disk)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                "claimRef": {"namespace": "default", "name": "data", "uid": claim.uid},
            },
        }
        await here.client.create(convert(PersistentVolume, volume))
        bound = {"status": {"phase": "Bound"}}
        await here.client.patch(PersistentVolumeClaim, "data", "default", merge=bound, subresource="status")
        await here.pod(claim="data")
        pod = await here.wait_until_ready()
        path = here.paths.real(here.paths.volume(pod.uid, "kubernetes.io/local-volume", "local"))
        assert read(f"{path}/file") == "kept"
        await here.delete()
        await here.wait_for_phase("gone")
        assert not path_exists(path)
        assert read(disk / "file") == "kept"


async def test_all_devices_are_those_of_the_machine() -> None:
    async with node_env() as here:
        await here.start()
        _, path = await mounted(here, {"hostPath": {"path": "/dev/", "type": "Directory"}})
        assert path == "/dev"
