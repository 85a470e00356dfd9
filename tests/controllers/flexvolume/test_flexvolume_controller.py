"""FlexVolumes are attached and detached by their drivers: contract attach-and-mount F."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.controllers.flexvolume.flex_env import NAME, FlexEnv, flex_env
from tests.controllers.objects import pod
from tests.loops.inprocess import until
from tests.sidecars.stop_points import StoppingTransport, StopPoint
from tests.support.flex_script import DRIVER
from volplane.api import codec
from volplane.api.annotations import FLEX_VOLUME_ANNOTATION
from volplane.api.core import Event, PersistentVolume, Pod
from volplane.api.storage import VolumeAttachment
from volplane.client.client import Client

DEVICE = "/dev/attached"


def options(name: str = "pv", read_write: str = "rw", fs_type: str = "ext4", **more: str) -> str:
    given = {
        "kubernetes.io/fsType": fs_type,
        "kubernetes.io/pvOrVolumeName": name,
        "kubernetes.io/readwrite": read_write,
        **more,
    }
    return json.dumps(given, separators=(",", ":"), sort_keys=True)


def inline_pod(name: str, on: str, **flex: Any) -> Pod:
    source = {"driver": DRIVER, "fsType": "xfs", **flex}
    return pod(name, on=on, volumes=[{"name": "scratch", "flexVolume": source}])


async def test_a_volume_is_attached_and_detached_with_the_arguments_of_the_contract(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        await env.pair(options={"size": "big"})
        await env.client.create(pod("web", "data", on="a"))
        (entry,) = await env.listed("a", NAME)
        assert entry.device_path == DEVICE
        (attachment,) = await env.attachments(1)
        assert attachment.spec.attacher == "flexvolume.volplane.io"
        assert attachment.spec.source.persistent_volume_name == "pv"
        assert attachment.status.attachment_metadata == {"devicePath": DEVICE}
        await env.event("SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pv" ')
        await env.kill("web")
        await env.listed("a")
        await env.attachments(0)
        assert env.script.calls == [
            ["getvolumename", options(size="big")],
            ["attach", options(size="big"), "a"],
            ["detach", "pv", "a"],
        ]


async def test_an_inline_volume_is_attached_by_its_name_in_the_pod(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        await env.client.create(inline_pod("web", "a", readOnly=True, options={"pool": "ssd"}))
        await env.listed("a", f"{DRIVER}/scratch")
        await env.event("SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "scratch" ')
        await env.kill("web")
        await env.attachments(0)
        given = options("scratch", "ro", "xfs", pool="ssd")
        assert env.script.calls == [
            ["getvolumename", given],
            ["attach", given, "a"],
            ["detach", "scratch", "a"],
        ]


async def test_a_claim_that_is_only_read_is_attached_read_only(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        await env.pair()
        source = {"claimName": "data", "readOnly": True}
        await env.client.create(pod("web", on="a", volumes=[{"name": "v", "persistentVolumeClaim": source}]))
        await env.listed("a", NAME)
        assert await env.called("attach") == [["attach", options(read_write="ro"), "a"]]


async def test_a_driver_that_does_not_attach_gets_no_attachment(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a", attach=False) as env, env.controllers():
        await env.pair()
        await env.client.create(pod("web", "data", on="a"))
        await env.client.create(inline_pod("cache", "a"))
        await asyncio.sleep(0.3)
        assert await env.client.list(VolumeAttachment) == []
        assert env.script.calls == []
        assert await env.listed("a") == []


async def test_commands_that_are_not_supported_count_as_done_and_are_called_once(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        env.script.do_not_support("getvolumename", "attach", "detach", "isattached")
        await env.pair()
        for _ in range(2):
            await env.client.create(pod("web", "data", on="a"))
            (entry,) = await env.listed("a", NAME)
            assert entry.device_path == ""
            await env.kill("web")
            await env.attachments(0)
        assert env.script.commands == ["getvolumename", "attach", "detach"]


async def test_a_failure_is_reported_and_tried_again(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        env.script.fail("attach", "no such disk")
        await env.pair()
        await env.client.create(pod("web", "data", on="a"))
        reason = "attach command failed, status: Failure, reason: no such disk"
        await env.event("FailedAttachVolume", f'AttachVolume.Attach failed for volume "pv" : {reason}')
        assert not (await env.error(reason)).status.attached
        await env.called("attach", 2)
        env.script.work("attach")
        await env.listed("a", NAME)
        (attachment,) = await env.attachments(1)
        assert attachment.status.attach_error is None
        env.script.fail("detach", "busy")
        await env.kill("web")
        await env.error("detach command failed, status: Failure, reason: busy")
        env.script.work("detach")
        await env.attachments(0)


async def test_a_volume_name_that_the_driver_refuses_is_not_attached(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        env.script.fail("getvolumename", "unknown pool")
        await env.pair()
        await env.client.create(pod("web", "data", on="a"))
        await env.error("getvolumename command failed, status: Failure, reason: unknown pool")
        assert "attach" not in env.script.commands


async def test_a_call_that_hangs_keeps_only_its_own_volume_waiting(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        await env.pair()
        await env.pair("other", "more")
        fifo = env.hang("attach")
        await env.client.create(pod("web", "data", on="a"))
        await env.wait_until_hanging(fifo)
        env.script.work("attach")
        await env.client.create(pod("next", "more", on="a"))
        await env.listed("a", f"{DRIVER}/other")
        await env.kill("web")  # the detach waits for the attach that hangs
        await asyncio.sleep(0.2)
        assert [call[:2] for call in env.script.calls if call[0] == "detach"] == []
        env.script.on("attach", "exit 1")
        env.release(fifo)
        assert await env.called("detach") == [["detach", "pv", "a"]]
        await env.attachments(1)


async def test_a_volume_moves_to_another_node_only_after_its_detach(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a", "b") as env, env.controllers():
        await env.pair()
        await env.client.create(pod("old", "data", on="a"))
        await env.listed("a", NAME)
        await env.use("a", NAME)
        await env.kill("old")
        await env.client.create(pod("new", "data", on="b"))
        await env.event("FailedAttachVolume", 'Multi-Attach error for volume "pv"')
        await env.use("a")
        await env.listed("b", NAME)
        moves = [[call[0], call[-1]] for call in env.script.calls if call[0] != "getvolumename"]
        assert moves == [["attach", "a"], ["detach", "a"], ["attach", "b"]]


# --- the driver itself


async def test_a_driver_that_is_dropped_in_later_is_used_at_once(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a", install=False) as env, env.controllers():
        await env.pair()
        await env.client.create(pod("web", "data", on="a"))
        await asyncio.sleep(0.2)
        assert await env.client.list(VolumeAttachment) == []
        assert (
            await env.client.list(Event, "default") == []
        )  # the node may have a driver that does not attach
        await env.use("a", NAME)  # it has one that does
        missing = f"FlexVolume driver {DRIVER} was not found at {env.plugins}/example.com~disks/disks"
        await env.event("FailedAttachVolume", f'AttachVolume.Attach failed for volume "pv" : {missing}')
        env.script.install()
        await env.listed("a", NAME)


async def test_a_driver_that_is_gone_keeps_its_volumes_attached_and_detaches_them_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        await env.pair()
        await env.client.create(pod("web", "data", on="a"))
        await env.listed("a", NAME)
        env.script.remove()
        await env.kill("web")
        await env.error(f"FlexVolume driver {DRIVER} was not found at {env.plugins}/example.com~disks/disks")
        env.script.install()
        await env.attachments(0)
        assert env.script.commands[-1] == "detach"


async def test_a_driver_whose_init_fails_is_tried_again(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env:
        async with env.controllers():
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.listed("a", NAME)
        env.script.fail("init", "no licence")
        async with env.controllers():
            await env.kill("web")
            await env.error("init command failed, status: Failure, reason: no licence")
            env.script.work("init")
            await env.attachments(0)


async def test_an_attachment_of_a_driver_that_no_longer_attaches_is_detached(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        await env.pair()
        await env.client.create(pod("web", "data", on="a"))
        await env.listed("a", NAME)
        env.script.install(attach=False)
        await env.attachments(0)
        assert env.script.commands[-1] == "detach"


# --- objects that are gone or wrong


async def test_a_volume_is_detached_after_its_object_is_gone(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env:
        async with env.controllers():
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.listed("a", NAME)
        await env.kill("web")
        finalizers = {"metadata": {"finalizers": None}}
        await env.client.patch(PersistentVolume, "pv", merge=finalizers)
        await env.client.delete(PersistentVolume, "pv", missing_ok=True)
        async with env.controllers():
            await env.attachments(0)
            await env.listed("a")
        assert env.script.calls[-1] == ["detach", "pv", "a"]


async def test_an_attachment_without_the_volumes_name_says_so(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env, env.controllers():
        spec = {
            "attacher": "flexvolume.volplane.io",
            "nodeName": "a",
            "source": {"persistentVolumeName": "pv"},
        }
        made = codec.convert(VolumeAttachment, {"metadata": {"name": "odd"}, "spec": spec})
        await env.client.create(made)
        await env.error(f"the VolumeAttachment has no annotation {FLEX_VOLUME_ANNOTATION}")


# --- verification


async def test_a_volume_that_the_driver_no_longer_has_attached_is_attached_again(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env:
        env.sync_period = 0.2
        async with env.controllers():
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.listed("a", NAME)
            assert (await env.called("isattached", 2))[0] == ["isattached", options(), "a"]
            assert env.script.commands.count("attach") == 1
            env.script.on("attach", """answer '{"status": "Success", "device": "/dev/second"}'""")
            env.script.on("isattached", """answer '{"status": "Success", "attached": false}'""")
            await env.called("attach", 2)
            env.script.work("isattached")

            async def is_listed_anew() -> bool:
                return [v.device_path for v in await env.listed("a", NAME)] == ["/dev/second"]

            await until(is_listed_anew)


async def test_a_failed_verification_changes_nothing(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env:
        env.sync_period = 0.1
        env.script.fail("isattached", "storage is down")
        async with env.controllers():
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.listed("a", NAME)
            await env.called("isattached", 3)
            (attachment,) = await env.attachments(1)
            assert attachment.status.attached
            assert env.script.commands.count("attach") == 1


async def test_a_verification_that_hangs_keeps_only_its_own_volume_waiting(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env:
        env.sync_period = 0.1
        fifo = env.hang("isattached")
        async with env.controllers():
            await env.pair()
            await env.pair("other", "more")
            await env.client.create(pod("web", "data", on="a"))
            await env.wait_until_hanging(fifo)
            env.script.work("isattached")
            await env.client.create(pod("next", "more", on="a"))
            await env.listed("a", NAME, f"{DRIVER}/other")
            await env.called("isattached", 3)  # of the other volume
            await env.kill("web")  # the detach waits for the call that hangs
            await asyncio.sleep(0.2)
            assert "detach" not in env.script.commands
            env.script.on("isattached", "exit 1")
            env.release(fifo)
            assert await env.called("detach") == [["detach", "pv", "a"]]
            await env.attachments(1)


async def test_a_driver_that_cannot_verify_is_asked_once(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env:
        env.sync_period = 0.1
        env.script.do_not_support("isattached")
        async with env.controllers():
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.called("isattached")
            await asyncio.sleep(0.4)
            assert env.script.commands.count("isattached") == 1


# --- crashes

ATTACHING = [
    "create VolumeAttachment",
    "patch VolumeAttachment",  # the finalizer
    "patch VolumeAttachment",  # attached
    "patch Node",
]
DETACHING = ["patch Node", "delete VolumeAttachment", "patch VolumeAttachment"]
WHEN = pytest.mark.parametrize("when", ["before", "after"])


def stopping_client(env: FlexEnv, stop_point: StopPoint) -> Client:
    transport = StoppingTransport(env.around.transport(), stop_point)
    return Client(transport, caches=env.around.caches, component="stopping")


async def finish(env: FlexEnv, *, wanted: bool) -> None:
    """Another process does the rest; the driver's own record shows that nothing is leaked."""
    async with env.controllers():
        await env.listed("a", *([NAME] if wanted else []))
        await env.attachments(1 if wanted else 0)
    done = [call[0] for call in env.script.calls if call[0] in ("attach", "detach")]
    assert done[-1:] in ([["attach"]] if wanted else [["detach"], []])


