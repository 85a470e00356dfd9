"""The names of plugins, as metrics and reports show them."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, Volume
from volplane.rules.plugin_names import plugin_of_source, plugin_of_unique_name, plugin_of_volume

CSI = {"csi": {"driver": "d.example.com", "volumeHandle": "v"}}
QUALIFIED = "kubernetes.io/csi:d.example.com"


def volume(source: dict[str, Any]) -> PersistentVolume:
    return convert(PersistentVolume, {"metadata": {"name": "pv"}, "spec": source})


@pytest.mark.parametrize(
    ("source", "plugin"),
    [
        (CSI, QUALIFIED),
        ({"flexVolume": {"driver": "example.com/disks"}}, "example.com/disks"),
        ({"hostPath": {"path": "/x"}}, "kubernetes.io/host-path"),
        ({"local": {"path": "/x"}}, "kubernetes.io/local-volume"),
        ({"nfs": {"server": "a", "path": "/x"}}, "kubernetes.io/nfs"),
        ({"cephfs": {"monitors": ["a"]}}, "N/A"),
    ],
)
def test_the_plugin_of_a_persistent_volume(source: dict[str, Any], plugin: str) -> None:
    assert plugin_of_volume(volume(source)) == plugin


@pytest.mark.parametrize(
    ("plugin", "unique_name", "shown"),
    [
        ("kubernetes.io/csi", "kubernetes.io/csi/d.example.com^v", QUALIFIED),
        ("kubernetes.io/csi:block", "kubernetes.io/csi/d.example.com^v", QUALIFIED),
        ("kubernetes.io/csi:block", "kubernetes.io/csi/uid-data", "kubernetes.io/csi"),
        ("kubernetes.io/empty-dir", "kubernetes.io/empty-dir/uid-tmp", "kubernetes.io/empty-dir"),
        ("example.com/disks", "example.com/disks/pv", "example.com/disks"),
    ],
)
def test_the_plugin_of_a_unique_name(plugin: str, unique_name: str, shown: str) -> None:
    assert plugin_of_unique_name(plugin, unique_name) == shown


@pytest.mark.parametrize(
    ("source", "persistent", "shown"),
    [
        ({}, CSI, QUALIFIED),
        ({"csi": {"driver": "i.example.com"}}, None, "kubernetes.io/csi:i.example.com"),
        ({"emptyDir": {}}, None, "plugin"),
        ({}, {"hostPath": {"path": "/x"}}, "plugin"),
    ],
)
def test_the_plugin_of_a_pods_volume(
    source: dict[str, Any], persistent: dict[str, Any] | None, shown: str
) -> None:
    found = volume(persistent) if persistent is not None else None
    assert plugin_of_source("plugin", convert(Volume, {"name": "d", **source}), found) == shown
