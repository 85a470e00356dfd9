"""The source of a PersistentVolume, by its name in manifests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.objects import volume
from volplane.rules.volume_sources import source_name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({}, "csi"),
        ({"csi": None, "hostPath": {"path": "/x"}}, "hostPath"),
        ({"csi": None, "nfs": {"server": "s", "path": "/"}, "nodeAffinity": {}}, "nfs"),
        ({"csi": None, "claimRef": {"name": "c"}}, ""),
    ],
)
def test_a_source_has_its_name_in_manifests(source: dict[str, Any], name: str) -> None:
    assert source_name(volume("v", **source)) == name
