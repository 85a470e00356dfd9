"""Drivers of several nodes on one machine have the same health port in their manifests; each is probed
itself.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from volplane import sdk
from volplane.api.core import Container, HTTPGetAction, Probe
from volplane.cluster.builtin_images import ImageDeps, builtin_images
from volplane.cluster.data_directory import free_port
from volplane.csi import v1
from volplane.drivers import ebs
from volplane.host import Host, NodePaths
from volplane.node.containers.base import ContainerSpec, Mount
from volplane.node.containers.task import TaskRuntime
from volplane.node.pods.lifecycle_handlers import Handlers
from volplane.node.pods.runtimes import Runtimes, container_id

DRIVER = Container(name="driver", image="x")


class Moody(sdk.Driver):
    name = "moody.example.com"
    ready = True

    async def probe(self) -> bool:
        return self.ready

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id="n")


async def test_each_driver_is_asked_by_its_own_liveness_probe(tmp_path: Path) -> None:
    port, host = free_port(), Host()
    probe = Probe(http_get=HTTPGetAction(path="/healthz", port=port))
    no_client: Any = None
    deps = ImageDeps(no_client, host, ebs.AwsAccount("", "", "", ""), {}, "")
    tasks = TaskRuntime(builtin_images(deps), NodePaths("/d/n/1"))
    runtimes = Runtimes(tasks, tasks)
    handlers, drivers = Handlers(runtimes), [Moody(), Moody()]

    async def answers() -> list[bool]:
        ids = [container_id(f"pod-{n}", "driver", 0) for n in range(2)]
        return [(await handlers.run(probe, DRIVER, id, "127.0.0.1", 3)).ok for id in ids]

    async def until(expected: list[bool]) -> None:
        async with asyncio.timeout(60):
            while True:
                if await answers() == expected:
                    return
                await asyncio.sleep(0.02)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(host.close)
        for number, driver in enumerate(drivers):
            place = tmp_path / str(number)
            place.mkdir()
            await stack.enter_async_context(sdk.DriverServer(driver, str(place / "csi.sock")))
            spec = ContainerSpec(
                id=container_id(f"pod-{number}", "liveness-probe", 0),
                image="volplane/livenessprobe",
                host_network=True,
                args=("--csi-address=/csi/csi.sock", f"--health-port={port}"),
                mounts=(Mount(str(place), "/csi"),),
                log_path=str(place / "log"),
            )
            await runtimes.start(spec)
        stack.push_async_callback(runtimes.close)
        await until([True, True])
        assert {runtimes.port(f"pod-{n}_driver_0", port) for n in range(2)} > {port}
        for sick in (0, 1):
            drivers[sick].ready = False
            await until([number != sick for number in range(2)])
            drivers[sick].ready = True
        await runtimes.stop(container_id("pod-1", "liveness-probe", 0), 5)
        await runtimes.stop(container_id("pod-0", "liveness-probe", 0), 5)
        assert await answers() == [False, False]
