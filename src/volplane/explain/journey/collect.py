"""Reads what journeys are made of: the recorded spans of a data directory, or the objects of any cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from msgspec import structs

from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.errors import APIError
from volplane.api.meta import Resource
from volplane.api.storage import VolumeAttachment
from volplane.base.span_store import SpanReader, StoredSpan
from volplane.explain.cluster_state import ClusterState
from volplane.explain.journey.derive import VolumeObjects, derive_journey
from volplane.explain.journey.join import complete_traces, find_traces, join_journey
from volplane.explain.journey.model import Journey
from volplane.rules.trace_subjects import list_claim_names


class RecordedJourneys:
    """The journeys in the spans of a data directory; `update` reads what was added."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reader = SpanReader(directory)
        self._ended: list[StoredSpan] = []
        self.spans: Sequence[StoredSpan] = ()

    def update(self) -> bool:
        """Read new spans; returns whether there are any."""
        added = self._reader.read()
        self._ended += added
        in_progress = self._reader.in_progress()
        if not added and len(self.spans) == len(self._ended) + len(in_progress):
            return False
        self.spans = complete_traces([*self._ended, *in_progress])
        return True

    def find(self, subject: str, *, every: bool = False) -> list[Journey]:
        """The journeys of an object. A pod has one for each of its claims. Of objects that had the same name
        one after the other, only the last one's, unless `every` one's are asked for.
        """
        traces = find_traces(self.spans, subject)
        if not every:
            traces = traces if subject.startswith("pod/") else traces[-1:]
            traces = self._keep_last_pod(subject, traces)
        return [join_journey(self.spans, trace) for trace in traces]

    def _keep_last_pod(self, subject: str, traces: list[str]) -> list[str]:
        """A pod of this name may have had other claims before."""
        if not subject.startswith("pod/"):
            return traces
        uids = [
            str(s.span.attrs["uid"])
            for s in self.spans
            if s.span.subject == subject and "uid" in s.span.attrs
        ]
        if not uids:
            return traces
        of_last = (s for s in self.spans if s.span.subject == subject and s.span.attrs.get("uid") == uids[-1])
        kept = dict.fromkeys(trace for stored in of_last for trace in stored.span.traces)
        return [trace for trace in traces if trace in kept]


METRICS_TIMEOUT = 5.0  # seconds for one node

ReadMetrics = Callable[[str], Awaitable[str]]  # of the kubelet of a node; raises APIError


async def derive_journeys(
    state: ClusterState, obj: Resource, read_metrics: ReadMetrics | None = None
) -> list[Journey]:
    """The journeys of an object as far as its cluster shows them."""
    claims = await state.cache(PersistentVolumeClaim)
    found = [claim for claim in claims.all() if await _belongs_to(state, claim, obj)]
    owners: Sequence[PersistentVolumeClaim | None] = found
    if not found and isinstance(obj, PersistentVolumeClaim):
        owners = [obj]  # it is deleted, and its volume may be there
    elif not found and isinstance(obj, Pod | PersistentVolume):
        owners = [None]
    all_objects = [await _read_objects(state, claim, obj) for claim in owners]
    if read_metrics is not None:
        all_objects = await _add_metrics(all_objects, read_metrics)
    return [derive_journey(objects) for objects in all_objects]


async def _add_metrics(all_objects: Sequence[VolumeObjects], read: ReadMetrics) -> list[VolumeObjects]:
    """With the metrics of the nodes that have a volume, or why they cannot be had."""
    unread: dict[str, str] = {}

    async def try_read(node: str) -> str:
        try:
            async with asyncio.timeout(METRICS_TIMEOUT):  # a lost node does not answer
                return await read(node)
        except TimeoutError:
            unread[node] = f"no answer within {METRICS_TIMEOUT:g} seconds"
        except APIError as error:
            unread[node] = str(error)
        return ""

    names = list(dict.fromkeys(node for objects in all_objects for node in _list_nodes(objects)))
    texts = dict(zip(names, await asyncio.gather(*map(try_read, names)), strict=True))
    return [
        structs.replace(
            objects,
            kubelet_metrics={node: texts[node] for node in _list_nodes(objects) if node not in unread},
            unread=(
                *objects.unread,
                *(f"metrics of the kubelet of {n}: {unread[n]}" for n in _list_nodes(objects) if n in unread),
            ),
        )
        for objects in all_objects
    ]


def _list_nodes(objects: VolumeObjects) -> list[str]:
    """The nodes that have the volume."""
    names = (
        *(attachment.spec.node_name for attachment in objects.attachments),
        *(pod.spec.node_name for pod in objects.pods),
    )
    return list(dict.fromkeys(filter(None, names)))


async def _belongs_to(state: ClusterState, claim: PersistentVolumeClaim, obj: Resource) -> bool:
    match obj:
        case PersistentVolumeClaim():
            return claim.uid == obj.uid
        case PersistentVolume():
            ref = obj.spec.claim_ref
            return ref is not None and ref.uid == claim.uid
        case Pod():
            return claim.namespace == obj.namespace and claim.name in list_claim_names(obj)
    return False


async def _read_objects(
    state: ClusterState, claim: PersistentVolumeClaim | None, obj: Resource
) -> VolumeObjects:
    volumes = await state.cache(PersistentVolume)
    if isinstance(obj, PersistentVolume):
        volume: PersistentVolume | None = obj
    else:
        volume = volumes.get(claim.spec.volume_name) if claim is not None else None
    pods = await state.cache(Pod)
    if claim is not None:
        using = [
            p for p in pods.all() if p.namespace == claim.namespace and claim.name in list_claim_names(p)
        ]
    else:
        using = [obj] if isinstance(obj, Pod) else []
    attachments = [
        attachment
        for attachment in (await state.cache(VolumeAttachment)).all()
        if volume is not None and attachment.spec.source.persistent_volume_name == volume.name
    ]
    objects: list[Resource] = [each for each in (claim, volume, *attachments, *using) if each is not None]
    return VolumeObjects(
        claim=claim,
        volume=volume,
        attachments=tuple(attachments),
        pods=tuple(using),
        events=tuple(await _read_events(state, objects)),
        unread=tuple(f"{kind}: {why}" for kind, why in sorted(state.caches.unread.items())),
    )


async def _read_events(state: ClusterState, objects: Iterable[Resource]) -> list[Event]:
    uids, namespaces = set(), set()
    for obj in objects:
        uids.add(obj.uid)
        namespaces.add(obj.namespace or "default")
    found: list[Event] = []
    for namespace in sorted(namespaces):
        cache = await state.cache(Event, namespace=namespace)
        found += [event for event in cache.all() if event.involved_object.uid in uids]
    return found
