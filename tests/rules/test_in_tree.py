"""Volume plugins that Kubernetes has removed."""

from __future__ import annotations

import msgspec
import pytest

from volplane.api.core import PersistentVolume, PersistentVolumeSpec, RBDVolumeSource, Volume
from volplane.api.core.persistentvolume import RBDPersistentVolumeSource
from volplane.api.core.volume import GCEPersistentDiskVolumeSource
from volplane.rules import in_tree


def test_every_plugin_is_a_source_of_pods_and_of_volumes() -> None:
    wire = {field.name: field.encode_name for field in msgspec.structs.fields(Volume)}
    for plugin in in_tree.PLUGINS:
        assert wire[plugin.attribute] == plugin.field
        assert plugin.attribute in {field.name for field in msgspec.structs.fields(PersistentVolumeSpec)}
        assert bool(plugin.driver) != bool(plugin.removed_in)


@pytest.mark.parametrize(
    ("source", "volume", "message"),
    [
        (
            Volume(gce_persistent_disk=GCEPersistentDiskVolumeSource(pd_name="d")),
            None,
            "gcePersistentDisk: the in-tree plugin kubernetes.io/gce-pd is replaced by the CSI driver "
            "pd.csi.storage.gke.io: install that driver and use a csi volume",
        ),
        (
            Volume(rbd=RBDVolumeSource()),
            None,
            "rbd: the in-tree plugin kubernetes.io/rbd was removed from Kubernetes in v1.31",
        ),
        (
            Volume(),
            PersistentVolume(
                spec=PersistentVolumeSpec(gce_persistent_disk=GCEPersistentDiskVolumeSource(pd_name="d"))
            ),
            "gcePersistentDisk: the in-tree plugin kubernetes.io/gce-pd is replaced by the CSI driver "
            "pd.csi.storage.gke.io: install that driver and use a csi volume",
        ),
        (Volume(), None, ""),
        (Volume(rbd=RBDVolumeSource()), PersistentVolume(), ""),
    ],
)
def test_a_volume_of_a_removed_plugin_names_what_replaces_it(
    source: Volume, volume: PersistentVolume | None, message: str
) -> None:
    assert in_tree.unsupported_source_message(source, volume) == message


def test_plugins_are_found_by_the_name_that_classes_use() -> None:
    found = in_tree.find_plugin_by_name("kubernetes.io/quobyte")
    assert found is not None
    assert found.field == "quobyte"
    assert in_tree.find_plugin_by_name("kubernetes.io/no-provisioner") is None


def test_only_some_plugins_are_replaced_by_a_driver() -> None:
    disk = PersistentVolumeSpec(gce_persistent_disk=GCEPersistentDiskVolumeSource(pd_name="d"))
    assert in_tree.is_replaced(PersistentVolume(spec=disk))
    assert not in_tree.is_replaced(
        PersistentVolume(spec=PersistentVolumeSpec(rbd=RBDPersistentVolumeSource()))
    )
    assert not in_tree.is_replaced(PersistentVolume())