async def test_these_are_the_effects_of_attaching_and_detaching(tmp_path: Path) -> None:
    async with flex_env(tmp_path, "a") as env:
        stop_point = StopPoint(99, "after")
        async with env.controllers(stopping_client(env, stop_point)):
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.listed("a", NAME)
            assert stop_point.effects == ATTACHING
            await env.kill("web")
            await env.attachments(0)
            assert stop_point.effects == [*ATTACHING, *DETACHING]


@WHEN
@pytest.mark.parametrize("at", range(1, len(ATTACHING) + 1))
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stop_while_a_volume_is_attached_leaks_nothing(
    tmp_path: Path, at: int, when: str, deleted: bool
) -> None:
    async with flex_env(tmp_path, "a") as env:
        stop_point = StopPoint(at, when)
        async with env.controllers(stopping_client(env, stop_point)):
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            async with asyncio.timeout(20):
                await stop_point.stopped.wait()
        if deleted:
            await env.kill("web")
        await finish(env, wanted=not deleted)


@WHEN
@pytest.mark.parametrize("at", range(1, len(DETACHING) + 1))
async def test_a_stop_while_a_volume_is_detached_is_made_good(tmp_path: Path, at: int, when: str) -> None:
    async with flex_env(tmp_path, "a") as env:
        async with env.controllers():
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.listed("a", NAME)
        await env.kill("web")
        stop_point = StopPoint(at, when)
        async with env.controllers(stopping_client(env, stop_point)), asyncio.timeout(20):
            await stop_point.stopped.wait()
        await finish(env, wanted=False)


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stop_during_a_call_is_made_good(tmp_path: Path, deleted: bool) -> None:
    async with flex_env(tmp_path, "a") as env:
        env.hang("attach")
        async with env.controllers():
            await env.pair()
            await env.client.create(pod("web", "data", on="a"))
            await env.called("attach")
        env.script.work("attach")
        if deleted:
            await env.kill("web")
        await finish(env, wanted=not deleted)
