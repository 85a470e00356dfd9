"""A CSI driver that a test controls, on a real socket, in memory, or in a separate process.

    driver = scripted.driver("attach", "snapshots", "expand")
    driver.script("CreateVolume", Fail(Code.INTERNAL), Lose(), Delay(0.5), hold := Hold())
    async with scripted.on_socket(driver) as socket:      # socket.path; socket.cut() breaks all connections
        ...
    assert len(driver.requests_of("CreateVolume")) == 4

`sdk.Local(driver)` calls it in memory, in virtual time. With a `directory` its volumes, snapshots and
publications persist; `scripted.process(directory, …)` is the same driver as a process that can be killed,
controlled through files in that directory.
"""

from tests.support.scripted.driver import NAME, ZONE, ScriptedDriver, driver
from tests.support.scripted.outcomes import Break, Delay, Fail, Hold, Lose
from tests.support.scripted.process import Process, process
from tests.support.scripted.sockets import Socket, on_socket

__all__ = [
    "NAME",
    "ZONE",
    "Break",
    "Delay",
    "Fail",
    "Hold",
    "Lose",
    "Process",
    "ScriptedDriver",
    "Socket",
    "driver",
    "on_socket",
    "process",
]
