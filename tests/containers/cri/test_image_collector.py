"""Images that the runtime does not remove, and images that only volumes use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cri import image
from tests.support.cri.containerd import Containerd
from tests.support.cri.registry import Registry
from volplane.api.core import Container, Pod, PodSpec
from volplane.api.meta import ObjectMeta
from volplane.host import Host
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import CriClient, RuntimeUnavailable
from volplane.node.containers.cri.image_collector import ImageCollector
from volplane.node.containers.cri.labels import node_labels
from volplane.node.containers.cri.pulled_images import PulledImages
from volplane.node.containers.cri.removal import remove_node
from volplane.node.containers.cri.sandbox_config import SandboxInputs, make_sandbox_config

pytestmark = [pytest.mark.root, pytest.mark.slow]

REMOVE = "/runtime.v1.ImageService/RemoveImage"


class ImageServiceProxy(grpc.GenericRpcHandler):
    """Passes calls on to a runtime's image service, but answers `RemoveImage` with an error while told to."""

    def __init__(self, runtime: Containerd) -> None:
        self._channel = grpc.aio.insecure_channel(runtime.endpoint)
        self.error = grpc.StatusCode.INTERNAL
        self.refusals = 0  # how many removals are still refused
        self.refused: list[str] = []

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method

        async def answer(request: bytes, context: Any) -> bytes:
            if method == REMOVE and self.refusals:
                self.refusals -= 1
                self.refused.append(v1.RemoveImageRequest.FromString(request).image.image)
                await context.abort(self.error, "the snapshot is busy")
            forward: Any = self._channel.unary_unary(method)
            reply: bytes = await forward(request)
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)

    async def close(self) -> None:
        await self._channel.close()


class CollectedNode:
    """A node that has pulled images, and its collector."""

    def __init__(self, runtime: Containerd, proxy: ImageServiceProxy, socket: str, root: Path) -> None:
        self.runtime, self.proxy, self.root, self.host = runtime, proxy, root, Host()
        self.cri = CriClient(runtime.endpoint, f"unix://{socket}")
        self.pulled = PulledImages(str(root), self.host)
        self.reports: list[tuple[str, str]] = []
        self.collector = ImageCollector(
            self.cri,
            self.host,
            self.pulled,
            high=0,
            low=0,
            min_age=0.0,
            report=lambda reason, message: self.reports.append((reason, message)),
        )

    async def pull(self, name: str) -> str:
        request = v1.PullImageRequest(image=v1.ImageSpec(image=name))
        reply: v1.PullImageResponse = await self.cri.call("PullImage", request)
        await self.pulled.add(reply.image_ref)
        return reply.image_ref

    async def create_container(self, mounted: str) -> str:
        """A container that mounts an image, and is never started."""
        (self.root / "logs").mkdir()
        meta = ObjectMeta(name="mounts", namespace="default", uid=self.root.name)
        pod = Pod(metadata=meta, spec=PodSpec(containers=(Container(name="main"),)))
        config = make_sandbox_config(pod, 0, SandboxInputs(str(self.root), "mounts", str(self.root / "logs")))
        sandbox = await self.cri.run_sandbox(config, "")
        busybox = v1.ImageSpec(image="docker.io/library/busybox:latest")
        await self.cri.call("PullImage", v1.PullImageRequest(image=busybox))
        model = v1.Mount(container_path="/model", image=v1.ImageSpec(image=mounted), readonly=True)
        spec = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name="main"),
            image=busybox,
            command=["sleep", "infinity"],
            labels=node_labels(str(self.root)),
            log_path="main.log",
            linux=v1.LinuxContainerConfig(),
            mounts=[model],
        )
        return await self.cri.create_container(sandbox, spec, config)

    async def close(self) -> None:
        await remove_node(self.runtime.endpoint, str(self.root))
        await self.cri.close()
        await self.host.close()


@asynccontextmanager
async def collected_node(runtime: Containerd, root: Path) -> AsyncIterator[CollectedNode]:
    proxy, server = ImageServiceProxy(runtime), grpc.aio.server()
    socket = f"{runtime.directory}/images.sock"  # a short path
    server.add_generic_rpc_handlers((proxy,))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    node = CollectedNode(runtime, proxy, socket, root)
    try:
        yield node
    finally:
        await node.close()
        await server.stop(0)
        await proxy.close()


async def test_an_image_that_is_not_removed_does_not_keep_the_others(
    own_containerd: Containerd, tmp_path: Path
) -> None:
    async with collected_node(own_containerd, tmp_path) as node:
        ids = {await node.pull(name) for name in ("busybox:1.35", "nginx:1.22")}
        node.proxy.refusals = 1
        removed = await node.collector.collect()
        (refused,) = node.proxy.refused
        assert {refused, *removed} == ids
        assert refused not in removed
        ((reason, message), _) = node.reports
        assert reason == "ImageGCFailed"
        assert message.startswith(f"cannot remove image {refused}: ")
        assert "the snapshot is busy" in message
        assert await node.pulled.load() == {refused}
        assert await node.collector.collect() == [refused]  # at the next round


async def test_a_runtime_that_is_away_ends_the_round(own_containerd: Containerd, tmp_path: Path) -> None:
    async with collected_node(own_containerd, tmp_path) as node:
        ids = {await node.pull(name) for name in ("busybox:1.35", "nginx:1.22")}
        node.proxy.refusals, node.proxy.error = 2, grpc.StatusCode.UNAVAILABLE
        with pytest.raises(RuntimeUnavailable):
            await node.collector.collect()
        assert len(node.proxy.refused) == 1
        assert await node.pulled.load() == ids


async def test_an_image_that_a_volume_used_is_removed_after_those_that_nobody_used(
    own_newer_containerd: Containerd, registry: Registry, tmp_path: Path
) -> None:
    async with collected_node(own_newer_containerd, tmp_path) as node:
        ids = []
        for number in range(4):
            layer = image.build_layer(files={"card": f"model {number}"})
            registry.push(image.OciImage((layer,)), f"models/collected:{number}")
            ids.append(await node.pull(f"models/collected:{number}"))
        container = await node.create_container(ids[0])
        node.proxy.refusals = 2 * len(ids[1:])
        for _ in range(2):  # rounds that see which images are used
            assert await node.collector.collect() == []
        assert set(node.proxy.refused) == set(ids[1:])
        await node.cri.remove_container(container)
        removed = await node.collector.collect()
        assert set(removed) == set(ids)
        assert removed[-1] == ids[0]
