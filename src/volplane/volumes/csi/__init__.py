"""CSI volumes: `plugin` and `block` call, `drivers` says who is there, `request` and `data` are the forms."""

from volplane.volumes.csi.block import CsiBlock
from volplane.volumes.csi.drivers import Driver, Drivers
from volplane.volumes.csi.plugin import Csi

__all__ = ["Csi", "CsiBlock", "Driver", "Drivers"]
