"""Sections A and B: the controller and the attacher killed with SIGKILL, each as a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.attach_and_mount.plant import plant
from volplane.api.core import PersistentVolumeClaim


async def test_controller_crash_after_va_create_before_status(tmp_path: Path) -> None:
    async with plant("a", working=()) as p:
        await p.volume()
        async with p.controller_process(tmp_path, die="create VolumeAttachment:after") as dying:
            await p.pod("web", on="a")
            await dying.wait_until_killed()
        (first,) = await p.attachments()
        async with p.controller_process(tmp_path):
            await p.start_attacher()
            await p.attached("a")
        (second,) = await p.attachments()
        assert second.uid == first.uid
        assert p.calls("ControllerPublishVolume") == 1


@pytest.mark.parametrize("known_from", ["volumesAttached", "VA"])
async def test_controller_crash_after_pod_deletion(known_from: str, tmp_path: Path) -> None:
    async with plant("a", working=("attacher",)) as p:
        await p.volume()
        async with p.controller_process(tmp_path) as controller:
            await p.pod("web", on="a")
            await p.attached("a")
            controller.kill()
        await p.remove_pod("web")
        if known_from == "VA":
            await p.status("a", volumesAttached=None)
        else:
            await p.client.delete(PersistentVolumeClaim, "data", "default")
        async with p.controller_process(tmp_path):
            await p.detached("a")
        assert await p.published() == set()


async def test_crash_after_controllerpublish_ok_before_status(tmp_path: Path) -> None:
    async with plant("a", working=("controller",)) as p:
        await p.volume()
        async with p.attacher_process(tmp_path, die="rpc:ControllerPublishVolume:after") as dying:
            await p.pod("web", on="a")
            await dying.wait_until_killed()
        assert await p.published() == {"a"}
        held = await p.attachment("a")
        assert held is not None
        assert not held.status.attached
        async with p.attacher_process(tmp_path):
            await p.attached("a")
        assert p.calls("ControllerPublishVolume") == 2
        assert p.driver.violations == 0


async def test_crash_after_controllerunpublish_before_finalizer_removal(tmp_path: Path) -> None:
    async with plant("a", working=("controller",)) as p:
        await p.volume()
        async with p.attacher_process(tmp_path, die="rpc:ControllerUnpublishVolume:after") as dying:
            await p.pod("web", on="a")
            await p.attached("a")
            await p.remove_pod("web")
            await dying.wait_until_killed()
        assert await p.published() == set()
        assert await p.attachment("a") is not None
        async with p.attacher_process(tmp_path):
            await p.detached("a")
        assert p.calls("ControllerUnpublishVolume") == 2
