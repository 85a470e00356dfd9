"""Storage classes: which one is the default, who provisions for one, which in-tree names mean CSI drivers.

The subtle thing: a class name that no class answers to is not delayed; its claim is told so by provisioning.
"""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.storage import StorageClass

IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
BETA_IS_DEFAULT = "storageclass.beta.kubernetes.io/is-default-class"

IMMEDIATE = "Immediate"
FIRST_CONSUMER = "WaitForFirstConsumer"

IN_TREE = "kubernetes.io/"
NO_PROVISIONER = "kubernetes.io/no-provisioner"

# The in-tree plugins that are gone, and the CSI drivers that answer to their names since.
MIGRATED = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}
MIGRATION_DRIVERS = frozenset(MIGRATED.values())


def is_default(storage_class: StorageClass) -> bool:
    notes = storage_class.metadata.annotations
    return notes.get(IS_DEFAULT) == "true" or notes.get(BETA_IS_DEFAULT) == "true"


def default(classes: Iterable[StorageClass]) -> StorageClass | None:
    """The newest class that is marked as default; among equally old ones the first by name."""
    marked = sorted((c for c in classes if is_default(c)), key=lambda c: c.name)
    # Stamps are of one format, so they order as strings; max() keeps the first of equals.
    return max(marked, key=lambda c: c.metadata.creation_timestamp, default=None)


def is_delayed(storage_class: StorageClass | None) -> bool:
    return storage_class is not None and storage_class.volume_binding_mode == FIRST_CONSUMER


def is_external(provisioner: str) -> bool:
    """Somebody outside the control plane makes the volumes: a CSI driver, under its own or an old name."""
    return not provisioner.startswith(IN_TREE) or provisioner in MIGRATED


def driver_name(provisioner: str) -> str:
    """The name under which the external side listens."""
    return MIGRATED.get(provisioner, provisioner)
