"""(k) CPU time of `volplane up` for one claim, from its creation until its volume is deleted.

Measured with the EBS driver, which runs in the process, and with upstream's host-path driver, whose own CPU
time does not count. CPU time depends less on other load of the machine than the time that has passed.
"""

from __future__ import annotations

import shlex
import sys

from tests.bench import claims
from tests.bench.cluster_process import ClusterProcess
from tests.bench.objects import IMMEDIATE
from tests.bench.report import Figure
from tests.support import peers
from volplane.api.meta import ObjectMeta
from volplane.api.storage import StorageClass

HOST_PATH = StorageClass(
    metadata=ObjectMeta(name="host-path"),
    provisioner="hostpath.csi.k8s.io",
    volume_binding_mode="Immediate",
)


async def measure(nodes: int, count: int, rounds: int) -> list[Figure]:
    async with ClusterProcess(nodes) as running:
        figures = [await _measure_driver(running, "EBS", IMMEDIATE, count, rounds)]
    program = peers.find("hostpathplugin")
    if program is None:
        print(peers.why_missing("hostpathplugin"), file=sys.stderr)
        return figures
    command = f"{shlex.quote(program)} --endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --statedir=$STATE_DIR"
    async with ClusterProcess(nodes, "--driver-command", command) as running:
        await running.client.create(HOST_PATH)
        figures.append(await _measure_driver(running, "host-path", HOST_PATH.name, count, rounds))
    return figures


async def _measure_driver(
    running: ClusterProcess, driver: str, storage_class: str, count: int, rounds: int
) -> Figure:
    await running.warm()
    samples = []
    for number in range(-1, rounds):  # the first one is not counted
        before = running.cpu_seconds(children=False)
        await claims.create_bound(running, count, f"cpu-{number}", storage_class)
        await claims.delete_all(running)
        samples.append((running.cpu_seconds(children=False) - before) * 1000 / count)
    name = f"CPU time per claim, create and delete, {driver}"
    return Figure(key="k", name=name, unit="ms", samples=tuple(samples[1:]))
