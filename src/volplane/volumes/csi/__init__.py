"""CSI volumes: `plugin` makes the calls, `drivers` says who is there, `request` and `data` are the forms."""

from volplane.volumes.csi.drivers import Driver, Drivers
from volplane.volumes.csi.plugin import Csi

__all__ = ["Csi", "Driver", "Drivers"]
