"""What containers of a runtime use, for metrics-server and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import structs

from volplane.host import Host
from volplane.node.containers.cri import labels, v1
from volplane.node.containers.cri.client import CriClient, CriError
from volplane.node.usage import ContainerSample, NodeSample, read_node

NANO = 1e9


class CriUsageReader:
    def __init__(self, cri: CriClient, host: Host, root: str) -> None:
        self._cri, self._host, self._root = cri, host, root

    async def read(self) -> NodeSample:
        """Without containers while the runtime does not answer."""
        node = await self._host.call(read_node)
        own = labels.node_labels(self._root)
        try:
            stats = await self._cri.list_stats(own)
            created = {each.id: each.created_at / NANO for each in await self._cri.list_containers(own)}
        except CriError:
            return node
        return structs.replace(node, containers=tuple(_samples(stats, created)))


def _samples(stats: list[v1.ContainerStats], created: Mapping[str, float]) -> Iterator[ContainerSample]:
    for each in stats:
        own, started = each.attributes.labels, created.get(each.attributes.id)
        if started is not None and each.cpu.HasField("usage_core_nano_seconds"):
            yield ContainerSample(
                own[labels.POD_NAMESPACE],
                own[labels.POD_NAME],
                each.attributes.metadata.name,
                each.cpu.usage_core_nano_seconds.value / NANO,
                each.memory.working_set_bytes.value,
                started,
            )
