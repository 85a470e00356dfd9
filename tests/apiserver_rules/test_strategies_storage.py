"""Storage kinds: defaults, admission, validation, updates."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import structs

from volplane.api import kinds
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import Forbidden
from volplane.api.meta import Resource
from volplane.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    StorageClass,
    VolumeAttachment,
    VolumeAttributesClass,
)
from volplane.apiserver import strategies
from volplane.apiserver.strategy import ApiCall, RequestUser


class ListReader:
    """Other objects, as admission reads them."""

    def __init__(self, *objects: Resource) -> None:
        self.objects = objects

    async def get(self, type: Any, name: str, namespace: str = "") -> Any:
        found = (
            o for o in self.objects if isinstance(o, type) and (o.name, o.namespace) == (name, namespace)
        )
        return next(found, None)

    async def list(self, type: Any, namespace: str = "") -> Sequence[Any]:
        return [o for o in self.objects if isinstance(o, type)]


def call(kind: kinds.Kind, *others: Resource, verb: str = "create", subresource: str = "") -> ApiCall:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return ApiCall(
        verb,
        kind,
        RequestUser("u"),
        ListReader(*others),
        now,
        namespace="default",
        name="x",
        subresource=subresource,
    )


def make(of: type[Any], **data: Any) -> Any:
    made = msgspec.convert({"metadata": {"name": "x"}, **data}, of)
    return strategies.of(kinds.of(of)).defaults(made)


def create(obj: Any, *others: Resource) -> Any:
    strategy = strategies.of(kinds.of(type(obj)))
    request = call(strategy.kind, *others)
    admitted = asyncio.run(strategy.admit_create(request, strategy.defaults(obj)))
    return strategy.prepare_create(request, admitted)


def problems(obj: Any) -> list[str]:
    strategy = strategies.of(kinds.of(type(obj)))
    return [str(c) for c in strategy.validate_create(call(strategy.kind), obj)]


def changes(old: Any, new: Any) -> list[str]:
    strategy = strategies.of(kinds.of(type(old)))
    request = call(strategy.kind, verb="update")
    new = strategy.prepare_update(request, old, strategy.defaults(new))
    return [str(c).partition("\n")[0] for c in strategy.validate_update(request, old, new)]


def claim(size: str = "1Gi", phase: str = "Pending", **spec: Any) -> PersistentVolumeClaim:
    base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    status = {"phase": phase, "capacity": {"storage": "1Gi"} if phase == "Bound" else {}}
    made: PersistentVolumeClaim = make(PersistentVolumeClaim, spec={**base, **spec}, status=status)
    return made


def volume(**spec: Any) -> PersistentVolume:
    base = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d.example.com", "volumeHandle": "h"},
    }
    made: PersistentVolume = make(PersistentVolume, spec={**base, **spec})
    return made


def storage_class(
    name: str, born: str = "2026-01-01T00:00:00Z", default: bool = False, **more: Any
) -> StorageClass:
    marks = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    meta = {"name": name, "creationTimestamp": born, "annotations": marks}
    made: StorageClass = make(StorageClass, metadata=meta, provisioner="d.example.com", **more)
    return made


# Claims

OLDER = storage_class("older", "2026-01-01T00:00:00Z", default=True)
NEWER = storage_class("newer", "2026-01-02T00:00:00Z", default=True)


@pytest.mark.parametrize(
    ("given", "classes", "stored"),
    [
        (None, (OLDER, NEWER), "newer"),
        ("", (OLDER, NEWER), ""),
        ("other", (OLDER,), "other"),
        (None, (storage_class("plain"),), None),
        (None, (), None),
    ],
)
def test_the_default_class(given: str | None, classes: tuple[Any, ...], stored: str | None) -> None:
    made = create(claim(storageClassName=given), *classes)
    assert made.spec.storage_class_name == stored


def test_a_new_claim() -> None:
    made = create(structs.replace(claim(), status=claim(phase="Bound").status))
    assert made.metadata.finalizers == ("kubernetes.io/pvc-protection",)
    assert (made.status.phase, made.status.capacity) == ("Pending", {})
    assert made.spec.volume_mode == "Filesystem"
    assert create(made).metadata.finalizers == ("kubernetes.io/pvc-protection",)


CLAIM_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "no mode": ({"accessModes": []}, "spec.accessModes: Required value: at least 1 access mode is required"),
    "an unknown mode": (
        {"accessModes": ["X"]},
        'spec.accessModes: Unsupported value: "X": supported values: "ReadOnlyMany", "ReadWriteMany", '
        '"ReadWriteOnce", "ReadWriteOncePod"',
    ),
    "RWOP is alone": (
        {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]},
        "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
    ),
    "no size": ({"resources": {}}, "spec.resources[storage]: Required value"),
    "a negative size": (
        {"resources": {"requests": {"storage": "-1Gi"}}},
        'spec.resources[storage]: Invalid value: "-1Gi": must be greater than zero',
    ),
    "size zero": (
        {"resources": {"requests": {"storage": "0"}}},
        'spec.resources[storage]: Invalid value: "0": must be greater than zero',
    ),
    "volume mode": (
        {"volumeMode": "Tape"},
        'spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem"',
    ),
    "core group knows claims only": (
        {"dataSource": {"kind": "Foo", "name": "a"}},
        'spec.dataSource: Invalid value: "Foo": '
        "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
    ),
    "two sources differ": (
        {
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "a"},
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b"},
        },
        'spec: Invalid value: "spec.dataSource": must match dataSourceRef',
    ),
}


@pytest.mark.parametrize("situation", CLAIM_SPECS)
def test_validation_of_claims(situation: str) -> None:
    spec, message = CLAIM_SPECS[situation]
    assert problems(claim(**spec)) == [message]


SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
FOREIGN = {"apiGroup": "example.com", "kind": "Image", "name": "s"}


def test_data_sources_are_mirrored() -> None:
    old_way = create(claim(dataSource=SNAPSHOT)).spec
    assert (old_way.data_source_ref.kind, old_way.data_source_ref.name) == ("VolumeSnapshot", "s")
    new_way = create(claim(dataSourceRef=FOREIGN)).spec
    assert new_way.data_source.kind == "Image"
    assert create(claim(dataSource=FOREIGN)).spec.data_source is None
    elsewhere = {**SNAPSHOT, "namespace": "other"}
    assert create(claim(dataSourceRef=elsewhere)).spec.data_source_ref is None


FROZEN = (
    "spec: Forbidden: spec is immutable after creation except resources.requests "
    "and volumeAttributesClassName for bound claims"
)
CLAIM_CHANGES: dict[str, tuple[PersistentVolumeClaim, PersistentVolumeClaim, list[str]]] = {
    "the binder names the volume": (claim(), claim(volumeName="v"), []),
    "once": (claim(volumeName="v"), claim(volumeName="w"), [FROZEN]),
    "a class is given once": (claim(), claim(storageClassName="a"), []),
    "and not changed": (claim(storageClassName="a"), claim(storageClassName="b"), [FROZEN]),
    "a pending claim does not grow": (claim(), claim("2Gi"), [FROZEN]),
    "a bound one does": (claim(phase="Bound"), claim("2Gi"), []),
    "access modes stay": (claim(phase="Bound"), claim(accessModes=["ReadWriteMany"]), [FROZEN]),
    "the selector stays": (claim(phase="Bound"), claim(selector={"matchLabels": {"a": "b"}}), [FROZEN]),
    "back to what the volume has": (
        claim("3Gi", phase="Bound"),
        claim("1Gi"),
        ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"],
    ),
    "back from a failed expansion": (claim("3Gi", phase="Bound"), claim("2Gi"), []),
    "attributes change when bound": (claim(phase="Bound"), claim(volumeAttributesClassName="gold"), []),
    "nothing": (claim(phase="Bound"), claim(), []),
}


@pytest.mark.parametrize("situation", CLAIM_CHANGES)
def test_updates_of_claims(situation: str) -> None:
    old, new, expected = CLAIM_CHANGES[situation]
    assert changes(old, new) == expected


NOT_RESIZABLE = (
    'persistentvolumeclaims "x" is forbidden: only dynamically provisioned pvc can be resized and '
    "the storageclass that provisions the pvc must support resize"
)


@pytest.mark.parametrize(
    ("size", "classes", "refusal"),
    [
        ("2Gi", (storage_class("a", allowVolumeExpansion=True),), None),
        ("2Gi", (storage_class("a"),), NOT_RESIZABLE),
        ("2Gi", (), NOT_RESIZABLE),
        ("1Gi", (), None),
    ],
)
def test_the_class_must_allow_expansion(size: str, classes: tuple[Any, ...], refusal: str | None) -> None:
    strategy = strategies.of(kinds.of(PersistentVolumeClaim))
    request = call(strategy.kind, *classes, verb="update")
    old, new = claim(phase="Bound", storageClassName="a"), claim(size, storageClassName="a")
    if refusal is None:
        asyncio.run(strategy.admit_update(request, old, new))
        return
    with pytest.raises(Forbidden) as caught:
        asyncio.run(strategy.admit_update(request, old, new))
    assert caught.value.message == refusal


def test_claim_status() -> None:
    strategy = strategies.of(kinds.of(PersistentVolumeClaim))
    new = make(
        PersistentVolumeClaim,
        spec={"accessModes": ["ReadWriteOnce"]},
        status={"allocatedResourceStatuses": {"storage": "Nope", "cpu": "NodeResizePending"}},
    )
    first, second = (str(c) for c in strategy.validate_status(call(strategy.kind), new, new))
    assert first.startswith(
        'status.allocatedResourceStatuses: Unsupported value: "storage": supported values: '
    )
    assert second == 'status.allocatedResourceStatuses: Unsupported value: "cpu": supported values: "storage"'


# Volumes


def test_a_new_volume() -> None:
    made = create(volume())
    assert made.metadata.finalizers == ("kubernetes.io/pv-protection",)
    assert made.status.phase == "Pending"
    assert made.status.last_phase_transition_time == "2026-01-02T03:04:05Z"
    assert made.spec.persistent_volume_reclaim_policy == "Retain"
    assert made.spec.volume_mode == "Filesystem"


def test_a_change_of_phase_is_stamped() -> None:
    strategy = strategies.of(kinds.of(PersistentVolume))
    request = call(strategy.kind, verb="update", subresource="status")
    old = structs.replace(
        volume(),
        status=make(PersistentVolume, status={"lastPhaseTransitionTime": "2020-01-01T00:00:00Z"}).status,
    )
    bound = structs.replace(old, status=structs.replace(old.status, phase="Bound"))
    made = strategy.prepare_status(request, old, bound)
    assert made.status.last_phase_transition_time == "2026-01-02T03:04:05Z"
    given = structs.replace(
        bound, status=structs.replace(bound.status, last_phase_transition_time="2021-01-01T00:00:00Z")
    )
    assert (
        strategy.prepare_status(request, old, given).status.last_phase_transition_time
        == "2021-01-01T00:00:00Z"
    )
    same = strategy.prepare_status(request, old, structs.replace(old, spec=volume(storageClassName="x").spec))
    assert same == old


VOLUME_SPECS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "fine": ({}, []),
    "no source": ({"csi": None}, ["spec: Required value: must specify a volume type"]),
    "two sources": (
        {"hostPath": {"path": "/a"}},
        ["spec.csi: Forbidden: may not specify more than 1 volume type"],
    ),
    "no capacity": (
        {"capacity": {}},
        [
            "spec.capacity: Required value",
            'spec.capacity: Unsupported value: {}: supported values: "storage"',
        ],
    ),
    "no modes": ({"accessModes": []}, ["spec.accessModes: Required value"]),
    "policy": (
        {"persistentVolumeReclaimPolicy": "Burn"},
        [
            'spec.persistentVolumeReclaimPolicy: Unsupported value: "Burn": supported values: '
            '"Delete", "Recycle", "Retain"'
        ],
    ),
    "the root is not recycled": (
        {"csi": None, "hostPath": {"path": "/x/.."}, "persistentVolumeReclaimPolicy": "Recycle"},
        [
            "spec.hostPath.path: Invalid value: \"/x/..\": must not contain '..'",
            "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
        ],
    ),
    "flexVolume options": (
        {
            "csi": None,
            "flexVolume": {
                "options": {
                    "size": "1",
                    "example.com/pool": "a",
                    "mykubernetes.io/x": "a",
                    "Kubernetes.IO/fsType": "b",
                    "storage.k8s.io/x": "c",
                    "k8s.io": "d",
                }
            },
        },
        [
            "spec.flexVolume.driver: Required value",
            *(
                f'spec.flexVolume.options[{key}]: Invalid value: "{key}": kubernetes.io and k8s.io '
                "namespaces are reserved"
                for key in ("Kubernetes.IO/fsType", "storage.k8s.io/x", "k8s.io")
            ),
        ],
    ),
    "local needs a node": (
        {"csi": None, "local": {"path": "/a"}},
        ["spec.nodeAffinity: Required value: Local volume requires node affinity"],
    ),
    "affinity needs required": (
        {"nodeAffinity": {}},
        ["spec.nodeAffinity.required: Required value: must specify required node constraints"],
    ),
    "handle": ({"csi": {"driver": "d"}}, ["spec.csi.volumeHandle: Required value"]),
    "driver too long": (
        {"csi": {"driver": "d" * 64, "volumeHandle": "h"}},
        ["spec.csi.driver: Too long: may not be more than 63 bytes"],
    ),
    "attributes class": (
        {"volumeAttributesClassName": ""},
        ["spec.volumeAttributesClassName: Required value: an empty string is disallowed"],
    ),
}


@pytest.mark.parametrize("situation", VOLUME_SPECS)
def test_validation_of_volumes(situation: str) -> None:
    spec, expected = VOLUME_SPECS[situation]
    assert problems(volume(**spec)) == expected


def csi(**more: Any) -> dict[str, Any]:
    return {"csi": {"driver": "d.example.com", "volumeHandle": "h", **more}}


def affinity(key: str) -> dict[str, Any]:
    need = {"key": key, "operator": "In", "values": ["a"]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}}}


SECRET = {"name": "s", "namespace": "n"}
SOURCE = "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"
VOLUME_CHANGES: dict[str, tuple[PersistentVolume, PersistentVolume, list[str]]] = {
    "the handle": (volume(), volume(**csi(volumeHandle="other")), [SOURCE]),
    "the expansion secret, once": (volume(), volume(**csi(controllerExpandSecretRef=SECRET)), []),
    "but not again": (
        volume(**csi(controllerExpandSecretRef=SECRET)),
        volume(**csi(controllerExpandSecretRef={"name": "t", "namespace": "n"})),
        [SOURCE],
    ),
    "claimRef": (volume(claimRef={"name": "c"}), volume(), []),
    "capacity and class": (volume(), volume(capacity={"storage": "2Gi"}, storageClassName="b"), []),
    "mode": (
        volume(),
        volume(volumeMode="Block"),
        ['volumeMode: Invalid value: "Block": field is immutable'],
    ),
    "affinity from nothing": (volume(), volume(**affinity("zone")), []),
    "affinity's old label": (
        volume(**affinity("failure-domain.beta.kubernetes.io/zone")),
        volume(**affinity("topology.kubernetes.io/zone")),
        [],
    ),
    "attributes class": (
        volume(volumeAttributesClassName="a"),
        volume(),
        ["spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden"],
    ),
}


@pytest.mark.parametrize("situation", VOLUME_CHANGES)
def test_updates_of_volumes(situation: str) -> None:
    old, new, expected = VOLUME_CHANGES[situation]
    assert changes(old, new) == expected


def test_affinity_does_not_change() -> None:
    [found] = changes(volume(**affinity("a")), volume(**affinity("b")))
    assert found.startswith("nodeAffinity: Invalid value: ")
    assert found.endswith(": field is immutable, except for updating from beta label to GA")


# Classes


def test_storage_class_defaults() -> None:
    made = storage_class("a")
    assert (made.reclaim_policy, made.volume_binding_mode) == ("Delete", "Immediate")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"provisioner": ""}, ["provisioner: Required value"]),
        (
            {"reclaimPolicy": "Recycle"},
            ['reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"'],
        ),
        (
            {"volumeBindingMode": "Later"},
            [
                'volumeBindingMode: Unsupported value: "Later": '
                'supported values: "Immediate", "WaitForFirstConsumer"'
            ],
        ),
        (
            {"parameters": {str(i): "" for i in range(513)}},
            ["parameters: Too long: may not be more than 512 bytes"],
        ),
        (
            {"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["x"]}]}] * 2},
            ['allowedTopologies[1].matchLabelExpressions: Duplicate value: ""'],
        ),
    ],
)
def test_validation_of_storage_classes(data: Any, expected: list[str]) -> None:
    assert problems(make(StorageClass, **{"provisioner": "p", **data})) == expected


def test_updates_of_storage_classes() -> None:
    old = storage_class("a")
    assert changes(old, structs.replace(old, allow_volume_expansion=True, mount_options=("ro",))) == []
    assert changes(old, structs.replace(old, parameters={"a": "b"})) == [
        "parameters: Forbidden: updates to parameters are forbidden."
    ]
    assert changes(old, structs.replace(old, provisioner="q", reclaim_policy="Retain")) == [
        "provisioner: Forbidden: updates to provisioner are forbidden.",
        "reclaimPolicy: Forbidden: updates to reclaimPolicy are forbidden.",
    ]
    assert changes(old, structs.replace(old, volume_binding_mode="WaitForFirstConsumer")) == [
        'volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable'
    ]


def test_volume_attributes_classes() -> None:
    made = make(VolumeAttributesClass, driverName="d")
    assert problems(made) == ["parameters: Required value: must contain at least one key/value pair"]
    full = make(VolumeAttributesClass, driverName="d", parameters={"a": "b"})
    assert create(full).metadata.finalizers == ("kubernetes.io/vac-protection",)
    assert changes(full, structs.replace(full, driver_name="e", parameters={"a": "c"})) == [
        "driverName: Forbidden: updates to driverName are forbidden.",
        "parameters: Forbidden: updates to parameters are forbidden.",
    ]


# Attachments


def attachment(**spec: Any) -> VolumeAttachment:
    base = {"attacher": "d.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "v"}}
    made: VolumeAttachment = make(VolumeAttachment, spec={**base, **spec})
    return made


ATTACHMENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "fine": ({}, []),
    "nothing to attach": (
        {"source": {}},
        [
            "spec.source: Required value: "
            "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ],
    ),
    "inline without CSI": (
        {"source": {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}}}},
        [
            "spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of "
            "inline volumes"
        ],
    ),
}


@pytest.mark.parametrize("situation", ATTACHMENTS)
def test_validation_of_attachments(situation: str) -> None:
    spec, expected = ATTACHMENTS[situation]
    assert problems(attachment(**spec)) == expected


def test_an_attachment_never_changes() -> None:
    [found] = changes(attachment(), attachment(nodeName="n2"))
    assert found.startswith('spec: Invalid value: {"attacher":"d.example.com"')
    assert found.endswith(": field is immutable")


def test_the_status_of_an_attachment_is_only_its_status() -> None:
    strategy = strategies.of(kinds.of(VolumeAttachment))
    old = attachment()
    new = structs.replace(
        old,
        metadata=structs.replace(old.metadata, annotations={"a": "b"}),
        status=structs.replace(old.status, attached=True),
    )
    made = strategy.prepare_status(call(strategy.kind, verb="patch", subresource="status"), old, new)
    assert (made.metadata, made.status.attached) == (old.metadata, True)
    assert create(new).status.attached is False


# Drivers


def test_csi_driver_defaults() -> None:
    made = make(CSIDriver)
    assert msgspec.json.decode(msgspec.json.encode(made.spec)) == {
        "attachRequired": True,
        "podInfoOnMount": False,
        "volumeLifecycleModes": ["Persistent"],
        "storageCapacity": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "requiresRepublish": False,
        "seLinuxMount": False,
    }
    assert make(CSIDriver, spec={"attachRequired": False}).spec.attach_required is False


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"fsGroupPolicy": "X"},
            [
                'spec.fsGroupPolicy: Unsupported value: "X": '
                'supported values: "File", "None", "ReadWriteOnceWithFSType"'
            ],
        ),
        (
            {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]},
            ['spec.tokenRequests[1].audience: Duplicate value: "a"'],
        ),
        (
            {"tokenRequests": [{"audience": "a", "expirationSeconds": 60}]},
            [
                "spec.tokenRequests[0].expirationSeconds: Invalid value: 60: "
                "may not specify a duration less than 10 minutes"
            ],
        ),
        (
            {"nodeAllocatableUpdatePeriodSeconds": 5},
            [
                "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 5: "
                "must be greater than or equal to 10 seconds"
            ],
        ),
    ],
)
def test_validation_of_csi_drivers(spec: Any, expected: list[str]) -> None:
    assert problems(make(CSIDriver, spec=spec)) == expected


def test_updates_of_csi_drivers() -> None:
    old = make(CSIDriver)
    assert changes(old, make(CSIDriver, spec={"podInfoOnMount": True})) == []
    assert changes(old, make(CSIDriver, spec={"attachRequired": False})) == [
        "spec.attachedRequired: Invalid value: false: field is immutable"
    ]


def node(*drivers: Any) -> CSINode:
    made: CSINode = make(CSINode, spec={"drivers": list(drivers)})
    return made


def test_the_drivers_of_a_node() -> None:
    one = {"name": "d", "nodeID": "i-1", "topologyKeys": ["zone"]}
    assert problems(node(one)) == []
    assert problems(node(one, one)) == ['spec.drivers[1].name: Duplicate value: "d"']
    assert problems(node({"name": "d"})) == ["spec.drivers[0].nodeID: Required value"]
    assert changes(node(one), node({**one, "allocatable": {"count": 3}})) == []
    assert changes(node(one), node()) == []
    [found] = changes(node(one), node({**one, "nodeID": "i-2"}))
    assert found.startswith("spec.drivers: Invalid value: ")
    assert found.endswith(": field is immutable")


def test_capacities() -> None:
    made = make(CSIStorageCapacity, storageClassName="a", capacity="1Gi")
    assert problems(made) == []
    assert problems(structs.replace(made, capacity="-1")) == [
        'capacity: Invalid value: "-1": must be greater than or equal to 0'
    ]
    assert changes(made, structs.replace(made, storage_class_name="b")) == [
        'storageClassName: Invalid value: "b": field is immutable'
    ]
    assert strategies.of(kinds.of(CSIStorageCapacity)).validate_name("#%123-invalid-name") != []
