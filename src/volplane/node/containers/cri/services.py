"""The parts of a node that use a container runtime, put together."""

from __future__ import annotations

from collections.abc import Callable

from volplane.api.core import Container, Pod
from volplane.client.client import Client
from volplane.host import Host, NodePaths
from volplane.loops.events import EventRecorder
from volplane.node.containers.cri.client import CriClient
from volplane.node.containers.cri.health import RuntimeHealth
from volplane.node.containers.cri.image_collector import ImageCollector
from volplane.node.containers.cri.images import Images
from volplane.node.containers.cri.log_rotation import LogRotation
from volplane.node.containers.cri.pulled_images import PulledImages
from volplane.node.containers.cri.runtime import CriRuntime
from volplane.node.containers.cri.runtime_info import RuntimeInfo
from volplane.node.containers.cri.sandboxes import PodSandboxes
from volplane.node.containers.cri.stats import RuntimeStats
from volplane.node.containers.cri.usage import CriUsageReader
from volplane.node.network.relay import RelayLinks
from volplane.node.options import NodeOptions
from volplane.node.services import LinkedServices


class CriServices:
    def __init__(
        self,
        settings: NodeOptions,
        host: Host,
        paths: NodePaths,
        client: Client,
        events: EventRecorder,
        node: str,
        *,
        is_builtin: Callable[[Container], bool],
        hostname: Callable[[Pod], str],
        relay_links: RelayLinks,
        services: LinkedServices,
        on_health_changed: Callable[[], None],
        report: Callable[[str, str], None],
    ) -> None:
        """`report` gets the reason and text of a warning about the Node."""
        self.cri = CriClient(settings.container_runtime_endpoint, settings.image_service_endpoint)
        self.info = RuntimeInfo()
        self.sandboxes = PodSandboxes(
            self.cri,
            self.info,
            settings,
            host,
            paths,
            client,
            events,
            is_builtin=is_builtin,
            hostname=hostname,
            relay_links=relay_links,
            services=services,
        )
        self.runtime = CriRuntime(self.cri, self.info, self.sandboxes, host, root=paths.root)
        pulled = PulledImages(paths.root, host)
        self.images = Images(
            self.cri,
            self.info,
            client,
            events,
            pulled,
            serial=settings.serialize_image_pulls,
            parallel=settings.max_parallel_image_pulls,
        )
        self.stats = RuntimeStats(self.cri, node, paths.root)
        self.usage = CriUsageReader(self.cri, host, paths.root)
        self.health = RuntimeHealth(self.cri, self.info, on_health_changed)
        self.logs = LogRotation(
            self.cri,
            self.runtime,
            host,
            max_size=settings.log_max_size,
            max_files=settings.container_log_max_files,
        )
        self.collector = ImageCollector(
            self.cri,
            host,
            pulled,
            high=settings.image_gc_high_threshold,
            low=settings.image_gc_low_threshold,
            min_age=settings.minimum_image_ttl_duration,
            report=report,
        )

    async def close(self) -> None:
        await self.images.close()
        await self.cri.close()
