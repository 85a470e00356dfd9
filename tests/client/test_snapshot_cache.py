"""Caches that are listed once: whatever goes wrong, they are filled, and say what is missing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from volplane.api.core import ConfigMap
from volplane.api.errors import Forbidden
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.client.transport import Transport


class OneNamespace:
    """A server that lets its user read one namespace, and gives the error of that read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def list(self, type: Any, namespace: str = "", **_: Any) -> Any:
        raise self.error if namespace else Forbidden("not all namespaces")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (msgspec.ValidationError("Expected `str`"), "Expected `str`"),
        (TimeoutError(), "no answer in time"),
        (Forbidden("not this one"), "not all namespaces"),
    ],
    ids=["objects that cannot be decoded", "no answer", "forbidden, too"],
)
async def test_a_failure_in_the_one_namespace_is_noted(error: Exception, why: str) -> None:
    caches = SnapshotCaches(cast("Transport", OneNamespace(error)), namespace="mine")
    async with asyncio.timeout(5):
        await caches.get(ConfigMap).wait_synced()
    assert caches.unread == {"configmaps": why}
