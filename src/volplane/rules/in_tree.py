"""The in-tree volume plugins that Kubernetes has removed, and the CSI drivers that replace them.

Kubernetes translates the sources of seven plugins to CSI. The others were removed without a replacement.
"""

from __future__ import annotations

from msgspec import Struct

from volplane.api.core import PersistentVolume, Volume

PREFIX = "kubernetes.io/"


class InTreePlugin(Struct, frozen=True):
    """A plugin that is not part of Kubernetes any more."""

    field: str  # the volume source in manifests
    attribute: str  # the same in the API's Structs
    name: str
    driver: str = ""  # the CSI driver to which Kubernetes translates the source
    removed_in: str = ""  # the first version of Kubernetes without the plugin


def _plugin(field: str, attribute: str, name: str, driver: str = "", removed_in: str = "") -> InTreePlugin:
    return InTreePlugin(field, attribute, PREFIX + name, driver, removed_in)


PLUGINS = (
    _plugin("awsElasticBlockStore", "aws_elastic_block_store", "aws-ebs", "ebs.csi.aws.com"),
    _plugin("azureDisk", "azure_disk", "azure-disk", "disk.csi.azure.com"),
    _plugin("azureFile", "azure_file", "azure-file", "file.csi.azure.com"),
    _plugin("cinder", "cinder", "cinder", "cinder.csi.openstack.org"),
    _plugin("gcePersistentDisk", "gce_persistent_disk", "gce-pd", "pd.csi.storage.gke.io"),
    _plugin("portworxVolume", "portworx_volume", "portworx-volume", "pxd.portworx.com"),
    _plugin("vsphereVolume", "vsphere_volume", "vsphere-volume", "csi.vsphere.vmware.com"),
    _plugin("cephfs", "cephfs", "cephfs", removed_in="1.31"),
    _plugin("flocker", "flocker", "flocker", removed_in="1.25"),
    _plugin("glusterfs", "glusterfs", "glusterfs", removed_in="1.26"),
    _plugin("photonPersistentDisk", "photon_persistent_disk", "photon-pd", removed_in="1.16"),
    _plugin("quobyte", "quobyte", "quobyte", removed_in="1.25"),
    _plugin("rbd", "rbd", "rbd", removed_in="1.31"),
    _plugin("scaleIO", "scale_io", "scaleio", removed_in="1.22"),
    _plugin("storageos", "storageos", "storageos", removed_in="1.25"),
)


def find_plugin(source: Volume | PersistentVolume) -> InTreePlugin | None:
    """The removed plugin that a volume of a pod, or a PersistentVolume, was written for."""
    holder = source.spec if isinstance(source, PersistentVolume) else source
    return next((plugin for plugin in PLUGINS if getattr(holder, plugin.attribute) is not None), None)


def is_replaced(volume: PersistentVolume) -> bool:
    """Whether the volume is of a plugin that a CSI driver replaces."""
    plugin = find_plugin(volume)
    return plugin is not None and bool(plugin.driver)


def find_plugin_by_name(name: str) -> InTreePlugin | None:
    """The removed plugin that a StorageClass names as its provisioner."""
    return next((plugin for plugin in PLUGINS if plugin.name == name), None)


def replacement_message(plugin: InTreePlugin) -> str:
    """What a user of the plugin can do instead."""
    if plugin.driver:
        return (
            f"the in-tree plugin {plugin.name} is replaced by the CSI driver {plugin.driver}: "
            "install that driver and use a csi volume"
        )
    return f"the in-tree plugin {plugin.name} was removed from Kubernetes in v{plugin.removed_in}"


def unsupported_source_message(source: Volume, volume: PersistentVolume | None) -> str:
    """Why no plugin serves the volume, if it is of a removed in-tree plugin; otherwise ""."""
    plugin = find_plugin(volume if volume is not None else source)
    return f"{plugin.field}: {replacement_message(plugin)}" if plugin is not None else ""
