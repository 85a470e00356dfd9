"""CSI volumes: `plugin` and `block` call, `drivers` says who is there, `request` and `data` are the forms."""

from volplane.volumes.csi.block import CsiBlockPlugin
from volplane.volumes.csi.drivers import RegisteredDriver, RegisteredDrivers
from volplane.volumes.csi.plugin import CsiPlugin

__all__ = ["CsiBlockPlugin", "CsiPlugin", "RegisteredDriver", "RegisteredDrivers"]
