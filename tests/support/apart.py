"""`volplane up --separate`, with the EBS driver and its sidecars as processes too instead of containers.

So every role can die alone. Each reads the point at which it is to die from a file named after it below
`arm/` of the data directory, and with `VOLPLANE_TEST_POINTS=1` writes what it passes below `points/`. The two
nodes share such a file, and so do the driver's two node services: whichever gets there first.

    python -m tests.support.apart --data-dir DIR --nodes 2
"""

from __future__ import annotations

import asyncio
import os

import click

from volplane.api.core import Node, ServiceAccount
from volplane.api.storage import CSIDriver, CSINode
from volplane.cli.options import options
from volplane.cli.running import serve, until
from volplane.cluster import readiness
from volplane.cluster.apply import ROLES, objects
from volplane.cluster.layout import Member
from volplane.cluster.separate import Separate
from volplane.cluster.whole import Settings
from volplane.drivers.ebs import NAME

CONTROLLER = "system:serviceaccount:kube-system:ebs-csi-controller-sa"
CLASSES = "classes.yaml"
KEPT = (CSIDriver, ServiceAccount)  # of the driver's manifest


class Apart(Separate):
    async def _deploy(self) -> None:
        await self._apply((ROLES, CLASSES))
        for obj in objects("ebs.yaml"):
            if isinstance(obj, KEPT):
                await self.client.create(obj, exists_ok=True)
        socket = f"{self.layout.run}/ebs.sock"
        self._keep("driver-controller", ["controller", f"--endpoint=unix:{socket}"], verb="driver")
        beside = [f"--csi-address={socket}", "--timeout=60s", "--kubeconfig", self._login(CONTROLLER)]
        self._keep("attacher", beside)
        self._keep("provisioner", [*beside, "--extra-create-metadata", "--default-fstype=ext4"])
        for member in self.members:
            self._keep_driver_on(member)

    def _keep_driver_on(self, member: Member) -> None:
        below = f"plugins/{NAME}/csi.sock"
        socket = f"{member.root}/{below}"
        os.makedirs(os.path.dirname(socket), mode=0o750, exist_ok=True)
        who = [f"--instance-id={member.instance}", f"--zone={member.zone}", f"--root-dir={member.root}"]
        self._keep(f"driver-node/{member.name}", ["node", f"--endpoint=unix:{socket}", *who], verb="driver")
        where = [f"--kubelet-registration-path=/var/lib/kubelet/{below}", f"--csi-address={socket}"]
        there = f"--plugin-registration-path={member.root}/plugins_registry"
        self._keep(f"registrar/{member.name}", [*where, there])

    def _environment(self, role: str, *, again: bool) -> dict[str, str]:
        env = super()._environment(role, again=again)
        env["VOLPLANE_FAILPOINT_FILE"] = f"{self.layout.directory}/arm/{role.partition('/')[0]}"
        if env.pop("VOLPLANE_TEST_POINTS", ""):
            log = f"{self.layout.directory}/points/{role.replace('/', '-')}"
            env.update(VOLPLANE_FAILPOINT_LOG=log, VOLPLANE_FAILPOINT_AFTER=str(self.layout.ready))
        return env

    async def ready(self) -> None:
        await self._unless_broken(self._registered())
        self._is_up = True
        self.layout.ready.write_text(f"{os.getpid()}\n")

    async def _registered(self) -> None:
        nodes, drivers = self.client.cache(Node), self.client.cache(CSINode)
        async with asyncio.timeout(readiness.PATIENCE):
            while not all(_is_ready(nodes.get(m.name), drivers.get(m.name)) for m in self.members):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _stop(self) -> None:
        await self._end_nodes()
        drivers = ("driver-", "registrar/", "attacher", "provisioner")
        await asyncio.gather(*(self._end(role) for role in list(self._keepers) if role.startswith(drivers)))
        await super()._stop()


def _is_ready(node: Node | None, driver: CSINode | None) -> bool:
    ready = node is not None and any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    return ready and driver is not None and NAME in [d.name for d in driver.spec.drivers]


@click.command()
@options(Settings)
def command(settings: Settings) -> None:
    serve(lambda stop: _up(settings, stop))


async def _up(settings: Settings, stop: asyncio.Event) -> None:
    async with Apart(settings) as cluster:
        await until(stop, cluster.ready())
        if not stop.is_set():
            await until(stop, cluster.wait())


if __name__ == "__main__":
    command()
