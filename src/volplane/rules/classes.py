"""Storage classes: the default, the provisioner, and which in-tree names stand for CSI drivers.

A class that does not exist does not delay binding: its claim gets an event from provisioning instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.annotations import BETA_DEFAULT_CLASS_ANNOTATION, DEFAULT_CLASS_ANNOTATION
from volplane.api.storage import StorageClass
from volplane.rules import in_tree

IMMEDIATE = "Immediate"
FIRST_CONSUMER = "WaitForFirstConsumer"

IN_TREE = in_tree.PREFIX
NO_PROVISIONER = "kubernetes.io/no-provisioner"

# In-tree plugins that were removed, and the CSI drivers that replace them.
MIGRATED = {plugin.name: plugin.driver for plugin in in_tree.PLUGINS if plugin.driver}
MIGRATION_DRIVERS = frozenset(MIGRATED.values())


def is_default(storage_class: StorageClass) -> bool:
    notes = storage_class.metadata.annotations
    return notes.get(DEFAULT_CLASS_ANNOTATION) == "true" or notes.get(BETA_DEFAULT_CLASS_ANNOTATION) == "true"


def default(classes: Iterable[StorageClass]) -> StorageClass | None:
    """The newest class that is marked as default; of equally old ones the first by name."""
    marked = sorted((c for c in classes if is_default(c)), key=lambda c: c.name)
    # Timestamps have one format, so they compare as strings; max() returns the first of equals.
    return max(marked, key=lambda c: c.metadata.creation_timestamp, default=None)


def is_delayed(storage_class: StorageClass | None) -> bool:
    return storage_class is not None and storage_class.volume_binding_mode == FIRST_CONSUMER


def is_external(provisioner: str) -> bool:
    """Whether a CSI driver provisions the volumes, under its own name or that of an in-tree plugin."""
    return not provisioner.startswith(IN_TREE) or provisioner in MIGRATED


def driver_name(provisioner: str) -> str:
    """The name of the CSI driver; an in-tree name is translated."""
    return MIGRATED.get(provisioner, provisioner)
