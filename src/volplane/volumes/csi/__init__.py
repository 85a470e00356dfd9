"""CSI volumes.

`plugin` and `block` call drivers, `drivers` holds the registered ones, `request` builds messages, `vol_data`
reads and writes vol_data.json.
"""

from volplane.volumes.csi.block import CsiBlockPlugin
from volplane.volumes.csi.drivers import RegisteredDriver, RegisteredDrivers
from volplane.volumes.csi.plugin import CsiPlugin

__all__ = ["CsiBlockPlugin", "CsiPlugin", "RegisteredDriver", "RegisteredDrivers"]
