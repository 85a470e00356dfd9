"""Authorization and routing of the kubelet's API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from volplane.api import codec
from volplane.base import metrics
from volplane.host import Host, NodePaths
from volplane.node.api.authentication import KubeletAuthenticator
from volplane.node.api.authorization import KubeletAuthorizer
from volplane.node.api.errors import KubeletApiError
from volplane.node.api.logs import LogRequest, read_log
from volplane.node.api.usage_metrics import render_container_metrics, render_resource_metrics
from volplane.node.pods.pod_manager import PodManager
from volplane.node.pods.records import NO_RECORD, ContainerRecord, all_containers
from volplane.node.pods.worker import PodWorker
from volplane.node.usage import NodeUsageReader
from volplane.web import Request, Response, Upgraded

log = logging.getLogger(__name__)

_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_JSON = [("Content-Type", "application/json")]


class ContainerTarget:
    """The container that a request names."""

    def __init__(self, worker: PodWorker, name: str) -> None:
        if all(c.name != name for c in all_containers(worker.pod)):
            raise KubeletApiError(404, f"container {name} is not valid for pod {worker.pod.name}")
        self.worker, self.name = worker, name

    @property
    def record(self) -> ContainerRecord:
        return self.worker.records.get(self.name, NO_RECORD)


class KubeletApi:
    def __init__(
        self,
        pods: PodManager,
        host: Host,
        paths: NodePaths,
        *,
        authenticator: KubeletAuthenticator,
        authorizer: KubeletAuthorizer,
        usage: NodeUsageReader,
        read_stats: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        """`read_stats`: the Summary API."""
        self._read_stats, self._usage = read_stats, usage
        self._authenticator, self._authorizer = authenticator, authorizer
        self.pods, self.host, self.paths = pods, host, paths

    async def __call__(self, request: Request) -> Response | Upgraded:
        try:
            # Split before decoding: an encoded slash does not separate parts.
            parts = [unquote(part) for part in request.raw_path.strip("/").split("/")]
            user = await self._authenticator.authenticate(request)
            request.user = user.username
            await self._authorizer.authorize(user, request.method, parts[0])
            return await self._route(request, parts)
        except KubeletApiError as refusal:
            return Response(refusal.status, _TEXT, f"{refusal}\n".encode())

    async def _route(self, request: Request, parts: list[str]) -> Response | Upgraded:
        first, *rest = parts
        match first, rest:
            case "healthz", _:
                return Response(200, _TEXT, b"ok")
            case "metrics", []:
                text = await asyncio.to_thread(metrics.prepare())
                return Response(200, {"Content-Type": metrics.CONTENT_TYPE}, text)
            case "metrics", ["resource"]:
                text = render_resource_metrics(await self._usage.read())
                return Response(200, {"Content-Type": metrics.CONTENT_TYPE}, text)
            case "metrics", ["cadvisor"]:
                text = render_container_metrics(await self._usage.read())
                return Response(200, {"Content-Type": metrics.CONTENT_TYPE}, text)
            case "stats", ["summary"] if self._read_stats is not None:
                return Response(200, _JSON, await self._read_stats())
            case "pods" | "runningpods", []:
                return Response(200, _JSON, self._pod_list())
            case "containerLogs", [namespace, pod, container]:
                return await self._logs(request, self._target(namespace, pod, container))
        return await self._stream(request, first, rest)

    async def _stream(self, request: Request, first: str, rest: list[str]) -> Response | Upgraded:
        # Imported on first use: the WebSocket library is large, and many nodes never need it.
        from volplane.node.api.portforward import forward
        from volplane.node.api.streams import attach, execute

        match first, rest:
            case "exec", [namespace, pod, *_, container] if len(rest) in (3, 4):
                return await execute(request, self._target(namespace, pod, container))
            case "attach", [namespace, pod, *_, container] if len(rest) in (3, 4):
                target = self._target(namespace, pod, container)
                return await attach(request, target, self.host, self.paths)
            case "portForward", [namespace, pod, *_] if len(rest) in (2, 3):
                worker = self._worker(namespace, pod)
                return await forward(request, lambda port: self.pods.deps.network.dial(worker.uid, port))
        raise KubeletApiError(404, "404 page not found")

    def _worker(self, namespace: str, pod: str) -> PodWorker:
        worker = self.pods.find(namespace, pod)
        if worker is None:
            raise KubeletApiError(404, f'pod "{pod}" not found in namespace "{namespace}" on this node')
        return worker

    def _target(self, namespace: str, pod: str, container: str) -> ContainerTarget:
        return ContainerTarget(self._worker(namespace, pod), container)

    async def _logs(self, request: Request, target: ContainerTarget) -> Response:
        options = LogRequest.from_query(request.query)
        body = await read_log(options, target, self.host, self.paths)
        return Response(200, _TEXT, body)

    def _pod_list(self) -> bytes:
        items = [codec.encode(pod) for pod in self.pods.cache.all()]
        head = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":['
        return head + b",".join(items) + b"]}"
