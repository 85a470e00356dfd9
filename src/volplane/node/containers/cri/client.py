"""Calls to a container runtime over CRI v1: one method each, with its timeout and clear errors.

A runtime that does not answer raises `RuntimeUnavailable`: what it has done of a call is unknown then, and it
may go on. Every other error is the runtime's answer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from volplane.base import failpoint
from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.csi.connection import GrpcConnection
from volplane.csi.outcome import CallError, Code
from volplane.csi.services import Method, list_methods
from volplane.node.containers.base import ContainerError
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.proto import image_pb2, runtime_pb2

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT = 120.0  # seconds of one call, as the kubelet's --runtime-request-timeout
CHECK_TIMEOUT = 10.0  # seconds of calls that only read
STOP_SLACK = 60.0  # seconds that a stop may take beyond the container's grace period

RETRY = Backoff(0.1, 5.0)  # between attempts of a call that must be carried out

_UNANSWERED = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED})
_METHODS: dict[str, Method] = {
    name: method
    for module in (runtime_pb2, image_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for name, method in list_methods(service).items()
}


class CriError(ContainerError):
    """The runtime refused a call; the text is the runtime's."""

    def __init__(self, method: str, error: CallError) -> None:
        super().__init__(str(error))
        self.method, self.code, self.message = method, error.code, error.message


class RuntimeUnavailable(CriError):
    """The runtime did not answer: what it has done is unknown."""


class NotFoundInRuntime(CriError):
    """The runtime has no such sandbox, container or image."""


class CriClient:
    """`endpoint` and `image_endpoint` are addresses such as unix:///run/containerd/containerd.sock."""

    def __init__(self, endpoint: str, image_endpoint: str = "") -> None:
        self.endpoint = endpoint
        self._runtime = GrpcConnection(endpoint)
        same = not image_endpoint or image_endpoint == endpoint
        self._images = self._runtime if same else GrpcConnection(image_endpoint)

    async def call(self, method: str, request: Message, timeout: float = TIMEOUT) -> Any:
        """The reply. Raises CriError."""
        spec = _METHODS[method]
        if failpoint.is_armed:
            failpoint.hit(f"cri:{method}:before")
        connection = self._images if spec.service == "runtime.v1.ImageService" else self._runtime
        try:
            reply = await connection.send(spec, request, timeout)
        except CallError as error:
            log.debug("CRI call %s failed: %s", method, error)
            raise _to_cri_error(method, error) from None
        if failpoint.is_armed:
            failpoint.hit(f"cri:{method}:after")
        return reply

    async def version(self) -> v1.VersionResponse:
        reply: v1.VersionResponse = await self.call("Version", v1.VersionRequest(), CHECK_TIMEOUT)
        return reply

    async def status(self, *, verbose: bool = False) -> v1.StatusResponse:
        reply: v1.StatusResponse = await self.call("Status", v1.StatusRequest(verbose=verbose), CHECK_TIMEOUT)
        return reply

    async def list_sandboxes(self, labels: dict[str, str]) -> list[v1.PodSandbox]:
        request = v1.ListPodSandboxRequest(filter=v1.PodSandboxFilter(label_selector=labels))
        reply: v1.ListPodSandboxResponse = await self.call("ListPodSandbox", request, CHECK_TIMEOUT)
        return list(reply.items)

    async def sandbox_status(self, id: str) -> v1.PodSandboxStatusResponse:
        request = v1.PodSandboxStatusRequest(pod_sandbox_id=id, verbose=True)
        reply: v1.PodSandboxStatusResponse = await self.call("PodSandboxStatus", request, CHECK_TIMEOUT)
        return reply

    async def run_sandbox(self, config: v1.PodSandboxConfig, handler: str) -> str:
        request = v1.RunPodSandboxRequest(config=config, runtime_handler=handler)
        reply: v1.RunPodSandboxResponse = await self.call("RunPodSandbox", request, 2 * TIMEOUT)
        return reply.pod_sandbox_id

    async def stop_sandbox(self, id: str) -> None:
        await self.call("StopPodSandbox", v1.StopPodSandboxRequest(pod_sandbox_id=id))

    async def remove_sandbox(self, id: str) -> None:
        await self.call("RemovePodSandbox", v1.RemovePodSandboxRequest(pod_sandbox_id=id))

    async def list_containers(self, labels: dict[str, str], sandbox: str = "") -> list[v1.Container]:
        chosen = v1.ContainerFilter(label_selector=labels, pod_sandbox_id=sandbox)
        request = v1.ListContainersRequest(filter=chosen)
        reply: v1.ListContainersResponse = await self.call("ListContainers", request, CHECK_TIMEOUT)
        return list(reply.containers)

    async def container_status(self, id: str) -> v1.ContainerStatusResponse:
        request = v1.ContainerStatusRequest(container_id=id, verbose=True)
        reply: v1.ContainerStatusResponse = await self.call("ContainerStatus", request, CHECK_TIMEOUT)
        return reply

    async def create_container(
        self, sandbox: str, config: v1.ContainerConfig, sandbox_config: v1.PodSandboxConfig
    ) -> str:
        request = v1.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=config, sandbox_config=sandbox_config
        )
        reply: v1.CreateContainerResponse = await self.call("CreateContainer", request)
        return reply.container_id

    async def start_container(self, id: str) -> None:
        await self.call("StartContainer", v1.StartContainerRequest(container_id=id))

    async def stop_container(self, id: str, grace: float) -> None:
        """Send the stop signal, and kill it after `grace` seconds; returns when it has exited."""
        seconds = max(0, round(grace))
        request = v1.StopContainerRequest(container_id=id, timeout=seconds)
        await self.call("StopContainer", request, seconds + STOP_SLACK)

    async def remove_container(self, id: str) -> None:
        await self.call("RemoveContainer", v1.RemoveContainerRequest(container_id=id))

    async def reopen_log(self, id: str) -> None:
        await self.call("ReopenContainerLog", v1.ReopenContainerLogRequest(container_id=id))

    async def list_stats(self, labels: dict[str, str]) -> list[v1.ContainerStats]:
        request = v1.ListContainerStatsRequest(filter=v1.ContainerStatsFilter(label_selector=labels))
        reply: v1.ListContainerStatsResponse = await self.call("ListContainerStats", request)
        return list(reply.stats)

    async def container_events(self) -> AsyncIterator[v1.ContainerEventResponse]:
        """Events of all containers of the runtime. Raises CriError; UNIMPLEMENTED where it has none."""
        method = _METHODS["GetContainerEvents"]
        try:
            async for event in self._runtime.stream(method, v1.GetEventsRequest(), timeout=None):
                yield event
        except CallError as error:
            raise _to_cri_error(method.name, error) from None

    async def close(self) -> None:
        await self._runtime.close()
        if self._images is not self._runtime:
            await self._images.close()


def _to_cri_error(method: str, error: CallError) -> CriError:
    if error.code in _UNANSWERED:
        return RuntimeUnavailable(method, error)
    if error.code is Code.NOT_FOUND:
        return NotFoundInRuntime(method, error)
    return CriError(method, error)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the runtime has carried it out: what is not stopped may use a volume.

    Raises NotFoundInRuntime only.
    """

    def report(error: Exception) -> None:
        if isinstance(error, NotFoundInRuntime):
            raise error
        log.warning("container runtime: %s; trying again", error)

    return await retry(call, on=CriError, backoff=RETRY, report=report)
