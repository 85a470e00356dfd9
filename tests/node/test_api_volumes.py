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


async def until_files(path: str, *names: str) -> None:
    """Until the volume shows exactly these files."""

    async def shown() -> bool:
        return sorted(n for n in os.listdir(path) if not n.startswith("..")) == sorted(names)

    await until(shown)


SOURCES: dict[str, dict[str, Any]] = {
    "configMap": {"configMap": {"name": "settings", "optional": True}},
    "projected": {"projected": {"sources": [{"configMap": {"name": "settings", "optional": True}}]}},
}


@pytest.mark.parametrize("kind", SOURCES)
async def test_an_optional_config_map_disappears_and_returns(kind: str) -> None:
    async with node_env() as here:
        await here.start()
        await config(here, colour="red")
        _, path = await mounted(here, SOURCES[kind])
        await until_files(path, "colour")
        await here.client.delete(ConfigMap, "settings", "default")
        await until_files(path)
        await config(here, colour="blue", size="big")
        await until_files(path, "colour", "size")
        assert read(f"{path}/colour") == "blue"


async def test_an_optional_secret_disappears_and_returns_while_the_node_is_down() -> None:
    async with node_env() as here:
        await here.start()
        body = {"metadata": {"name": "s", "namespace": "default"}, "data": {"key": "Z2VoZWlt"}}
        await here.client.create(convert(Secret, body))
        _, path = await mounted(here, {"secret": {"secretName": "s", "optional": True}})
        await until_files(path, "key")
        await here.stop(drain=False)
        await here.client.delete(Secret, "s", "default")
        await here.start()
        await until_files(path)
        await here.client.create(convert(Secret, body))
        await until_files(path, "key")


async def test_a_required_config_map_that_is_deleted_keeps_its_files() -> None:
    async with node_env() as here:
        await here.start()
        await config(here, colour="red")
        _, path = await mounted(here, {"configMap": {"name": "settings"}})
        await here.client.delete(ConfigMap, "settings", "default")
        await here.wait_for_event('MountVolume.SetUp failed for volume "v" : configmaps "settings" not found')
        assert read(f"{path}/colour") == "red"
        await config(here, colour="blue")

        async def changed() -> bool:
            return read(f"{path}/colour") == "blue"

        await until(changed)


async def test_files_belong_to_the_group_of_the_pod() -> None:
    async with node_env() as here:
        await here.start()
        await config(here, a="1", b="2")
        items = [{"key": "a", "path": "deep/a"}, {"key": "b", "path": "b", "mode": 0o400}]
        source = {"configMap": {"name": "settings", "items": items, "defaultMode": 0o600}}
        _, path = await mounted(here, source, securityContext={"fsGroup": 4321})
        found = {name: os.stat(f"{path}/{name}") for name in (".", "deep", "deep/a", "b")}
        assert {info.st_gid for info in found.values()} == {4321}
        modes = {name: f"{info.st_mode & 0o7777:o}" for name, info in found.items()}
        assert modes == {".": "2777", "deep": "2755", "deep/a": "640", "b": "440"}
        assert os.lstat(f"{path}/b").st_gid == 4321


async def test_all_problems_of_a_projected_volume_are_reported() -> None:
    async with node_env() as here:
        await here.start()
        await config(here, a="1")
        sources = [
            {"configMap": {"name": "settings", "items": [{"key": "b", "path": "b"}]}},
            {"secret": {"name": "missing"}},
        ]
        await here.pod(
            volumes=[{"name": "v", "projected": {"sources": sources}}],
            mounts=[{"name": "v", "mountPath": "/v"}],
        )
        await here.wait_for_event(
            '[configmap references non-existent config key: b, secrets "missing" not found]'
        )


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            {"clusterTrustBundle": {"name": "b", "path": "ca.pem"}},
            'source clusterTrustBundle of projected volume "v" is not supported: this cluster has no '
            "ClusterTrustBundles",
        ),
        (
            {"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519", "credentialBundlePath": "x"}},
            'source podCertificate of projected volume "v" is not supported: this cluster has no '
            "PodCertificateRequests",
        ),
    ],
)
async def test_a_source_that_is_not_served_is_named(source: dict[str, Any], why: str) -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(
            volumes=[{"name": "v", "projected": {"sources": [source]}}],
            mounts=[{"name": "v", "mountPath": "/v"}],
        )
        await here.wait_for_event(why)


