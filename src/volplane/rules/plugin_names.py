"""The names of volume plugins in metrics and reports, as upstream spells them."""

from __future__ import annotations

from volplane.api.core import PersistentVolume, Volume

CSI = "kubernetes.io/csi"
NOT_AVAILABLE = "N/A"

# The other plugins for PersistentVolumes, by the field of the source in the spec.
_BY_SOURCE = {
    "host_path": "kubernetes.io/host-path",
    "local": "kubernetes.io/local-volume",
    "nfs": "kubernetes.io/nfs",
    "iscsi": "kubernetes.io/iscsi",
    "fc": "kubernetes.io/fc",
    "portworx_volume": "kubernetes.io/portworx-volume",
}


def qualify_csi(driver: str) -> str:
    """`kubernetes.io/csi:ebs.csi.aws.com`."""
    return f"{CSI}:{driver}"


def plugin_of_volume(volume: PersistentVolume) -> str:
    """The plugin of a PersistentVolume, with the driver's name for CSI; N/A if there is none."""
    spec = volume.spec
    if spec.csi is not None:
        return qualify_csi(spec.csi.driver)
    if spec.flex_volume is not None:
        return spec.flex_volume.driver
    found = (name for source, name in _BY_SOURCE.items() if getattr(spec, source) is not None)
    return next(found, NOT_AVAILABLE)


def plugin_of_unique_name(plugin: str, unique_name: str) -> str:
    """The plugin of a volume of which only the unique name is known, as after a restart."""
    driver, separator, _ = unique_name.removeprefix(f"{CSI}/").partition("^")
    if unique_name.startswith(f"{CSI}/") and separator:
        return qualify_csi(driver)
    return CSI if plugin.startswith(f"{CSI}:") else plugin


def plugin_of_source(plugin: str, source: Volume, volume: PersistentVolume | None) -> str:
    """The plugin of a pod's volume, with the driver's name for CSI."""
    if volume is not None and volume.spec.csi is not None:
        return qualify_csi(volume.spec.csi.driver)
    return qualify_csi(source.csi.driver) if source.csi is not None else plugin
