"""The provisioner at work: one loop makes volumes for claims, one gets rid of volumes nobody claims."""

from volplane.sidecars.provisioner.controller.claims import COMPONENT, Claims
from volplane.sidecars.provisioner.controller.volumes import Volumes

__all__ = ["COMPONENT", "Claims", "Volumes"]
