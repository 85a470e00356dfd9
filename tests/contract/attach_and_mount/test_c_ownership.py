"""Section C8 and C4: fsGroup, mount options, read-only, pod info, inline volumes, on real mounts."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, FakeDiskDriver, NodeEnv
from volplane.api import names
from volplane.api.codec import convert
from volplane.api.core import Event, Pod, Secret
from volplane.api.storage import CSIDriver
from volplane.host import mounts

pytestmark = pytest.mark.root

GROUP = 4242


async def ready(here: NodeEnv, settings: Mapping[str, Any] | None = None, **about: Any) -> None:
    spec = {"attachRequired": True, **about}
    await here.client.create(convert(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec}))
    await here.start(**(settings or {}))
    await here.start_driver()
    await here.wait_until_registered()


def first(here: NodeEnv, method: str) -> Any:
    return next(request for name, request in here.disks.calls if name == method)


def csi(fs_type: str) -> dict[str, Any]:
    return {"csi": {"driver": DRIVER, "volumeHandle": "vol-data", "fsType": fs_type}}


MATRIX = [
    # policy, fsType, access mode, readOnly → handed to the group
    ("File", "ext4", "ReadWriteOnce", False, True),
    ("File", "", "ReadWriteOnce", False, True),
    ("File", "ext4", "ReadWriteMany", False, True),
    ("File", "ext4", "ReadWriteOnce", True, False),
    ("None", "ext4", "ReadWriteOnce", False, False),
    ("None", "", "ReadWriteOnce", False, False),
    ("None", "ext4", "ReadWriteMany", False, False),
    ("None", "ext4", "ReadWriteOnce", True, False),
    ("ReadWriteOnceWithFSType", "ext4", "ReadWriteOnce", False, True),
    ("ReadWriteOnceWithFSType", "ext4", "ReadWriteOncePod", False, True),
    ("ReadWriteOnceWithFSType", "", "ReadWriteOnce", False, False),
    ("ReadWriteOnceWithFSType", "ext4", "ReadWriteMany", False, False),
    ("ReadWriteOnceWithFSType", "ext4", "ReadWriteOnce", True, False),
    ("", "ext4", "ReadWriteOnce", False, True),
]


@pytest.mark.parametrize(("policy", "fs_type", "mode", "readonly", "given"), MATRIX)
async def test_fsgroup_matrix(policy: str, fs_type: str, mode: str, readonly: bool, given: bool) -> None:
    async with node_world() as here:
        await ready(here, **(dict[str, Any](fsGroupPolicy=policy) if policy else {}))
        await here.volume(accessModes=[mode], **csi(fs_type))
        pod = await here.pod(claim="data", readonly=readonly, securityContext={"fsGroup": GROUP})
        await here.wait_until_ready()
        info = os.stat(here.paths.real(here.paths.csi_target(pod.uid, "pv-data")))
        assert (info.st_gid == GROUP) is given
        if given:
            assert info.st_mode & (stat.S_ISGID | 0o770) == stat.S_ISGID | 0o770


class Grouping(FakeDiskDriver):
    extra_capabilities = frozenset({"VOLUME_MOUNT_GROUP"})


async def test_volume_mount_group_is_passed_and_the_node_never_chowns() -> None:
    async with node_world() as here:
        here.disks = Grouping(here.paths)
        await ready(here, fsGroupPolicy="File")
        await here.volume()
        pod = await here.pod(claim="data", securityContext={"fsGroup": GROUP})
        await here.wait_until_ready()
        for method in ("stage", "publish"):
            assert first(here, method).volume_capability.mount.volume_mount_group == str(GROUP)
        assert os.stat(here.paths.real(here.paths.csi_target(pod.uid, "pv-data"))).st_gid == 0


async def test_mount_options_fs_type_attributes_and_secrets_reach_the_driver() -> None:
    async with node_world() as here:
        await ready(here)
        body = {"metadata": {"name": "key", "namespace": "default"}, "stringData": {"user": "me"}}
        await here.client.create(convert(Secret, body))
        reference = {"name": "key", "namespace": "default"}
        source = {
            **csi("xfs")["csi"],
            "volumeAttributes": {"speed": "fast"},
            "nodeStageSecretRef": reference,
            "nodePublishSecretRef": reference,
            "readOnly": True,  # not used on the node
        }
        await here.volume(csi=source, mountOptions=["noatime", "discard"])
        await here.pod(claim="data")
        await here.wait_until_ready()
        for method in ("stage", "publish"):
            request = first(here, method)
            assert list(request.volume_capability.mount.mount_flags) == ["noatime", "discard"]
            assert request.volume_capability.mount.fs_type == "xfs"
            assert dict(request.volume_context) == {"speed": "fast"}
            assert dict(request.secrets) == {"user": "me"}
            assert dict(request.publish_context) == {"devicePath": "/dev/data"}
        assert first(here, "publish").readonly is False


async def test_read_only_is_what_the_pod_says_of_its_claim() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        script = "touch /data/x 2>/dev/null && exit 7; exit 3"
        await here.pod(
            claim="data",
            readonly=True,
            restartPolicy="Never",
            container={"image": "busybox", "command": ["sh", "-c", script]},
        )
        await here.wait_for_phase("Failed")
        assert first(here, "publish").readonly
        pod = await here.client.get(Pod, "app", "default")
        (status,) = pod.status.container_statuses
        assert status.state.terminated is not None
        assert status.state.terminated.exit_code == 3


@pytest.mark.parametrize("where", ["context", "secrets"])
async def test_pod_info_and_tokens_at_publish_only(where: str) -> None:
    async with node_world() as here:
        await ready(
            here,
            podInfoOnMount=True,
            tokenRequests=[{"audience": ""}, {"audience": "vault"}],
            **(dict[str, Any](serviceAccountTokenInSecrets=True) if where == "secrets" else {}),
        )
        await here.volume()
        pod = await here.pod(claim="data")
        await here.wait_until_ready()
        request = first(here, "publish")
        context = dict(request.volume_context)
        key = "csi.storage.k8s.io/serviceAccount.tokens"
        held = dict(request.secrets if where == "secrets" else request.volume_context)
        other = dict(request.volume_context if where == "secrets" else request.secrets)
        assert '"vault"' in held[key]
        assert '"":' in held[key]
        assert key not in other
        assert context["csi.storage.k8s.io/pod.uid"] == pod.uid
        assert context["csi.storage.k8s.io/ephemeral"] == "false"
        assert context["csi.storage.k8s.io/serviceAccount.name"] == "default"
        assert not first(here, "stage").volume_context


async def test_inline_csi_volume_no_va_no_staging_handle_of_pod_and_name() -> None:
    async with node_world() as here:
        await ready(here, volumeLifecycleModes=["Ephemeral"], podInfoOnMount=True)
        source = {"driver": DRIVER, "volumeAttributes": {"size": "1"}}
        pod = await here.pod(
            volumes=[{"name": "in", "csi": source}], mounts=[{"name": "in", "mountPath": "/in"}]
        )
        await here.wait_until_ready()
        request = first(here, "publish")
        assert request.volume_id == names.inline_volume_handle(pod.uid, "in")
        assert request.staging_target_path == ""
        assert not request.publish_context
        assert request.volume_context["csi.storage.k8s.io/ephemeral"] == "true"
        assert here.disks.count_calls() == {"publish": 1}
        assert await here.in_use() == []
        await here.delete()
        await here.wait_for_phase("gone")
        assert here.disks.count_calls() == {"publish": 1, "unpublish": 1}
        assert here.list_mounts() == []


@pytest.mark.parametrize("declared", [True, False])
async def test_inline_csi_volume_of_a_driver_that_does_not_offer_it(declared: bool) -> None:
    async with node_world() as here:
        if declared:
            await ready(here)
        else:
            await here.start()
            await here.start_driver()
            await here.wait_until_registered()
        await here.pod(
            volumes=[{"name": "in", "csi": {"driver": DRIVER}}], mounts=[{"name": "in", "mountPath": "/in"}]
        )
        why = '(only supports ["Persistent"])' if declared else "(no CSIDriver object)"
        await here.wait_for_event(f'volume mode "Ephemeral" not supported by driver {DRIVER} {why}')
        assert not here.disks.calls


async def test_a_bidirectional_mount_needs_a_privileged_container() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        place = {"name": "data", "mountPath": "/data", "mountPropagation": "Bidirectional"}
        sources = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        privileged = {"privileged": True}
        await here.pod(volumes=sources, container={"volumeMounts": [place], "securityContext": privileged})
        await here.wait_until_ready()

        async def mounted() -> bool:
            return len(here.list_mounts()) == 2

        await until(mounted)


async def test_a_change_of_ownership_that_takes_longer_than_the_flag_says_is_told() -> None:
    """Only on real files: while a thread works, virtual time stands still."""
    async with node_world() as here:

        async def fill(request: Any) -> None:
            for number in range(10_000):
                os.close(os.open(f"{here.paths.real(request.staging_target_path)}/{number}", os.O_CREAT))

        here.disks.after["stage"] = fill
        await ready(here, {"ownership_notice": 0.01}, fsGroupPolicy="File")
        await here.volume()
        await here.pod(claim="data", securityContext={"fsGroup": GROUP})
        await here.wait_until_ready()
        await here.wait_for_event("Setting the group of all files in volume data takes long")
        reasons = {e.reason for e in await here.client.list(Event, "default")}
        assert "VolumePermissionChangeInProgress" in reasons


@pytest.mark.parametrize(("wish", "code"), [("Enabled", 3), ("IfPossible", 3), ("Disabled", 7), (None, 7)])
async def test_recursive_read_only_counts_for_what_is_mounted_below(wish: str | None, code: int) -> None:
    async with node_world() as here:
        await here.start()
        outer = f"{here.directory}/outer"
        os.makedirs(f"{outer}/inner")
        mounts.mount("tmpfs", f"{outer}/inner", "tmpfs", [])
        place = {"name": "h", "mountPath": "/h", "readOnly": True}
        script = "touch /h/x 2>/dev/null && exit 1; touch /h/inner/x 2>/dev/null && exit 7; exit 3"
        await here.pod(
            volumes=[{"name": "h", "hostPath": {"path": outer}}],
            container={
                "image": "busybox",
                "command": ["sh", "-c", script],
                "volumeMounts": [{**place, "recursiveReadOnly": wish} if wish else place],
            },
            restartPolicy="Never",
        )
        await here.wait_for_phase("Failed")
        pod = await here.client.get(Pod, "app", "default")
        (status,) = pod.status.container_statuses
        assert status.state.terminated is not None
        assert status.state.terminated.exit_code == code
        (reported,) = status.volume_mounts
        assert reported.recursive_read_only == ("Enabled" if code == 3 else "Disabled")


async def test_mount_options_of_a_volume_that_is_not_mounted_are_refused() -> None:
    async with node_world() as here:
        await here.start()
        path = {"path": here.directory}
        body: dict[str, Any] = {"csi": None, "hostPath": path, "mountOptions": ["noatime"]}
        await here.volume(attached=False, **body)
        await here.pod(claim="data")
        await here.wait_for_event(
            'MountVolume.MountOptionSupport check failed for volume "pv-data" : mount options are not'
        )
        await here.delete(grace=0)
        await here.wait_for_phase("gone")
