"""The provisioner's controllers: claims, released volumes, data sources and capacities."""

from volplane.sidecars.provisioner.controller.capacity import CapacityPublisher, find_owner
from volplane.sidecars.provisioner.controller.claims import COMPONENT, ClaimProvisioner
from volplane.sidecars.provisioner.controller.node_claim_race import NodeClaimRace
from volplane.sidecars.provisioner.controller.sources import SourceProtection, wait_for_snapshot_crd
from volplane.sidecars.provisioner.controller.volumes import ReleasedVolumeDeleter

__all__ = [
    "COMPONENT",
    "CapacityPublisher",
    "ClaimProvisioner",
    "NodeClaimRace",
    "ReleasedVolumeDeleter",
    "SourceProtection",
    "find_owner",
    "wait_for_snapshot_crd",
]
