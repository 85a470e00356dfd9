"""How the exit of a container is noticed: by the runtime's events, by its first process, or from the list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cri.containerd import Containerd
from volplane.api.core import Container, Pod, PodSpec
from volplane.api.meta import ObjectMeta
from volplane.csi.outcome import CallError, Code
from volplane.node.containers.base import ContainerRunState
from volplane.node.containers.cri import container_watch, v1
from volplane.node.containers.cri.client import CriClient, CriError
from volplane.node.containers.cri.container_watch import ContainerWatch
from volplane.node.containers.cri.first_process import FirstProcess
from volplane.node.containers.cri.labels import node_labels
from volplane.node.containers.cri.removal import remove_node
from volplane.node.containers.cri.runtime import CriContainer, read_pid
from volplane.node.containers.cri.sandbox_config import SandboxInputs, make_sandbox_config

pytestmark = [pytest.mark.root, pytest.mark.slow]

NEVER = 3600.0
FIRST, SECOND = "pod_first_0", "pod_second_0"


class WatchedPod:
    """Two running containers that only the watch looks at."""

    def __init__(self, cri: CriClient, root: Path) -> None:
        self.cri, self.root = cri, root
        self.containers: dict[str, CriContainer] = {}
        self.exited: asyncio.Queue[str] = asyncio.Queue()
        self.watch = ContainerWatch(cri, node_labels(str(root)), self.containers, self._note_exit)

    async def _note_exit(self, id: str, container: CriContainer) -> None:
        reply = await self.cri.container_status(container.cri_id)
        if reply.status.state == v1.CONTAINER_EXITED:
            container.finish(ContainerRunState(id, False))
            self.exited.put_nowait(id)

    async def start(self, *, follow_processes: bool) -> None:
        (self.root / "logs").mkdir()
        meta = ObjectMeta(name="watched", namespace="default", uid=self.root.name)
        pod = Pod(metadata=meta, spec=PodSpec(containers=(Container(name="main"),)))
        inputs = SandboxInputs(str(self.root), "watched", str(self.root / "logs"))
        config = make_sandbox_config(pod, 0, inputs)
        sandbox = await self.cri.run_sandbox(config, "")
        image = v1.ImageSpec(image="docker.io/library/busybox:latest")
        await self.cri.call("PullImage", v1.PullImageRequest(image=image))
        self.sandbox, self.config, self.image = sandbox, config, image
        for id in (FIRST, SECOND):
            container = await self.start_container(id)
            reply = await self.cri.container_status(container.cri_id)
            if follow_processes:
                container.process = FirstProcess.open(read_pid(reply.info))
            self.containers[id] = container
            self.watch.add(id, container)

    async def start_container(self, name: str) -> CriContainer:
        spec = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name=name),
            image=self.image,
            command=["sleep", "infinity"],
            labels=node_labels(str(self.root)),
            log_path=f"{name}.log",
            linux=v1.LinuxContainerConfig(),
        )
        cri_id = await self.cri.create_container(self.sandbox, spec, self.config)
        await self.cri.start_container(cri_id)
        return CriContainer(cri_id, ContainerRunState(name, True))

    async def wait_for_events(self) -> None:
        """Nothing tells that the stream is open but an event."""
        numbers = count()
        async with asyncio.timeout(20):
            while not self.watch.has_events:
                await self.start_container(f"extra-{next(numbers)}")

    async def end(self, id: str) -> None:
        await self.cri.stop_container(self.containers[id].cri_id, 0)

    async def close(self) -> None:
        await self.watch.close()
        for container in self.containers.values():
            container.release()


@asynccontextmanager
async def watch_pod(
    runtime: Containerd, root: Path, *, follow_processes: bool = False
) -> AsyncIterator[WatchedPod]:
    cri = CriClient(runtime.endpoint)
    pod = WatchedPod(cri, root)
    try:
        await pod.start(follow_processes=follow_processes)
        yield pod
    finally:
        await pod.close()
        await remove_node(runtime.endpoint, str(root))
        await cri.close()


async def expect_exit(pod: WatchedPod, id: str) -> None:
    async with asyncio.timeout(20):
        assert await pod.exited.get() == id


@pytest.fixture
def without_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of containers is not read, unless something asks for it."""
    monkeypatch.setattr(container_watch, "RELIST_INTERVAL", NEVER)
    monkeypatch.setattr(container_watch, "BACKSTOP_INTERVAL", NEVER)


