"""Tables: an object of each kind and the cells that kubectl prints for it."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from volplane.api import kinds
from volplane.api.errors import BadRequest
from volplane.apiserver import tables
from volplane.apiserver.tables import data_cells
from volplane.base import clock

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
META = {"name": "x", "creationTimestamp": "2026-01-02T03:00:45Z"}
AGE = "3m20s"


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall", lambda: NOW)


def kind_of(resource: str) -> kinds.Kind:
    return next(k for k in kinds.ALL if k.resource == resource)


def make(resource: str, metadata: Any = None, **data: Any) -> Any:
    of: Any = kind_of(resource).type
    return msgspec.convert({"metadata": {**META, **(metadata or {})}, **data}, of)


def print_row(resource: str, obj: Any) -> tuple[list[str], list[Any]]:
    table = tables.render(kind_of(resource), [obj])
    [row] = table["rows"]
    names = [c.name + ("*" if c.priority else "") for c in table["columnDefinitions"]]
    return names, row["cells"]


C = {"name": "c", "image": "i:1"}
TEMPLATE = {"spec": {"containers": [C, {"name": "d", "image": "j"}], "nodeSelector": {"z": "1", "a": "2"}}}
SELECTOR = {
    "matchLabels": {"b": "2", "a": "1"},
    "matchExpressions": [{"key": "k", "operator": "In", "values": ["y", "x"]}],
}

GOLDEN: dict[str, tuple[Any, str, list[Any]]] = {
    "persistentvolumeclaims": (
        {
            "spec": {"volumeName": "v", "storageClassName": "s", "volumeMode": "Filesystem"},
            "status": {
                "phase": "Bound",
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
            },
        },
        "Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age VolumeMode*",
        ["x", "Bound", "v", "1Gi", "RWO,RWX", "s", "<unset>", AGE, "Filesystem"],
    ),
    "persistentvolumes": (
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOncePod"],
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"namespace": "n", "name": "c"},
                "storageClassName": "s",
                "volumeAttributesClassName": "g",
            },
            "status": {"phase": "Bound", "reason": "r"},
        },
        "Name Capacity Access_Modes Reclaim_Policy Status Claim StorageClass VolumeAttributesClass Reason "
        "Age VolumeMode*",
        ["x", "1Gi", "RWOP", "Delete", "Bound", "n/c", "s", "g", "r", AGE, "<unset>"],
    ),
    "storageclasses.storage.k8s.io": (
        {
            "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "p",
            "reclaimPolicy": "Retain",
            "allowVolumeExpansion": True,
        },
        "Name Provisioner ReclaimPolicy VolumeBindingMode AllowVolumeExpansion Age",
        ["x (default)", "p", "Retain", "Immediate", True, AGE],
    ),
    "volumeattachments.storage.k8s.io": (
        {
            "spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
            "status": {"attached": True},
        },
        "Name Attacher PV Node Attached Age",
        ["x", "a", "v", "n", True, AGE],
    ),
    "csidrivers.storage.k8s.io": (
        {"spec": {"podInfoOnMount": True, "tokenRequests": [{"audience": "a"}, {"audience": "b"}]}},
        "Name AttachRequired PodInfoOnMount StorageCapacity TokenRequests RequiresRepublish Modes Age",
        ["x", True, True, False, "a,b", False, "<none>", AGE],
    ),
    "csinodes.storage.k8s.io": (
        {"spec": {"drivers": [{"name": "d"}]}},
        "Name Drivers Age",
        ["x", 1, AGE],
    ),
    "csistoragecapacities.storage.k8s.io": (
        {"storageClassName": "s"},
        "Name StorageClassName Capacity",
        ["x", "s", "<unset>"],
    ),
    "nodes": (
        {
            "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "db"}},
            "spec": {"unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.35.8", "osImage": "Debian"},
            },
        },
        "Name Status Roles Age Version Internal-IP* External-IP* OS-Image* Kernel-Version* "
        "Container-Runtime*",
        [
            "x",
            "Ready,SchedulingDisabled",
            "db,worker",
            AGE,
            "v1.35.8",
            "10.0.0.1",
            "<none>",
            "Debian",
            "<unknown>",
            "<unknown>",
        ],
    ),
    "events": (
        {
            "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"},
            "reason": "Pulled",
            "message": " hi \n",
            "type": "Normal",
            "source": {"component": "kubelet", "host": "n"},
            "firstTimestamp": "2026-01-02T01:04:05Z",
            "lastTimestamp": "2026-01-02T03:04:00Z",
            "count": 3,
        },
        "Last_Seen Type Reason Object Subobject* Source* Message First_Seen* Count* Name*",
        ["5s", "Normal", "Pulled", "pod/p", "spec.containers{c}", "kubelet, n", "hi", "120m", 3, "x"],
    ),
    "namespaces": ({"status": {"phase": "Active"}}, "Name Status Age", ["x", "Active", AGE]),
    "leases.coordination.k8s.io": (
        {"spec": {"holderIdentity": "me"}},
        "Name Holder Age",
        ["x", "me", AGE],
    ),
    "secrets": (
        {"type": "Opaque", "data": {"a": "YQ=="}},
        "Name Type Data Age",
        ["x", "Opaque", 1, AGE],
    ),
    "configmaps": ({"data": {"a": "1", "b": "2"}}, "Name Data Age", ["x", 2, AGE]),
    "serviceaccounts": ({}, "Name Age", ["x", AGE]),
    "deployments.apps": (
        {
            "spec": {"replicas": 3, "selector": SELECTOR, "template": TEMPLATE},
            "status": {"readyReplicas": 2, "updatedReplicas": 1},
        },
        "Name Ready Up-to-date Available Age Containers* Images* Selector*",
        ["x", "2/3", 1, 0, AGE, "c,d", "i:1,j", "a=1,b=2,k in (x,y)"],
    ),
    "replicasets.apps": (
        {"spec": {"selector": {}, "template": TEMPLATE}, "status": {"replicas": 1}},
        "Name Desired Current Ready Age Containers* Images* Selector*",
        ["x", 1, 1, 0, AGE, "c,d", "i:1,j", "<none>"],
    ),
    "daemonsets.apps": (
        {
            "spec": {"selector": {"matchLabels": {"a": "1"}}, "template": TEMPLATE},
            "status": {"desiredNumberScheduled": 3, "currentNumberScheduled": 2, "numberReady": 1},
        },
        "Name Desired Current Ready Up-to-date Available Node_Selector Age Containers* Images* Selector*",
        ["x", 3, 2, 1, 0, 0, "a=2,z=1", AGE, "c,d", "i:1,j", "a=1"],
    ),
    "statefulsets.apps": (
        {"spec": {"replicas": 2, "template": TEMPLATE}, "status": {"readyReplicas": 1}},
        "Name Ready Age Containers* Images*",
        ["x", "1/2", AGE, "c,d", "i:1,j"],
    ),
    "limitranges": ({}, "Name Created_At", ["x", "2026-01-02T03:00:45Z"]),
    "endpoints": (
        {
            "subsets": [
                {
                    "addresses": [
                        {"ip": "10.0.0.1"},
                        {"ip": "10.0.0.2"},
                        {"ip": "fd00::1"},
                        {"ip": "10.0.0.4"},
                    ],
                    "ports": [{"port": 80}],
                }
            ]
        },
        "Name Endpoints Age",
        ["x", "10.0.0.1:80,10.0.0.2:80,[fd00::1]:80 + 1 more...", AGE],
    ),
    "endpointslices.discovery.k8s.io": (
        {
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}],
            "ports": [{"port": 80}, {"name": "web"}, {}],
        },
        "Name AddressType Ports Endpoints Age",
        ["x", "IPv4", "80,web,*", "10.0.0.1,10.0.0.2", AGE],
    ),
    "resourcequotas": (
        {"status": {"hard": {"pods": "5", "limits.cpu": "2", "cpu": "1"}, "used": {"pods": "1"}}},
        "Name Request Limit Age",
        ["x", "cpu: 0/1, pods: 1/5", "limits.cpu: 0/2", AGE],
    ),
    "podtemplates": (
        {
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i:1"}]},
            }
        },
        "Name Containers Images Pod_Labels",
        ["x", "c", "i:1", "a=b"],
    ),
    "replicationcontrollers": (
        {
            "spec": {
                "replicas": 3,
                "selector": {"a": "b"},
                "template": {"spec": {"containers": [{"name": "c", "image": "i:1"}]}},
            },
            "status": {"replicas": 2, "readyReplicas": 1},
        },
        "Name Desired Current Ready Age Containers* Images* Selector*",
        ["x", 3, 2, 1, AGE, "c", "i:1", "a=b"],
    ),
    "controllerrevisions.apps": (
        {"revision": 4},
        "Name Controller Revision Age",
        ["x", "<none>", 4, AGE],
    ),
    "certificatesigningrequests.certificates.k8s.io": (
        {
            "spec": {"signerName": "example.com/s", "username": "me", "expirationSeconds": 3600},
            "status": {"conditions": [{"type": "Approved", "status": "True"}], "certificate": "YQ=="},
        },
        "Name Age SignerName Requestor RequestedDuration Condition",
        ["x", AGE, "example.com/s", "me", "60m", "Approved,Issued"],
    ),
    "componentstatuses": (
        {"conditions": [{"type": "Healthy", "status": "True", "message": "ok"}]},
        "Name Status Message Error",
        ["x", "Healthy", "ok", ""],
    ),
    "resourceclaims.resource.k8s.io": ({}, "Name State Age", ["x", "pending", AGE]),
    "resourceslices.resource.k8s.io": (
        {"spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p"}}},
        "Name Node Driver Pool Age",
        ["x", "n", "d", "p", AGE],
    ),
    "deviceclasses.resource.k8s.io": ({}, "Name Age", ["x", AGE]),
    "events.events.k8s.io": (
        {
            "regarding": {"kind": "Pod", "name": "p"},
            "reason": "R",
            "note": "text",
            "type": "Normal",
            "eventTime": "2026-01-02T03:00:45.000000Z",
            "reportingController": "c",
        },
        "Last_Seen Type Reason Object Subobject* Source* Message First_Seen* Count* Name*",
        [AGE, "Normal", "R", "pod/p", "", "c", "text", AGE, 1, "x"],
    ),
}


@pytest.mark.parametrize("resource", GOLDEN)
def test_columns_and_cells(resource: str) -> None:
    data, names, cells = GOLDEN[resource]
    assert print_row(resource, make(resource, **data)) == (
        [n.replace("_", " ") for n in names.split()],
        cells,
    )


def test_a_claim_shows_its_size_only_when_it_has_a_volume() -> None:
    status = {"phase": "Pending", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    _, cells = print_row("persistentvolumeclaims", make("persistentvolumeclaims", status=status))
    assert cells[1:5] == ["Pending", "", "", ""]
    going = make("persistentvolumeclaims", {"deletionTimestamp": "2026-01-02T03:04:05Z"}, status=status)
    assert print_row("persistentvolumeclaims", going)[1][1] == "Terminating"


def state(**states: Any) -> dict[str, Any]:
    return {"name": "c", "state": states}


def running(**more: Any) -> dict[str, Any]:
    return {"name": "c", "ready": True, "state": {"running": {}}, **more}


ENDED = {"lastState": {"terminated": {"finishedAt": "2026-01-02T02:59:05Z"}}}
INIT = [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]
PODS: dict[str, tuple[Any, Any, list[Any]]] = {
    "nothing known yet": ({}, {"phase": "Pending"}, ["0/1", "Pending", "0"]),
    "running": ({}, {"phase": "Running", "containerStatuses": [running()]}, ["1/1", "Running", "0"]),
    "restarted": (
        {},
        {"phase": "Running", "containerStatuses": [running(restartCount=2, **ENDED)]},
        ["1/1", "Running", "2 (5m ago)"],
    ),
    "creating": (
        {},
        {"phase": "Pending", "containerStatuses": [state(waiting={"reason": "ContainerCreating"})]},
        ["0/1", "ContainerCreating", "0"],
    ),
    "crashing": (
        {},
        {
            "phase": "Running",
            "containerStatuses": [{**state(waiting={"reason": "CrashLoopBackOff"}), "restartCount": 1}],
        },
        ["0/1", "CrashLoopBackOff", "1"],
    ),
    "exit code": (
        {},
        {"phase": "Failed", "containerStatuses": [state(terminated={"exitCode": 3})]},
        ["0/1", "ExitCode:3", "0"],
    ),
    "signal": (
        {},
        {"phase": "Failed", "containerStatuses": [state(terminated={"exitCode": 1, "signal": 9})]},
        ["0/1", "Signal:9", "0"],
    ),
    "completed": (
        {},
        {
            "phase": "Succeeded",
            "containerStatuses": [state(terminated={"exitCode": 0, "reason": "Completed"})],
        },
        ["0/1", "Completed", "0"],
    ),
    "one completed, one ready": (
        {},
        {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [state(terminated={"reason": "Completed"}), running()],
        },
        ["1/1", "Running", "0"],
    ),
    "initializing": (
        {"initContainers": INIT},
        {"phase": "Pending", "initContainerStatuses": [state(running={})]},
        ["0/2", "Init:0/2", "0"],
    ),
    "an init container failed": (
        {"initContainers": INIT},
        {"phase": "Pending", "initContainerStatuses": [state(terminated={"exitCode": 1, "reason": "Error"})]},
        ["0/2", "Init:Error", "0"],
    ),
    "a sidecar counts": (
        {"initContainers": INIT},
        {
            "phase": "Running",
            "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}, "restartCount": 5},
                {"name": "s", "ready": True, "started": True, "state": {"running": {}}, "restartCount": 1},
            ],
            "containerStatuses": [running()],
        },
        ["2/2", "Running", "1"],
    ),
    "evicted": ({}, {"phase": "Failed", "reason": "Evicted"}, ["0/1", "Evicted", "0"]),
    "gated": (
        {},
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
        ["0/1", "SchedulingGated", "0"],
    ),
}


@pytest.mark.parametrize("situation", PODS)
def test_the_status_of_a_pod(situation: str) -> None:
    spec, status, expected = PODS[situation]
    pod = make("pods", spec={"containers": [C], **spec}, status=status)
    names, cells = print_row("pods", pod)
    assert names == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
        "IP*",
        "Node*",
        "Nominated Node*",
        "Readiness Gates*",
    ]
    assert cells[1:4] == expected
    assert cells[5:] == ["<none>"] * 4


def test_the_status_of_a_pod_that_is_deleted() -> None:
    gone = {"deletionTimestamp": "2026-01-02T03:04:05Z"}
    for status, word in (
        ({"phase": "Running"}, "Terminating"),
        ({"phase": "Running", "reason": "NodeLost"}, "Unknown"),
        ({"phase": "Succeeded"}, "Succeeded"),
    ):
        assert print_row("pods", make("pods", gone, status=status))[1][2] == word


def test_a_finished_pod_is_marked() -> None:
    table = tables.render(kind_of("pods"), [make("pods", status={"phase": "Succeeded"})])
    assert table["rows"][0]["conditions"] == [
        {
            "type": "Completed",
            "status": "True",
            "reason": "Succeeded",
            "message": "The pod has completed successfully.",
        }
    ]


def test_include_object() -> None:
    obj = make("configmaps", {"resourceVersion": "7"}, data={"a": "1"})
    kind = kind_of("configmaps")

    def row(include: str) -> Any:
        return msgspec.json.decode(msgspec.json.encode(tables.render(kind, [obj], include)))["rows"][0][
            "object"
        ]

    assert row("Metadata") == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {**META, "resourceVersion": "7"},
    }
    assert row("Object")["data"] == {"a": "1"}
    assert row("Object")["kind"] == "ConfigMap"
    assert row("None") is None
    with pytest.raises(BadRequest):
        row("Some")


def test_the_frame_of_a_table() -> None:
    kind = kind_of("configmaps")
    obj = make("configmaps", {"resourceVersion": "7"})
    table = msgspec.json.decode(msgspec.json.encode(tables.render(kind, [obj], "None")))
    assert table["kind"] == "Table"
    assert table["apiVersion"] == "meta.k8s.io/v1"
    assert table["metadata"] == {"resourceVersion": "7"}
    assert table["columnDefinitions"][0] == {
        "name": "Name",
        "type": "string",
        "format": "name",
        "description": "",
        "priority": 0,
    }
    assert tables.render(kind, [obj], with_columns=False)["columnDefinitions"] is None
    assert tables.render(kind, [])["rows"] == []


def test_custom_resources_show_their_name_and_date() -> None:
    kind = kinds.Kind(None, "example.com", "v1", "Widget", "widgets")
    [row] = tables.render(kind, [{"metadata": META}])["rows"]
    assert row["cells"] == ["x", "2026-01-02T03:00:45Z"]


@pytest.mark.parametrize(
    ("group", "resource", "namespace", "name", "shown"),
    [
        ("", "services", "default", "kubernetes", "services/default/kubernetes"),
        ("Example.com", "Gateways", "", "g", "gateways.example.com/g"),
        ("", "services", "", "", "services/"),
        ("", "", "default", "x", "/default/x"),
    ],
)
def test_the_parent_of_an_address(group: str, resource: str, namespace: str, name: str, shown: str) -> None:
    parent = SimpleNamespace(group=group, resource=resource, namespace=namespace, name=name)
    assert data_cells.parent_ref(parent) == shown
