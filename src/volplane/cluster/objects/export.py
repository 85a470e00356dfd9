"""Read the objects that people, charts and drivers have made, as one `List` that kubectl can read, too.

What a cluster makes by itself is left out: it is made again where the objects are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from volplane.api.errors import APIError
from volplane.client.https import HttpsTransport
from volplane.cluster.objects.served_kinds import ServedKind, list_objects, list_served_kinds

Json = dict[str, Any]

# Kinds whose objects are made by nodes, controllers and API servers.
_MADE_BY_CLUSTER = frozenset(
    {
        "certificatesigningrequests.certificates.k8s.io",
        "csinodes.storage.k8s.io",
        "csistoragecapacities.storage.k8s.io",
        "endpoints",
        "events",
        "events.events.k8s.io",
        "ipaddresses.networking.k8s.io",
        "leasecandidates.coordination.k8s.io",
        "leases.coordination.k8s.io",
        "nodes",
        "podcertificaterequests.certificates.k8s.io",
        "resourceslices.resource.k8s.io",
        "storageversions.internal.apiserver.k8s.io",
        "volumeattachments.storage.k8s.io",
        "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
        "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
    }
)
_CONTENTS = "volumesnapshotcontents.snapshot.storage.k8s.io"
_SLICES = "endpointslices.discovery.k8s.io"
_SLICE_CONTROLLERS = ("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io")
_OWN_LABELS = ("kubernetes.io/bootstrapping", "kube-aggregator.kubernetes.io/automanaged")
_OWN_ANNOTATIONS = ("kubernetes.io/config.mirror", "apf.kubernetes.io/autoupdate-spec")
_OWN_NAMES = frozenset(
    {
        ("configmaps", "kube-root-ca.crt"),
        ("configmaps", "extension-apiserver-authentication"),
        ("priorityclasses.scheduling.k8s.io", "system-cluster-critical"),
        ("priorityclasses.scheduling.k8s.io", "system-node-critical"),
        ("servicecidrs.networking.k8s.io", "kubernetes"),
    }
)
_API_SERVER = "services", "default", "kubernetes"
_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
_CLAIMS, _VOLUMES = "persistentvolumeclaims", "persistentvolumes"


class ExportedObjects(Struct, frozen=True):
    items: tuple[Json, ...]
    left_out: tuple[str, ...]  # volumes that another claim could get, and why
    problems: tuple[str, ...]  # what could not be read


async def export_objects(
    transport: HttpsTransport, report: Callable[[str], None] = lambda resource: None
) -> ExportedObjects:
    problems: list[str] = []
    found: list[tuple[ServedKind, Json]] = []
    for kind in await list_served_kinds(transport, problems):
        report(kind.resource)
        if kind.resource in _MADE_BY_CLUSTER:
            continue
        try:
            async for obj in list_objects(transport, kind):
                if not is_made_by_cluster(kind, obj):
                    found.append((kind, obj))  # noqa: PERF401 - what was read before an error is kept
        except APIError as error:
            problems.append(f"{kind.resource}: {error}")
    left_out = dict(_list_volumes_without_claim(found))
    items = [
        obj for kind, obj in found if kind.resource != _VOLUMES or obj["metadata"]["name"] not in left_out
    ]
    return ExportedObjects(tuple(items), tuple(left_out.values()), tuple(problems))


def _list_volumes_without_claim(found: Sequence[tuple[ServedKind, Json]]) -> Iterator[tuple[str, str]]:
    """Names of the volumes whose claim is deleted or not exported, and what to tell about each.

    Volumes are imported as bound by name, so a later claim of that name would get the data.
    """
    claims = {obj["metadata"]["uid"] for kind, obj in found if kind.resource == _CLAIMS}
    for kind, obj in found:
        claim = obj["spec"].get("claimRef") if kind.resource == _VOLUMES else None
        if claim is not None and claim.get("uid") and claim["uid"] not in claims:
            name, phase = obj["metadata"]["name"], (obj.get("status") or {}).get("phase", "")
            place = f"{claim.get('namespace', '')}/{claim.get('name', '')}"
            why = f"its claim {place} is not exported, and another claim of this name would get its data"
            yield name, f"persistentvolume {name} ({phase}): {why}"


def is_made_by_cluster(kind: ServedKind, obj: Json) -> bool:
    metadata = obj["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return (
        "deletionTimestamp" in metadata
        or any(owner.get("controller") for owner in metadata.get("ownerReferences") or ())
        or (kind.resource, metadata["name"]) in _OWN_NAMES
        or (kind.resource, metadata.get("namespace"), metadata["name"]) == _API_SERVER
        or any(label in labels for label in _OWN_LABELS)
        or any(annotation in annotations for annotation in _OWN_ANNOTATIONS)
        or (kind.resource == _SLICES and _is_controllers_slice(labels, metadata))
        or obj.get("type") == _ACCOUNT_TOKEN
        or has_finished(kind, obj)
        or is_snapshot_unfinished(kind, obj)
    )


def _is_controllers_slice(labels: Json, metadata: Json) -> bool:
    by = labels.get("endpointslice.kubernetes.io/managed-by")
    return by in _SLICE_CONTROLLERS or (metadata["name"], metadata["namespace"]) == ("kubernetes", "default")


def has_finished(kind: ServedKind, obj: Json) -> bool:
    """Whether a pod or a job has ended: it would run once more."""
    status = obj.get("status") or {}
    if kind.resource == "pods":
        return status.get("phase") in ("Succeeded", "Failed")
    conditions = status.get("conditions") or ()
    return kind.resource == "jobs.batch" and any(
        c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions
    )


def is_snapshot_unfinished(kind: ServedKind, obj: Json) -> bool:
    """Whether it is the content of a snapshot that is still being taken: it is taken anew."""
    if kind.resource != _CONTENTS or "volumeHandle" not in obj["spec"]["source"]:
        return False
    status = obj.get("status") or {}
    return not (status.get("readyToUse") and status.get("snapshotHandle"))
