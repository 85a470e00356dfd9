"""The provisioner at work: volumes for claims, an end for volumes nobody claims, and what goes with both."""

from volplane.sidecars.provisioner.controller.capacity import Capacities, owner
from volplane.sidecars.provisioner.controller.claims import COMPONENT, Claims
from volplane.sidecars.provisioner.controller.sources import Guard, snapshots_defined
from volplane.sidecars.provisioner.controller.turns import Turns
from volplane.sidecars.provisioner.controller.volumes import Volumes

__all__ = ["COMPONENT", "Capacities", "Claims", "Guard", "Turns", "Volumes", "owner", "snapshots_defined"]
