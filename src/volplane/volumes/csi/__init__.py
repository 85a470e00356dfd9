"""CSI volumes: `plugin` makes the calls, `drivers` knows who is there, `request` and `data` are their forms."""

from volplane.volumes.csi.drivers import Driver, Drivers
from volplane.volumes.csi.plugin import Csi

__all__ = ["Csi", "Driver", "Drivers"]
