"""The API server records who changed which state, and finds the claim that a write belongs to."""

from __future__ import annotations

import pytest

from volplane.api.core import (
    CSIPersistentVolumeSource,
    Node,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeResourceRequirements,
)
from volplane.api.meta import ObjectMeta
from volplane.api.storage import VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec
from volplane.apiserver.auth.issuer import TokenIssuer
from volplane.apiserver.in_process_server import InProcessServer
from volplane.base import trace
from volplane.base.trace import Span, decode_span
from volplane.base.trace_context import root_span_id, trace_id
from volplane.client.client import Client
from volplane.store import Store
from volplane.store.memory import MemoryStore

UNIQUE = "kubernetes.io/csi/x.example^vol-1"


class Recording:
    """One API server that records its spans."""

    def __init__(self, server: InProcessServer, spans: list[Span]) -> None:
        self.client, self.spans = Client(server.in_process_transport()), spans

    def last(self, subject: str) -> Span:
        return [span for span in self.spans if span.subject == subject][-1]


async def serve(store: Store, issuer: TokenIssuer) -> Recording:
    recorded = trace.start()
    spans: list[Span] = []
    recorded.sinks.append(lambda packed: spans.append(decode_span(packed)))
    server = InProcessServer(store, issuer)
    await server.start()
    return Recording(server, spans)


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.fixture
def issuer() -> TokenIssuer:
    return TokenIssuer()


async def create_claim(client: Client) -> PersistentVolumeClaim:
    return await client.create(
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="data", namespace="default"),
            spec=PersistentVolumeClaimSpec(
                access_modes=("ReadWriteOnce",),
                storage_class_name="",
                resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
            ),
        )
    )


async def create_volume(client: Client, claim: PersistentVolumeClaim) -> PersistentVolume:
    return await client.create(
        PersistentVolume(
            metadata=ObjectMeta(name="static"),
            spec=PersistentVolumeSpec(
                capacity={"storage": "1Gi"},
                access_modes=("ReadWriteOnce",),
                csi=CSIPersistentVolumeSource(driver="x.example", volume_handle="vol-1"),
                claim_ref=ObjectReference(namespace="default", name="data", uid=claim.uid),
            ),
        )
    )


async def test_the_creation_of_a_claim_is_the_first_span_of_its_trace(
    store: Store, issuer: TokenIssuer
) -> None:
    server = await serve(store, issuer)
    claim = await create_claim(server.client)
    begun, ended = (span for span in server.spans if span.subject == "pvc/default/data")
    assert (begun.end, begun.id) == (0, ended.id)
    assert ended.traces == (trace_id(claim.uid),)
    assert ended.id == root_span_id(trace_id(claim.uid))
    assert ["exists", "", "yes"] in ended.attrs["changes"]  # type: ignore[operator]


async def test_a_server_that_has_not_seen_the_volume_finds_its_claim(
    store: Store, issuer: TokenIssuer
) -> None:
    first = await serve(store, issuer)
    claim = await create_claim(first.client)
    await create_volume(first.client, claim)
    await first.client.create(Node(metadata=ObjectMeta(name="worker-1")))
    second = await serve(store, issuer)
    patch = {"status": {"volumesInUse": [UNIQUE]}}
    await second.client.patch(Node, "worker-1", merge=patch, subresource="status")
    assert second.last("node/worker-1").traces == (trace_id(claim.uid),)
    assert second.last("node/worker-1").attrs["changes"] == [[f"status.volumesInUse[{UNIQUE}]", "", "yes"]]
    source = VolumeAttachmentSource(persistent_volume_name="static")
    spec = VolumeAttachmentSpec(attacher="x.example", source=source, node_name="worker-1")
    await second.client.create(VolumeAttachment(metadata=ObjectMeta(name="va-1"), spec=spec))
    assert second.last("va/va-1").traces == (trace_id(claim.uid),)


async def test_removed_finalizers_are_a_change(store: Store, issuer: TokenIssuer) -> None:
    server = await serve(store, issuer)
    claim = await create_claim(server.client)
    await server.client.delete(PersistentVolumeClaim, claim.name, claim.namespace)
    await server.client.patch(
        PersistentVolumeClaim, claim.name, claim.namespace, merge={"metadata": {"finalizers": None}}
    )
    changes = server.last("pvc/default/data").attrs["changes"]
    assert changes == [
        ["metadata.finalizers[kubernetes.io/pvc-protection]", "yes", ""],
        ["exists", "yes", ""],
    ]


async def test_the_release_of_a_volume_tells_whether_it_is_deleted_next(
    store: Store, issuer: TokenIssuer
) -> None:
    server = await serve(store, issuer)
    await create_volume(server.client, await create_claim(server.client))
    for phase in ("Bound", "Released"):
        merge = {"status": {"phase": phase}}
        await server.client.patch(PersistentVolume, "static", merge=merge, subresource="status")
        span = server.last("pv/static")
        assert span.attrs.get("reclaim policy") == ("Retain" if phase == "Released" else None)


async def test_a_failure_of_tracing_fails_no_write(
    store: Store, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("volplane.apiserver.write_spans.list_changes", fail)
    server = await serve(store, issuer)
    assert (await create_claim(server.client)).uid
    assert "a bug" in caplog.text
