"""`volplane up --separate`, with the EBS driver and its sidecars as processes instead of containers.

So every role can be killed alone. Each reads its failpoint from a file with its name below `arm/` in the data
directory, and with `VOLPLANE_TEST_POINTS=1` writes the failpoints that it passes below `points/`. The two
nodes share such a file, and so do the driver's two node services.

    python -m tests.support.separate_drivers --data-dir DIR --nodes 2
"""

from __future__ import annotations

import asyncio
import os

import click

from volplane.api.core import Node, ServiceAccount
from volplane.api.storage import CSIDriver, CSINode
from volplane.base.tasks import run_until
from volplane.cli.options import options
from volplane.cli.serve import serve
from volplane.cluster import readiness
from volplane.cluster.apply import ROLES, load_manifest
from volplane.cluster.data_directory import ClusterMember
from volplane.cluster.multi_process import MultiProcessCluster
from volplane.cluster.single_process import ClusterOptions
from volplane.drivers.ebs import NAME

CONTROLLER = "system:serviceaccount:kube-system:ebs-csi-controller-sa"
CLASSES = "classes.yaml"
KEPT = (CSIDriver, ServiceAccount)  # of the driver's manifest


class SeparateWithDrivers(MultiProcessCluster):
    async def _deploy(self) -> None:
        await self._apply((ROLES, "ebs-roles.yaml", CLASSES))
        for obj in load_manifest("ebs.yaml"):
            if isinstance(obj, KEPT):
                await self.client.create(obj, exists_ok=True)
        socket = f"{self.layout.run}/ebs.sock"
        self._start_role("driver-controller", ["controller", f"--endpoint=unix:{socket}"], verb="driver")
        beside = [
            f"--csi-address={socket}",
            "--timeout=60s",
            "--kubeconfig",
            self._write_kubeconfig(CONTROLLER),
        ]
        self._start_role("attacher", beside)
        self._start_role("provisioner", [*beside, "--extra-create-metadata", "--default-fstype=ext4"])
        for member in self.members:
            self._keep_driver_on(member)

    def _keep_driver_on(self, member: ClusterMember) -> None:
        below = f"plugins/{NAME}/csi.sock"
        socket = f"{member.root}/{below}"
        os.makedirs(os.path.dirname(socket), mode=0o750, exist_ok=True)
        who = [f"--instance-id={member.instance}", f"--zone={member.zone}", f"--root-dir={member.root}"]
        self._start_role(
            f"driver-node/{member.name}", ["node", f"--endpoint=unix:{socket}", *who], verb="driver"
        )
        where = [f"--kubelet-registration-path=/var/lib/kubelet/{below}", f"--csi-address={socket}"]
        there = f"--plugin-registration-path={member.root}/plugins_registry"
        self._start_role(f"registrar/{member.name}", [*where, there])

    def _environment(self, role: str, *, again: bool) -> dict[str, str]:
        env = super()._environment(role, again=again)
        env["VOLPLANE_FAILPOINT_FILE"] = f"{self.layout.directory}/arm/{role.partition('/')[0]}"
        if env.pop("VOLPLANE_TEST_POINTS", ""):
            log = f"{self.layout.directory}/points/{role.replace('/', '-')}"
            env.update(VOLPLANE_FAILPOINT_LOG=log, VOLPLANE_FAILPOINT_AFTER=str(self.layout.ready))
        return env

    async def wait_ready(self) -> None:
        await self._wait_unless_role_failed(self._wait_until_registered())
        self._is_up = True
        self.layout.ready.write_text(f"{os.getpid()}\n")

    async def _wait_until_registered(self) -> None:
        nodes, drivers = self.client.cache(Node), self.client.cache(CSINode)
        async with asyncio.timeout(readiness.WAIT_TIMEOUT):
            while not all(_is_ready(nodes.get(m.name), drivers.get(m.name)) for m in self.members):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _stop(self) -> None:
        await self._end_nodes()
        drivers = ("driver-", "registrar/", "attacher", "provisioner")
        await asyncio.gather(
            *(self._end(role) for role in list(self._supervisors) if role.startswith(drivers))
        )
        await super()._stop()


def _is_ready(node: Node | None, driver: CSINode | None) -> bool:
    ready = node is not None and any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    return ready and driver is not None and NAME in [d.name for d in driver.spec.drivers]


@click.command()
@options(ClusterOptions)
def command(settings: ClusterOptions) -> None:
    serve(lambda stop: _up(settings, stop))


async def _up(settings: ClusterOptions, stop: asyncio.Event) -> None:
    async with SeparateWithDrivers(settings) as cluster:
        await run_until(stop, cluster.wait_ready())
        if not stop.is_set():
            await run_until(stop, cluster.wait())


if __name__ == "__main__":
    command()
