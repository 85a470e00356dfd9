"""Write a CSI driver by overriding methods.

    class Disks(sdk.Driver):
        name, version = "disks.example.com", "1.0"

        async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse: ...
        async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse: ...

    await sdk.serve(Disks(), "/run/csi/csi.sock")

Capabilities follow from the overridden methods. Drivers raise `errors`. `Local` calls a driver in memory.
`Mounter` has what nearly every node service does: format, mount, bind, measure. It runs on the threads of a
`Host`.
"""

from volplane.csi import v1
from volplane.host import Host
from volplane.sdk import errors
from volplane.sdk.driver import Driver
from volplane.sdk.mounting import Mounter
from volplane.sdk.server import DriverServer, Local, serve

__all__ = ["Driver", "DriverServer", "Host", "Local", "Mounter", "errors", "serve", "v1"]
