"""The provisioner at work: volumes for claims, an end for volumes nobody claims, and what goes with both."""

from volplane.sidecars.provisioner.controller.capacity import Capacities, owner
from volplane.sidecars.provisioner.controller.claims import COMPONENT, Claims
from volplane.sidecars.provisioner.controller.sources import SourceProtection, wait_for_snapshot_crd
from volplane.sidecars.provisioner.controller.turns import Turns
from volplane.sidecars.provisioner.controller.volumes import Volumes

__all__ = [
    "COMPONENT",
    "Capacities",
    "Claims",
    "SourceProtection",
    "Turns",
    "Volumes",
    "owner",
    "wait_for_snapshot_crd",
]
