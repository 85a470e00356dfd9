"""The provisioner at work: volumes for claims, an end for volumes nobody claims, and what goes with both."""

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
