"""How long ConfigMaps and Secrets of volumes are watched, on the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tests.loops.inprocess import world
from volplane.api.core import ConfigMap
from volplane.api.meta import ObjectMeta
from volplane.node.configmap_secret_watch import UNUSED_SECONDS, ConfigMapSecretWatch
from volplane.volumes.base import ReferencedObject

pytestmark = pytest.mark.virtual

SETTINGS: ReferencedObject = (ConfigMap, "default", "settings")


class Volume:
    """A volume that shows the ConfigMap, and its plugin."""

    def __init__(self, uid: str) -> None:
        self.pod = ObjectMeta(uid=uid)

    def referenced_objects(self, spec: Any) -> Iterable[ReferencedObject]:
        return (SETTINGS,)


def add(watches: ConfigMapSecretWatch, uid: str) -> None:
    volume: Any = Volume(uid)
    watches.add_volume(volume, volume)


async def test_the_next_pod_finds_the_watch_of_the_last_one_and_hears_of_changes_only() -> None:
    async with world() as env:
        heard: list[ReferencedObject] = []
        await env.client.create(ConfigMap(metadata=ObjectMeta(name="settings", namespace="default")))
        watches = ConfigMapSecretWatch(env.client, heard.append)
        add(watches, "first")
        await asyncio.sleep(1)
        assert heard == [SETTINGS]  # it may have changed before it was watched
        watches.remove_pod("first")
        await asyncio.sleep(UNUSED_SECONDS / 2)
        add(watches, "second")
        await asyncio.sleep(UNUSED_SECONDS * 2)
        assert heard == [SETTINGS]
        await env.client.patch(ConfigMap, "settings", "default", merge={"data": {"colour": "blue"}})
        await asyncio.sleep(1)
        assert heard == [SETTINGS, SETTINGS]
        await watches.close()


async def test_a_watch_without_pods_ends() -> None:
    async with world() as env:
        heard: list[ReferencedObject] = []
        watches = ConfigMapSecretWatch(env.client, heard.append)
        add(watches, "pod")
        await asyncio.sleep(1)
        watches.remove_pod("pod")
        await asyncio.sleep(UNUSED_SECONDS + 1)
        before = len(heard)
        await env.client.create(ConfigMap(metadata=ObjectMeta(name="settings", namespace="default")))
        await asyncio.sleep(1)
        assert len(heard) == before
        add(watches, "another")
        await asyncio.sleep(1)
        assert len(heard) == before + 1
        await watches.close()


async def test_a_pod_that_goes_while_the_watches_close_ends_nothing_later() -> None:
    async with world() as env:
        watches = ConfigMapSecretWatch(env.client, lambda changed: None)
        add(watches, "pod")
        await asyncio.sleep(1)
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        closing = asyncio.create_task(watches.close())
        await asyncio.sleep(0)
        assert not closing.done()
        watches.remove_pod("pod")
        await closing
        await asyncio.sleep(UNUSED_SECONDS + 1)
        assert errors == []
