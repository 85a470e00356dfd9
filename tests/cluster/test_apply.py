"""The built-in manifests of a new cluster."""

from __future__ import annotations

import pytest

from tests.loops.inprocess import world
from volplane.api.core import ConfigMap
from volplane.api.errors import Invalid
from volplane.api.meta import ObjectMeta
from volplane.cluster import apply


async def test_everything_is_there_and_a_second_time_changes_nothing() -> None:
    async with world() as w:
        await apply.apply(w.client)
        before = w.core.backend.store.revision
        for name in apply.MANIFESTS:
            for obj in apply.load_manifest(name):
                await w.client.get(type(obj), obj.name, obj.namespace)
        await apply.apply(w.client)
        assert w.core.backend.store.revision == before


async def test_a_failure_is_told_as_itself_and_keeps_nobody_else_away() -> None:
    wrong, right = (ConfigMap(metadata=ObjectMeta(name=name, namespace="default")) for name in ("No!", "yes"))
    async with world() as w:
        with pytest.raises(Invalid, match=r"No!"):
            await apply._create_all(w.client, [wrong, right])
        assert await w.client.get(ConfigMap, "yes", "default")
