"""Which object `volplane journey` and `volplane states` are asked for, and the journeys it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.cli.cluster_reader import ClusterChoice, read_cluster
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain.cluster_state import ClusterState
from volplane.explain.journey.collect import RecordedJourneys, derive_journeys
from volplane.explain.journey.model import Journey
from volplane.explain.resolve import ExplainTarget, MissingName, UnsupportedKind, parse_target

KINDS = (PersistentVolumeClaim, PersistentVolume, Pod)


class JourneySource:
    """The recorded steps beside the kubeconfig, or else what the cluster shows."""

    def __init__(self, what: str, namespace: str, cluster: ClusterChoice) -> None:
        self.cluster = cluster
        self.target = _parse(what, namespace or cluster.namespace or "default")
        spans = cluster.spans
        self.recorded = RecordedJourneys(spans) if spans is not None and spans.is_dir() else None

    def read(self, *, every: bool = False) -> list[Journey]:
        """The journeys of the object. Raises CommandError."""
        if self.recorded is not None:
            self.recorded.update()
            if found := self.recorded.find(self.target.text, every=every):
                return found
        return read_cluster(
            self.cluster, self._derive(), component="volplane-journey", namespace=self.target.namespace
        )

    def _derive(self) -> Callable[[SnapshotCaches], Awaitable[list[Journey]]]:
        async def derive(caches: SnapshotCaches) -> list[Journey]:
            transport = caches._transport
            assert isinstance(transport, HttpsTransport)  # as of every verb that reads a cluster

            async def read_metrics(node: str) -> str:
                return (await transport.raw("GET", f"/api/v1/nodes/{node}/proxy/metrics")).decode()

            client = Client(transport, caches=caches)
            obj = await client.get(self.target.type, self.target.name, self.target.namespace)
            return await derive_journeys(ClusterState(caches), obj, read_metrics)

        return derive


def _parse(what: str, namespace: str) -> ExplainTarget:
    try:
        target = parse_target(what, namespace)
    except (UnsupportedKind, MissingName) as error:
        raise click.UsageError(str(error)) from error
    if target.type not in KINDS:
        raise click.UsageError(f"{what}: only claims, volumes and pods have a journey: pvc, pv or pod")
    return target