async def test_an_optional_trust_bundle_is_an_empty_file() -> None:
    async with node_env() as here:
        await here.start()
        source = {"clusterTrustBundle": {"name": "b", "path": "ca.pem", "optional": True}}
        _, path = await mounted(here, {"projected": {"sources": [source]}})
        assert read(f"{path}/ca.pem") == ""


async def test_volumes_inside_a_volume_of_files_have_their_mount_points() -> None:
    async with node_env() as here:
        await here.start()
        await config(here, a="1")
        volumes: list[dict[str, Any]] = [
            {"name": "v", "configMap": {"name": "settings"}},
            {"name": "inner", "emptyDir": {}},
        ]
        places = [
            {"name": "v", "mountPath": "/v"},
            {"name": "inner", "mountPath": "/v/data/cache"},
            {"name": "inner", "mountPath": "/v/data/cache/deeper", "subPath": "x"},
        ]
        pod = await here.pod(volumes=volumes, mounts=places)
        await here.wait_until_ready()
        assert here.role is not None
        found = here.role.volumes.mounted_volumes(pod.uid)["v"]
        assert found.readonly
        await until_files(found.path, "a", "data")
        assert os.listdir(f"{found.path}/data/cache") == []


async def test_an_image_volume_says_what_is_missing() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(
            volumes=[{"name": "v", "image": {"reference": "models/small:1"}}],
            mounts=[{"name": "v", "mountPath": "/v"}],
        )
        await here.wait_for_event(
            'MountVolume.SetUp failed for volume "v" : image "models/small:1" cannot be mounted: '
            "image volumes need a container runtime"
        )
        await here.delete()
        await here.wait_for_phase("gone")


async def test_a_directory_keeps_the_mode_that_its_pod_has_set() -> None:
    async with node_env() as here:
        await here.start()
        pod, path = await mounted(here, {"emptyDir": {}}, securityContext={"fsGroup": 4321})
        assert os.stat(path).st_mode & 0o7777 == 0o2777
        await asyncio.to_thread(os.chmod, path, 0o2750)
        await here.stop(drain=False)
        role = await here.start()

        async def mounted_again() -> bool:
            return role.volumes.is_mounted(pod.uid)

        await until(mounted_again)
        assert os.stat(path).st_mode & 0o7777 == 0o2750
        await here.delete()
        await here.wait_for_phase("gone")
        assert not path_exists(path)


async def test_memory_belongs_to_the_group_and_is_limited_by_the_pod() -> None:
    async with node_env() as here:
        await here.start()
        _, path = await mounted(
            here,
            {"emptyDir": {"medium": "Memory"}},
            securityContext={"fsGroup": 4321},
            container={"resources": {"limits": {"memory": "32Mi"}}},
        )
        info, size = os.stat(path), os.statvfs(path)
        assert (info.st_gid, info.st_mode & 0o7777) == (4321, 0o2777)
        assert size.f_blocks * size.f_frsize == 32 << 20


async def test_huge_pages_are_mounted_with_the_requested_size() -> None:
    async with node_env() as here:
        await here.start()
        pages = {"hugepages-2Mi": "4Mi", "memory": "8Mi", "cpu": "1m"}
        _, path = await mounted(
            here,
            {"emptyDir": {"medium": "HugePages-2Mi"}},
            container={"resources": {"limits": pages, "requests": pages}},
        )
        entry = mounts.read_table().at(path)
        assert entry is not None
        assert (entry.fstype, "pagesize=2M" in entry.super_options) == ("hugetlbfs", True)
        await here.delete()
        await here.wait_for_phase("gone")
        assert not path_exists(path)


async def test_huge_pages_that_nobody_requests_are_refused() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(
            volumes=[{"name": "v", "emptyDir": {"medium": "HugePages"}}],
            mounts=[{"name": "v", "mountPath": "/v"}],
        )
        await here.wait_for_event(
            "hugePages storage requested, but there is no resource request for huge pages"
        )
