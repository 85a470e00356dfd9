"""A node with upstream's kubelet in a cluster of ours, on the same container runtime.

The kubelet, the node service of the EBS driver and its registrar are processes of the benchmark. API server,
controllers, scheduler, sidecars and disk service are those of `volplane up`, so that only the node differs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.bench.cluster_process import COMMAND, PATIENCE, ClusterProcess, until
from tests.support import machine
from tests.support.cri.containerd import Containerd
from volplane.api.apps import DaemonSet
from volplane.api.core import Node
from volplane.api.storage import CSINode
from volplane.cluster.aws_objects import cloud_variables
from volplane.cluster.data_directory import REGION, DataDirectory
from volplane.drivers.ebs import NAME as EBS
from volplane.drivers.ebs.ec2 import Ec2
from volplane.web.sigv4 import AwsKeys

PROGRAM = "kubelet"
NODE, INSTANCE = "upstream", "i-0f0f0f0f0f0f0f0f0"
ZONE = f"{REGION}a"
TERM_GRACE = 10.0  # seconds

# What a kubelet needs to run beside others, as root in a container of its own: no cgroups of its own, no
# eviction, no iptables. All periods are upstream's.
CONFIGURATION: Mapping[str, object] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "address": "127.0.0.1",
    "healthzPort": 0,
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failCgroupV1": False,
    "failSwapOn": False,
    "featureGates": {"KubeletInUserNamespace": True},  # goes on without /dev/kmsg and sysctls
    "localStorageCapacityIsolation": False,
    "makeIPTablesUtilChains": False,
    "imageGCHighThresholdPercent": 100,
    "evictionHard": dict.fromkeys(
        ("imagefs.available", "imagefs.inodesFree", "nodefs.available", "nodefs.inodesFree"), "0%"
    ),
}


class UpstreamKubelet:
    """`async with UpstreamKubelet(cluster, runtime, program):` the only node that takes new pods."""

    def __init__(self, running: ClusterProcess, runtime: Containerd, program: str) -> None:
        self._running, self._runtime, self._program = running, runtime, program
        self.directory = Path(tempfile.mkdtemp(prefix="kubelet-"))
        (self.directory / "log").touch()
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException as error:
            error.add_note((self.directory / "log").read_text(errors="replace")[-4000:])
            await self.__aexit__()
            raise
        return self

    async def _start(self) -> None:
        place = self.directory
        memory = DataDirectory(self._running.directory).load_saved()
        variables = cloud_variables(memory)
        driver, registration = place / "plugins" / EBS, place / "plugins_registry"
        devices = place / "instance" / "dev"
        for path in (driver, registration, devices):
            path.mkdir(parents=True)
        await _register_instance(variables, devices)
        (place / "kubelet.json").write_text(json.dumps(self._configuration()))
        await self._reserve()
        await self._spawn(
            *COMMAND, "driver", "node", f"--endpoint=unix://{driver}/csi.sock", f"--instance-id={INSTANCE}",
            f"--zone={ZONE}", f"--root-dir={place}/instance", f"--target-root={place}",
            variables=variables,
        )  # fmt: skip
        await self._spawn(
            *COMMAND, "registrar", f"--csi-address={driver}/csi.sock",
            f"--kubelet-registration-path={driver}/csi.sock", f"--plugin-registration-path={registration}",
        )  # fmt: skip
        await self._spawn(
            self._program, f"--config={place}/kubelet.json", f"--root-dir={place}", f"--cert-dir={place}/pki",
            f"--kubeconfig={self._running.directory}/kubeconfig", f"--hostname-override={NODE}",
            f"--node-labels=topology.kubernetes.io/zone={ZONE}",
        )  # fmt: skip
        await self._until_ready()

    def _configuration(self) -> dict[str, object]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        place = self.directory
        return {
            **CONFIGURATION,
            "port": port,
            "providerID": f"aws:///{ZONE}/{INSTANCE}",
            "containerRuntimeEndpoint": self._runtime.endpoint,
            "podLogsDir": f"{place}/logs",
            "volumePluginDir": f"{place}/volume-plugins",
            "resolvConf": "",
        }

    async def _reserve(self) -> None:
        """Keep new pods off the other nodes, and the built-in images of node services off this one."""
        client = self._running.client
        for node in await client.list(Node):
            await client.patch(Node, node.name, strategic={"spec": {"unschedulable": True}})
        for each in await client.list(DaemonSet):
            await client.delete(DaemonSet, each.name, each.namespace)

    async def _spawn(self, *command: str, variables: Mapping[str, str] = {}) -> None:
        with (self.directory / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        self._processes.append(process)

    async def _until_ready(self) -> None:
        nodes, drivers = await self._running.watch(Node), await self._running.watch(CSINode)
        await until(nodes, lambda: is_ready(nodes.get(NODE)), "upstream's kubelet is ready")
        await until(drivers, lambda: has_driver(drivers.get(NODE)), "it has the driver")

    async def __aexit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    async with asyncio.timeout(TERM_GRACE):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()
        machine.purge(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)


def is_ready(node: Node | None) -> bool:
    return node is not None and any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


def has_driver(node: CSINode | None) -> bool:
    return node is not None and any(driver.name == EBS for driver in node.spec.drivers)


async def _register_instance(variables: Mapping[str, str], devices: Path) -> None:
    """With the disk service, which puts attached disks into the directory."""
    keys = AwsKeys(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
    ec2 = Ec2(variables["AWS_ENDPOINT_URL"], region=REGION, keys=lambda: keys)
    try:
        async with asyncio.timeout(PATIENCE):
            await ec2.register_instance(INSTANCE, zone=ZONE, directory=str(devices))
    finally:
        await ec2.close()
