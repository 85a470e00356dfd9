"""Which node a pod goes to and what is said when none will do: contract attach-and-mount E as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs

from tests.support.waits import describe_wait
from volplane.api import codec
from volplane.api.annotations import BIND_COMPLETED_ANNOTATION, SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from volplane.rules import binding
from volplane.rules.waits import Wait
from volplane.scheduler.filters import FILTERS
from volplane.scheduler.node_cache import NodeCache
from volplane.scheduler.plan import (
    Placement,
    Reservation,
    SchedulingView,
    Unschedulable,
    decide,
    plan,
)
from volplane.scheduler.prebind import ClaimBinding
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot
from volplane.scheduler.volumes import Bindings

ZONE = "topology.kubernetes.io/zone"
TAIL = " no new claims to deallocate, preemption: 0/{0} nodes are available: {0} {1}."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIM = "No preemption victims found for incoming pod"
DONE = {BIND_COMPLETED_ANNOTATION: "yes"}


def node(name: str, *, zone: str = "a", cpu: str = "4", pods: str = "10", **spec: Any) -> Node:
    labels = {"kubernetes.io/hostname": name, ZONE: zone, **spec.pop("labels", {})}
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": pods, **spec.pop("more", {})}
    metadata = {"name": name, "labels": labels}
    return codec.convert(Node, {"metadata": metadata, "spec": spec, "status": {"allocatable": allocatable}})


def pod(name: str = "p", *claims: str, on: str = "", cpu: str = "", **spec: Any) -> Pod:
    container: dict[str, Any] = {"name": "c", "ports": spec.pop("ports", [])}
    if cpu:
        container["resources"] = {"requests": {"cpu": cpu}}
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    metadata = {"namespace": "default", "name": name, "uid": f"u-{name}"}
    spec = {"containers": [container], "volumes": volumes, "nodeName": on, **spec}
    return codec.convert(Pod, {"metadata": metadata, "spec": spec})


def claim(
    name: str,
    volume: str = "",
    cls: str | None = "wait",
    size: str = "1Gi",
    phase: str = "Pending",
    **more: Any,
) -> PersistentVolumeClaim:
    bound = bool(volume) and not more.pop("half", False)
    metadata: dict[str, Any] = {"namespace": "default", "name": name, "uid": f"u-{name}"}
    metadata["annotations"] = {**(DONE if bound else {}), **more.pop("notes", {})}
    if more.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: dict[str, Any] = {
        "accessModes": more.pop("modes", ["ReadWriteOnce"]),
        "resources": {"requests": {"storage": size}},
        "volumeName": volume,
    }
    if cls is not None:
        spec["storageClassName"] = cls
    status = {"phase": "Bound" if bound and phase == "Pending" else phase}
    return codec.convert(PersistentVolumeClaim, {"metadata": metadata, "spec": spec, "status": status})


def volume(name: str, zone: str = "", size: str = "1Gi", **spec: Any) -> PersistentVolume:
    metadata: dict[str, Any] = {"name": name, "labels": spec.pop("labels", {})}
    whole: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": size},
        "storageClassName": "wait",
        "csi": {"driver": "d", "volumeHandle": name},
        **spec,
    }
    if zone:
        term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
        whole["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return codec.convert(
        PersistentVolume, {"metadata": metadata, "spec": whole, "status": {"phase": "Available"}}
    )


def storage_class(
    name: str, mode: str = "WaitForFirstConsumer", provisioner: str = "d", **more: Any
) -> StorageClass:
    whole = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **more}
    return codec.convert(StorageClass, whole)


def csi_node(name: str, limit: int) -> CSINode:
    driver = {"name": "d", "nodeID": name, "topologyKeys": [], "allocatable": {"count": limit}}
    return codec.convert(CSINode, {"metadata": {"name": name}, "spec": {"drivers": [driver]}})


def driver(**spec: Any) -> CSIDriver:
    return codec.convert(CSIDriver, {"metadata": {"name": "d"}, "spec": spec})


def capacity(size: str, zone: str, cls: str = "wait", **more: Any) -> CSIStorageCapacity:
    whole = {"storageClassName": cls, "capacity": size, "nodeTopology": {"matchLabels": {ZONE: zone}}, **more}
    return codec.convert(CSIStorageCapacity, {"metadata": {"name": f"{size}-{zone}"}, **whole})


CLASSES = (
    storage_class("wait"),
    storage_class("now", "Immediate"),
    storage_class("hand", provisioner="kubernetes.io/no-provisioner"),
)


def make_snapshot(*things: Resource, attached: dict[str, list[str]] | None = None) -> SchedulingSnapshot:
    cache = NodeCache()
    for thing in things:
        if isinstance(thing, Node):
            cache.put_node(thing)
        elif isinstance(thing, Pod):
            cache.put_pod(thing, thing.spec.node_name)
    kept: dict[type[Resource], dict[str, Any]] = {}
    for thing in (*CLASSES, *things):
        kept.setdefault(type(thing), {})[thing.key] = thing

    def volumes() -> Iterable[PersistentVolume]:
        return kept.get(PersistentVolume, {}).values()

    return SchedulingSnapshot(
        node_cache=cache,
        claim=lambda key: kept.get(PersistentVolumeClaim, {}).get(key),
        volume=lambda name: kept.get(PersistentVolume, {}).get(name),
        unclaimed=lambda name: [
            v for v in volumes() if v.spec.storage_class_name == name and not v.spec.claim_ref
        ],
        reserved=lambda key: [v for v in volumes() if binding.claim_key(v) == key],
        storage_class=lambda name: kept[StorageClass].get(name),
        driver=lambda name: kept.get(CSIDriver, {}).get(name),
        csi_node=lambda name: kept.get(CSINode, {}).get(name),
        capacities=lambda name: [
            c for c in kept.get(CSIStorageCapacity, {}).values() if c.storage_class_name == name
        ],
        attached=lambda name: (attached or {}).get(name, []),
    )


NODES = (node("n1"), node("n2"), node("n3", zone="b"))

REFUSED: dict[str, tuple[Pod, SchedulingSnapshot, str]] = {
    "no nodes": (pod(), make_snapshot(), "no nodes available to schedule pods"),
    "cordoned": (
        pod(),
        make_snapshot(node("n1", unschedulable=True)),
        "0/1 nodes are available: 1 node(s) were unschedulable." + TAIL.format(1, NOT_HELPFUL),
    ),
    "tainted": (
        pod(),
        make_snapshot(node("n1", taints=[{"key": "x", "effect": "NoExecute"}])),
        "0/1 nodes are available: 1 node(s) had untolerated taint(s)." + TAIL.format(1, NOT_HELPFUL),
    ),
    "selector": (
        pod(nodeSelector={"disk": "ssd"}),
        make_snapshot(*NODES),
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
        + TAIL.format(3, NOT_HELPFUL),
    ),
    "ports": (
        pod(ports=[{"containerPort": 80, "hostPort": 80}]),
        make_snapshot(
            node("n1"), pod("q", on="n1", ports=[{"containerPort": 1, "hostPort": 80, "hostIP": "1.2.3.4"}])
        ),
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
        + TAIL.format(1, NO_VICTIM),
    ),
    "everything that is short": (
        pod(cpu="3"),
        make_snapshot(node("n1", pods="1"), pod("q", on="n1", cpu="2")),
        "0/1 nodes are available: 1 Insufficient cpu, 1 Too many pods." + TAIL.format(1, NO_VICTIM),
    ),
    "more than the whole node": (
        pod(cpu="5"),
        make_snapshot(node("n1")),
        "0/1 nodes are available: 1 Insufficient cpu." + TAIL.format(1, NOT_HELPFUL),
    ),
    "an extended resource": (
        pod(containers=[{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]),
        make_snapshot(node("n1")),
        "0/1 nodes are available: 1 Insufficient example.com/gpu." + TAIL.format(1, NOT_HELPFUL),
    ),
    "several reasons, sorted with their counts": (
        pod(cpu="3"),
        make_snapshot(
            node("n1", unschedulable=True),
            node("n2", unschedulable=True),
            node("n3"),
            pod("q", on="n3", cpu="2"),
        ),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable."
        " no new claims to deallocate, preemption: 0/3 nodes are available:"
        f" 1 {NO_VICTIM}, 2 {NOT_HELPFUL}.",
    ),
    "no such claim": (
        pod("p", "data"),
        make_snapshot(*NODES),
        '0/3 nodes are available: persistentvolumeclaim "data" not found. not found',
    ),
    "an ephemeral claim that is not there yet": (
        pod(volumes=[{"name": "v", "ephemeral": {}}]),
        make_snapshot(*NODES),
        "0/3 nodes are available: waiting for ephemeral volume controller to create the "
        'persistentvolumeclaim "p-v". not found',
    ),
    "an ephemeral claim of another owner": (
        pod(volumes=[{"name": "v", "ephemeral": {}}]),
        make_snapshot(*NODES, claim("p-v")),
        "0/3 nodes are available: PVC default/p-v was not created for pod default/p (pod is not owner)."
        " not found",
    ),
    "claim is Lost": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", "pv", phase="Lost")),
        '0/3 nodes are available: persistentvolumeclaim "data" bound to non-existent persistentvolume "pv".'
        " not found",
    ),
    "claim is going": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", "pv", deleting=True)),
        '0/3 nodes are available: persistentvolumeclaim "data" is being deleted. not found',
    ),
    "immediate and unbound": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", cls="now")),
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    ),
    "no class": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", cls=None)),
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    ),
    "a class that does not exist": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", cls="gone")),
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    ),
    "names its volume and is not bound: immediate whatever the class": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", "pv", half=True), volume("pv")),
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    ),
    "volume elsewhere, its zone cordoned": (
        pod("p", "data"),
        make_snapshot(
            node("n1", unschedulable=True),
            node("n2", zone="b"),
            claim("data", "pv"),
            volume("pv", "a", claimRef={"namespace": "default", "name": "data", "uid": "u-data"}),
        ),
        "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, 1 node(s) were "
        "unschedulable." + TAIL.format(2, NOT_HELPFUL),
    ),
    "volume is gone": (
        pod("p", "data"),
        make_snapshot(node("n1"), claim("data", "pv")),
        "0/1 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent "
        "pv(s)." + TAIL.format(1, NOT_HELPFUL),
    ),
    "nothing to bind and no provisioner": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", cls="hand")),
        "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."
        + TAIL.format(3, NOT_HELPFUL),
    ),
    "topology is not allowed": (
        pod("p", "data"),
        make_snapshot(
            *NODES,
            claim("data", cls="c"),
            storage_class(
                "c", allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["z"]}]}]
            ),
        ),
        "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."
        + TAIL.format(3, NOT_HELPFUL),
    ),
    "another node is selected": (
        pod("p", "data"),
        make_snapshot(node("n1"), claim("data", notes={SELECTED_NODE_ANNOTATION: "n9"})),
        "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
        + TAIL.format(1, NOT_HELPFUL),
    ),
    "not enough storage": (
        pod("p", "data"),
        make_snapshot(
            node("n1"), claim("data", size="20Gi"), driver(storageCapacity=True), capacity("10Gi", "a")
        ),
        "0/1 nodes are available: 1 node(s) did not have enough free storage." + TAIL.format(1, NOT_HELPFUL),
    ),
    "the biggest volume counts": (
        pod("p", "data"),
        make_snapshot(
            node("n1"),
            claim("data", size="20Gi"),
            driver(storageCapacity=True),
            capacity("50Gi", "a", maximumVolumeSize="10Gi"),
        ),
        "0/1 nodes are available: 1 node(s) did not have enough free storage." + TAIL.format(1, NOT_HELPFUL),
    ),
    "two claims, one volume": (
        pod("p", "a", "b"),
        make_snapshot(
            node("n1"), claim("a", cls="hand"), claim("b", cls="hand"), volume("pv", storageClassName="hand")
        ),
        "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
        + TAIL.format(1, NOT_HELPFUL),
    ),
    "too many volumes": (
        pod("p", "c"),
        make_snapshot(
            node("n1"), csi_node("n1", 2), pod("q", "a", "b", on="n1"), claim("a"), claim("b"), claim("c")
        ),
        "0/1 nodes are available: 1 node(s) exceed max volume count." + TAIL.format(1, NO_VICTIM),
    ),
    "a leftover attachment counts": (
        pod("p", "c"),
        make_snapshot(
            node("n1"),
            csi_node("n1", 1),
            claim("c"),
            volume("old", claimRef={"name": "x"}),
            attached={"n1": ["old"]},
        ),
        "0/1 nodes are available: 1 node(s) exceed max volume count." + TAIL.format(1, NO_VICTIM),
    ),
    "another zone": (
        pod("p", "data"),
        make_snapshot(node("n1", zone="b"), claim("data", "pv"), volume("pv", labels={ZONE: "a__c"})),
        "0/1 nodes are available: 1 node(s) had no available volume zone." + TAIL.format(1, NOT_HELPFUL),
    ),
    "one pod only": (
        pod("p", "data"),
        make_snapshot(
            *NODES, pod("q", "data", on="n1"), claim("data", "pv", modes=["ReadWriteOncePod"]), volume("pv")
        ),
        "0/3 nodes are available: 3 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod "
        "access mode already in-use by another pod." + TAIL.format(3, NO_VICTIM),
    ),
}


@pytest.mark.parametrize(("wanted", "around", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(wanted: Pod, around: SchedulingSnapshot, message: str) -> None:
    decision = decide(wanted, around)
    assert isinstance(decision, Unschedulable)
    assert decision.message == message
    assert decision.by


PLACED: dict[str, tuple[Pod, SchedulingSnapshot, str]] = {
    "the first of equals": (pod(), make_snapshot(*NODES), "n1"),
    "the emptiest": (pod(), make_snapshot(*NODES, pod("q", on="n1"), pod("r", on="n2")), "n3"),
    "room left, by share": (
        pod(),
        make_snapshot(
            node("n1", cpu="2"), node("n2", cpu="8"), pod("q", on="n1", cpu="1"), pod("r", on="n2", cpu="1")
        ),
        "n2",
    ),
    "tolerated": (
        pod(tolerations=[{"operator": "Exists"}]),
        make_snapshot(node("n1", unschedulable=True, taints=[{"key": "x", "effect": "NoSchedule"}])),
        "n1",
    ),
    "would rather not": (
        pod(),
        make_snapshot(
            node("n1", taints=[{"key": "x", "effect": "PreferNoSchedule"}]),
            node("n2"),
            pod("q", on="n2", cpu="3"),
        ),
        "n2",
    ),
    "preferred": (
        pod(
            affinity={
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 50,
                            "preference": {
                                "matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]
                            },
                        }
                    ]
                }
            }
        ),
        make_snapshot(*NODES, pod("q", on="n3", cpu="1")),
        "n3",
    ),
    "required": (
        pod(
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
                        ]
                    }
                }
            }
        ),
        make_snapshot(*NODES),
        "n2",
    ),
    "where the volume is": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", "pv"), volume("pv", "b")),
        "n3",
    ),
    "bound and immediate": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", "pv", cls="now"), volume("pv")),
        "n1",
    ),
    "the node that was selected before": (
        pod("p", "data"),
        make_snapshot(*NODES, claim("data", notes={SELECTED_NODE_ANNOTATION: "n2"})),
        "n2",
    ),
    "where there is enough storage": (
        pod("p", "data"),
        make_snapshot(
            *NODES,
            claim("data", size="20Gi"),
            driver(storageCapacity=True),
            capacity("10Gi", "a"),
            capacity("30Gi", "b"),
        ),
        "n3",
    ),
    "capacity does not matter to a driver that does not publish it": (
        pod("p", "data"),
        make_snapshot(node("n1"), claim("data"), driver()),
        "n1",
    ),
    "a volume that is there is free": (
        pod("p", "a", "c"),
        make_snapshot(
            node("n1"),
            csi_node("n1", 2),
            pod("q", "a", on="n1"),
            claim("a", "pv"),
            volume("pv"),
            claim("c"),
            attached={"n1": ["pv"]},
        ),
        "n1",
    ),
    "no limit for the driver": (pod("p", "c"), make_snapshot(node("n1"), claim("c")), "n1"),
    "a node without zones": (
        pod("p", "data"),
        make_snapshot(
            codec.convert(
                Node, {"metadata": {"name": "n1"}, "status": {"allocatable": {"pods": "1", "cpu": "1"}}}
            ),
            claim("data", "pv"),
            volume("pv", labels={ZONE: "a"}),
        ),
        "n1",
    ),
    "the old spelling of a zone": (
        pod("p", "data"),
        make_snapshot(
            *NODES, claim("data", "pv"), volume("pv", labels={"failure-domain.beta.kubernetes.io/zone": "b"})
        ),
        "n3",
    ),
    "a port on another address": (
        pod(ports=[{"containerPort": 80, "hostPort": 80, "hostIP": "1.1.1.1"}]),
        make_snapshot(
            node("n1"), pod("q", on="n1", ports=[{"containerPort": 1, "hostPort": 80, "hostIP": "1.2.3.4"}])
        ),
        "n1",
    ),
}


@pytest.mark.parametrize(("wanted", "around", "name"), PLACED.values(), ids=PLACED.keys())
def test_placed(wanted: Pod, around: SchedulingSnapshot, name: str) -> None:
    decision = decide(wanted, around)
    assert isinstance(decision, Placement), decision
    assert decision.node == name


def test_the_smallest_claim_takes_the_smallest_volume_and_the_rest_is_made() -> None:
    around = make_snapshot(
        node("n1"),
        claim("big", size="5Gi"),
        claim("small", size="1Gi"),
        claim("huge", size="50Gi"),
        volume("five", size="5Gi"),
        volume("two", size="2Gi"),
    )
    decision = decide(pod("p", "big", "huge", "small"), around)
    assert isinstance(decision, Placement)
    static = [(c.name, v.name) for c, v in decision.bindings.static]
    assert static == [("small", "two"), ("big", "five")]
    assert [c.name for c in decision.bindings.dynamic] == ["huge"]


def test_a_volume_reserved_for_the_claim_decides_the_node() -> None:
    ref = {"namespace": "default", "name": "data", "uid": ""}
    mine = volume("mine", "b", claimRef=ref, storageClassName="hand")
    free = volume("free", "a", storageClassName="hand")
    decision = decide(pod("p", "data"), make_snapshot(*NODES, claim("data", cls="hand"), mine, free))
    assert isinstance(decision, Placement)
    assert decision.node == "n3"
    assert [v.name for _, v in decision.bindings.static] == ["mine"]


def test_a_refusal_says_by_whom_and_for_which_node() -> None:
    decision = decide(pod(cpu="9"), make_snapshot(node("n1"), node("n2", unschedulable=True)))
    assert isinstance(decision, Unschedulable)
    assert decision.by == {"NodeResourcesFit", "NodeUnschedulable"}
    assert decision.reasons == {"n1": ("Insufficient cpu",), "n2": ("node(s) were unschedulable",)}


def test_a_big_cluster_is_not_searched_to_the_end_and_every_node_has_its_turn() -> None:
    around = make_snapshot(*(node(f"n{i:03}") for i in range(500)))
    decision = decide(pod(), around)
    assert isinstance(decision, Placement)
    assert (decision.node, decision.searched) == ("n000", 100)
    decision = decide(pod(), around, start=decision.searched)
    assert isinstance(decision, Placement)
    assert decision.node == "n100"


def test_the_filters_stand_in_the_order_that_decides_which_reason_is_shown() -> None:
    assert [f.name for f in FILTERS] == [
        "NodeUnschedulable",
        "NodeName",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "VolumeRestrictions",
        "NodeVolumeLimits",
        "VolumeBinding",
        "VolumeZone",
        "PodTopologySpread",
        "InterPodAffinity",
    ]


# --- the steps of one pod, from the first decision to the binding


def view(
    of: Pod | None, *objects: Resource, reservation: Reservation | None = None, **more: Any
) -> SchedulingView:
    snapshot = make_snapshot(*objects)
    nodes = {each.name: each for each in objects if isinstance(each, Node)}

    def bindings(of: Bindings) -> list[ClaimBinding]:
        found = [(c, v.name) for c, v in of.static] + [(c, "") for c in of.dynamic]
        return [
            ClaimBinding(c.name, snapshot.claim(c.key), snapshot.volume(name or c.spec.volume_name), name)
            for c, name in found
        ]

    return SchedulingView(
        "default/p", of, snapshot, nodes.get, bindings, reservation=reservation, now=100.0, **more
    )


def make_reservation(of: Pod, *dynamic: PersistentVolumeClaim, **more: Any) -> Reservation:
    return Reservation(of.uid, "n1", Bindings(dynamic=dynamic), deadline=700.0, **more)


GATED = pod(schedulingGates=[{"name": "example.com/ready"}])
WAITING = claim("data")
SELECTED = codec.convert(
    PersistentVolumeClaim,
    {
        **codec.to_dict(WAITING),
        "metadata": {
            "name": "data",
            "namespace": "default",
            "annotations": {SELECTED_NODE_ANNOTATION: "n1"},
        },
    },
)
PENDING = Reservation(pod().uid, "n1", Bindings(dynamic=(SELECTED,)), deadline=700.0)

STEPS: dict[str, tuple[SchedulingView, list[str]]] = {
    "gone, with a reservation": (
        view(None, reservation=make_reservation(pod())),
        ["ReleaseReservation", "Requeue"],
    ),
    "gone": (view(None), []),
    "gated": (view(GATED, node("n1")), ["Wait SchedulingGates(example.com/ready)"]),
    "refused a moment ago": (view(pod(), node("n1"), pause=5.0), ["Wait SchedulingBackoff"]),
    "no node fits": (view(pod()), ["Wait Unschedulable", "MarkUnschedulable"]),
    "fits": (view(pod(), node("n1")), ["ReserveNode", "BindPod"]),
    "bound already": (view(pod(), node("n1"), reservation=make_reservation(pod(), bound=True)), []),
    "its node is gone": (view(pod(), reservation=make_reservation(pod())), ["AbortReservation"]),
    "a claim needs the node": (
        view(pod("p", "data"), node("n1"), WAITING),
        ["ReserveNode", "WriteBindings", "Requeue"],
    ),
    "its volume is being made": (
        view(pod("p", "data"), node("n1"), SELECTED, reservation=PENDING),
        ["Wait VolumeBinding(n1, data)"],
    ),
    "its volume is not made in time": (
        view(
            pod("p", "data"),
            node("n1"),
            SELECTED,
            reservation=structs.replace(PENDING, deadline=100.0),
        ),
        ["AbortReservation"],
    ),
    "its claim is gone": (view(pod("p", "data"), node("n1"), reservation=PENDING), ["AbortReservation"]),
}


@pytest.mark.parametrize(("of", "steps"), STEPS.values(), ids=STEPS)
def test_steps(of: SchedulingView, steps: list[str]) -> None:
    found = [
        describe_wait(s).partition(": ")[0] if isinstance(s, Wait) else type(s).__name__ for s in plan(of)
    ]
    assert found == steps


def test_a_pod_with_another_uid_gets_a_new_decision() -> None:
    stale = structs.replace(make_reservation(pod()), uid="another")
    assert [type(s).__name__ for s in plan(view(pod(), node("n1"), reservation=stale))] == [
        "ReleaseReservation",
        "Requeue",
    ]


def test_a_cleared_node_is_taken_without_a_search() -> None:
    snapshot = make_snapshot(node("n1"), node("n2"))
    snapshot.node_cache.nominate(pod(), "n2")
    decision = decide(pod(), snapshot)
    assert isinstance(decision, Placement)
    assert (decision.node, decision.searched) == ("n2", 0)


def test_other_pods_find_a_nominated_node_taken() -> None:
    snapshot = make_snapshot(node("n1", pods="1"))
    snapshot.node_cache.nominate(pod("other"), "n1")
    assert isinstance(decide(pod(), snapshot), Unschedulable)