@pytest.mark.usefixtures("without_list")
async def test_events_of_the_runtime_tell_of_an_exit(newer_containerd: Containerd, tmp_path: Path) -> None:
    async with watch_pod(newer_containerd, tmp_path) as pod:
        await pod.wait_for_events()
        await pod.end(FIRST)
        await expect_exit(pod, FIRST)
        assert pod.containers[SECOND].state.running


@pytest.mark.usefixtures("without_list")
async def test_exits_that_no_event_told_of_are_found_when_the_runtime_is_back(
    own_newer_containerd: Containerd, tmp_path: Path
) -> None:
    runtime = own_newer_containerd
    async with watch_pod(runtime, tmp_path) as pod:
        await pod.wait_for_events()
        await pod.end(FIRST)
        await expect_exit(pod, FIRST)
        reply = await pod.cri.container_status(pod.containers[SECOND].cri_id)
        runtime.kill()
        process = FirstProcess.open(read_pid(reply.info))
        assert process is not None
        await process.kill()
        process.close()
        runtime.start()
        await expect_exit(pod, SECOND)


@pytest.mark.usefixtures("without_list")
async def test_a_process_tells_of_its_exit_without_events(containerd: Containerd, tmp_path: Path) -> None:
    async with watch_pod(containerd, tmp_path, follow_processes=True) as pod:
        await pod.end(SECOND)
        await expect_exit(pod, SECOND)
        assert pod.containers[FIRST].state.running


class EventServer(grpc.GenericRpcHandler):
    """A runtime that lists the containers in `running`, and reports the exits in `exits` on one stream."""

    def __init__(self, *running: str) -> None:
        self.running = set(running)
        self.exits: asyncio.Queue[str] = asyncio.Queue()
        self.streams = 0

    def service(self, handler_call_details: Any) -> Any:
        async def list_containers(request: bytes, context: Any) -> bytes:
            found = [v1.Container(id=id, state=v1.CONTAINER_RUNNING) for id in self.running]
            return v1.ListContainersResponse(containers=found).SerializeToString()

        async def report_exits(request: bytes, context: Any) -> AsyncIterator[bytes]:
            self.streams += 1
            while True:
                id, stopped = await self.exits.get(), v1.CONTAINER_STOPPED_EVENT
                event = v1.ContainerEventResponse(container_id=id, container_event_type=stopped)
                yield event.SerializeToString()

        if handler_call_details.method.endswith("/GetContainerEvents"):
            return grpc.unary_stream_rpc_method_handler(report_exits)
        return grpc.unary_unary_rpc_method_handler(list_containers)


@asynccontextmanager
async def serve(runtime: EventServer, socket: Path) -> AsyncIterator[CriClient]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((runtime,))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    cri = CriClient(f"unix://{socket}")
    try:
        yield cri
    finally:
        await cri.close()
        await server.stop(0)


@pytest.mark.usefixtures("without_list")
async def test_an_exit_that_cannot_be_read_at_once_does_not_end_the_events(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    runtime = EventServer("first", "second")
    containers = {id: CriContainer(id, ContainerRunState(id, True)) for id in ("first", "second")}
    exited: asyncio.Queue[str] = asyncio.Queue()
    # The code with which a runtime without events refuses them.
    errors = [CriError("ContainerStatus", CallError(Code.UNIMPLEMENTED, "not now"))]

    async def note_exit(id: str, container: CriContainer) -> None:
        if errors:
            raise errors.pop()
        container.finish(ContainerRunState(id, False))
        exited.put_nowait(id)

    async with serve(runtime, tmp_path_factory.mktemp("cri") / "s") as cri:
        watch = ContainerWatch(cri, {}, containers, note_exit)
        try:
            for id, container in containers.items():
                watch.add(id, container)
            async with asyncio.timeout(20):
                for id in containers:
                    runtime.running.discard(id)
                    runtime.exits.put_nowait(id)
                    assert await exited.get() == id
            assert runtime.streams == 1
            assert watch.has_events
        finally:
            await watch.close()


async def test_a_runtime_with_neither_is_asked_for_its_list(containerd: Containerd, tmp_path: Path) -> None:
    async with watch_pod(containerd, tmp_path) as pod:
        await pod.end(FIRST)
        await expect_exit(pod, FIRST)
