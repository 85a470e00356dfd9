"""Where a volume goes and what it leaves: contract attach-and-mount A as a table of situations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.waits import describe_wait
from volplane.api import codec, names
from volplane.api.core import Pod
from volplane.controllers.attachdetach import plan as p
from volplane.controllers.attachdetach.facts import split
from volplane.controllers.attachdetach.plan import AttachDetachView, ExistingAttachment, NodeFacts, plan
from volplane.rules.waits import Wait


def pod(name: str = "p", namespace: str = "default") -> Pod:
    return codec.convert(Pod, {"metadata": {"name": name, "namespace": namespace}})


def view(wanted: str = "", *held: ExistingAttachment, shared: bool = False, **more: Any) -> AttachDetachView:
    """`wanted`: node names with blanks between; places default to healthy nodes that list what they hold."""
    nodes = {node: [pod(f"p-{node}")] for node in wanted.split()}
    places = {node: NodeFacts() for node in nodes}
    places |= {h.node: NodeFacts(listed=h.attached and not h.deleting) for h in held}
    places |= more.pop("nodes", {})
    return AttachDetachView(
        "pv", "d", "h", shareable=shared, wanted=nodes, attachments=held, nodes=places, **more
    )


def at(node: str, **more: Any) -> ExistingAttachment:
    return ExistingAttachment(node, f"va-{node}", attached=more.pop("attached", True), **more)


def describe_step(step: object) -> str:
    match step:
        case p.DeleteAttachment(held, check, forced):
            return (
                f"DeleteAttachment {held.node}"
                + ("" if check else " unchecked")
                + (f" {forced}" if forced else "")
            )
        case p.ReportMultiAttach(node, pods):
            return f"ReportMultiAttach {node} {[each.name for each in pods]}"
        case p.ReportAttachFailure(node, message):
            return f"ReportAttachFailure {node}: {message}"
        case Wait():
            return f"{describe_wait(step)} {step.seconds:g}".removesuffix(" inf")
        case p.AddToVolumesAttached(node, device) if device:
            return f"AddToVolumesAttached {node} {device}"
        case p.CreateAttachment(node) | p.AddToVolumesAttached(node) | p.RemoveFromVolumesAttached(node):
            return f"{type(step).__name__} {node}"
    raise AssertionError(step)


ATTACHING = "Wait Attach(a, d)"
DETACHING = "Wait Detach(a, d)"
MOUNTED = NodeFacts(in_use=True, listed=True)
DOWN = NodeFacts(ready=False, in_use=True, listed=True)
FENCED = NodeFacts(ready=False, fenced=True, in_use=True, listed=True)

CASES: dict[str, tuple[AttachDetachView, list[str]]] = {
    "nothing wanted, nothing held": (view(), []),
    # entering
    "wanted, not held": (view("a"), ["CreateAttachment a"]),
    "asked, no answer yet": (view("a", at("a", attached=False)), [f"{ATTACHING} 120"]),
    "attached, the node does not know": (
        view("a", at("a"), nodes={"a": NodeFacts()}),
        ["AddToVolumesAttached a"],
    ),
    "attached and listed: rest": (view("a", at("a")), []),
    "two pods on one node, one leaves: rest": (view("a", at("a"), nodes={"a": MOUNTED}), []),
    "the attacher failed": (
        view("a", at("a", attached=False, attach_error="boom")),
        ["ReportAttachFailure a: boom", f"{ATTACHING}: boom"],
    ),
    "the attacher does not answer": (
        view("a", at("a", attached=False, waiting_for=120.0)),
        ["ReportAttachFailure a: timed out waiting for external-attacher of d CSI driver to attach volume h"],
    ),
    "deleted by a user while wanted": (
        view("a", at("a", deleting=True, waiting_for=1.0), nodes={"a": MOUNTED}),
        ["RemoveFromVolumesAttached a", DETACHING],
    ),
    "detaching failed, wanted again": (
        view("a", at("a", deleting=True, detach_error="busy")),
        [
            "ReportAttachFailure a: volume attachment is being deleted",
            f"{DETACHING}: busy",
        ],
    ),
    "the attachment vanished under a pod": (
        view("a", nodes={"a": MOUNTED}),
        ["RemoveFromVolumesAttached a", "CreateAttachment a"],
    ),
    # made by hand
    "made by hand, unwanted: kept": (view("", at("a", by_hand=True), nodes={"a": NodeFacts()}), []),
    "made by hand, its pod has left": (view("", at("a", by_hand=True)), ["RemoveFromVolumesAttached a"]),
    "made by hand, its pod is leaving": (view("", at("a", by_hand=True), nodes={"a": MOUNTED}), []),
    "made by hand, deleted by hand": (view("", at("a", by_hand=True, deleting=True)), [DETACHING]),
    "made by hand, wanted there": (
        view("a", at("a", by_hand=True), nodes={"a": NodeFacts()}),
        ["CreateAttachment a"],
    ),
    "made by hand, wanted there, and the controller's own": (
        view("a", at("a", by_hand=True), at("a"), nodes={"a": NodeFacts()}),
        ["AddToVolumesAttached a"],
    ),
    "made by hand, wanted there, being deleted": (
        view("a", at("a", by_hand=True, deleting=True), nodes={"a": NodeFacts()}),
        [DETACHING],
    ),
    "made by hand for a FlexVolume, wanted there": (
        view("a", at("a", by_hand=True), is_flex=True, nodes={"a": NodeFacts()}),
        ["AddToVolumesAttached a"],
    ),
    "not attached any more, the node still lists it": (
        view("a", at("a", attached=False), nodes={"a": MOUNTED}),
        ["RemoveFromVolumesAttached a", f"{ATTACHING} 120"],
    ),
    # FlexVolumes
    "a FlexVolume is attached with its device": (
        view("a", at("a", device_path="/dev/x"), is_flex=True, nodes={"a": NodeFacts()}),
        ["AddToVolumesAttached a /dev/x"],
    ),
    "a FlexVolume was attached again as another device": (
        view("a", at("a", device_path="/dev/y"), nodes={"a": NodeFacts(listed=True, device_path="/dev/x")}),
        ["AddToVolumesAttached a /dev/y"],
    ),
    "its driver is at work": (
        view("a", at("a", attached=False), is_flex=True),
        ["Wait FlexAttach(a, d) 120"],
    ),
    "its driver does not answer": (
        view("a", at("a", attached=False, waiting_for=120.0), is_flex=True),
        ["ReportAttachFailure a: timed out waiting for FlexVolume driver d to attach volume h"],
    ),
    "its driver detaches": (
        view("", at("a", deleting=True), is_flex=True),
        ["Wait FlexDetach(a, d)"],
    ),
    "its driver is missing, and that of the node may not attach": (
        view("a", is_flex=True, flex_missing="not found"),
        ["Wait FlexDriverMissing(a, d): not found"],
    ),
    "its driver is missing, and that of the node attaches": (
        view("a", is_flex=True, flex_missing="not found", nodes={"a": NodeFacts(in_use=True)}),
        ["ReportAttachFailure a: not found", "Wait FlexDriverMissing(a, d): not found"],
    ),
    "its driver is being loaded": (
        view(
            "a", is_flex=True, flex_missing="loading", flex_loading=True, nodes={"a": NodeFacts(in_use=True)}
        ),
        ["Wait FlexDriverMissing(a, d): loading"],
    ),
    "its driver is missing, and it is attached": (
        view("a", at("a"), is_flex=True, flex_missing="not found"),
        [],
    ),
    # leaving
    "unwanted and unmounted": (view("", at("a")), ["RemoveFromVolumesAttached a", "DeleteAttachment a"]),
    "unwanted, taken from the list before a crash": (
        view("", at("a"), nodes={"a": NodeFacts()}),
        ["DeleteAttachment a"],
    ),
    "unwanted while the attacher is at work": (view("", at("a", attached=False)), ["DeleteAttachment a"]),
    "detach under way": (
        view("", at("a", deleting=True)),
        [DETACHING],
    ),
    "detach under way, the node still lists it": (
        view("", at("a", deleting=True), nodes={"a": NodeFacts(listed=True)}),
        ["RemoveFromVolumesAttached a", DETACHING],
    ),
    "known only from the node's list": (
        view("", nodes={"a": NodeFacts(listed=True)}),
        ["RemoveFromVolumesAttached a"],
    ),
    # the gate
    "mounted, healthy": (view("", at("a"), nodes={"a": MOUNTED}), ["Wait MountedOnNode(a)"]),
    "mounted, healthy, for an hour": (
        view("", at("a", unwanted_for=3600.0), nodes={"a": MOUNTED}),
        ["Wait MountedOnNode(a)"],
    ),
    "mounted, not ready": (
        view("", at("a", unwanted_for=60.0), nodes={"a": DOWN}),
        ["Wait ForceDetach(a) 300"],
    ),
    "mounted, not ready, six minutes": (
        view("", at("a", unwanted_for=360.0), nodes={"a": DOWN}),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a unchecked timeout"],
    ),
    "mounted, not ready, six minutes, no force": (
        view("", at("a", unwanted_for=360.0), nodes={"a": DOWN}, force=False),
        ["Wait NodeNotReady(a)"],
    ),
    "mounted, not ready, another grace": (
        view("", at("a", unwanted_for=11.0), nodes={"a": DOWN}, grace=10.0),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a unchecked timeout"],
    ),
    "out of service": (
        view("", at("a"), nodes={"a": FENCED}),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a unchecked out-of-service"],
    ),
    "out of service without force": (
        view("", at("a", unwanted_for=400.0), nodes={"a": FENCED}, force=False),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a unchecked out-of-service"],
    ),
    "out of service for six minutes": (
        view("", at("a", unwanted_for=400.0), nodes={"a": FENCED}),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a unchecked timeout"],
    ),
    "out of service and Ready": (
        view("", at("a"), nodes={"a": NodeFacts(fenced=True, in_use=True, listed=True)}),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a unchecked out-of-service"],
    ),
    "not mounted, six minutes": (
        view("", at("a", unwanted_for=360.0)),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a unchecked timeout"],
    ),
    "out of service, but a pod is still there": (view("a", at("a"), nodes={"a": FENCED}), []),
    # moving
    "moves, still mounted": (
        view("b", at("a"), nodes={"a": MOUNTED}),
        ["Wait MountedOnNode(a)", "ReportMultiAttach b []", "Wait AttachedToOtherNode(b, a)"],
    ),
    "moves, reported before": (
        view("b", at("a"), nodes={"a": MOUNTED}, reported=frozenset({"b"})),
        ["Wait MountedOnNode(a)", "Wait AttachedToOtherNode(b, a)"],
    ),
    "moves, unmounted": (
        view("b", at("a")),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a", "Wait DetachingFromOtherNode(b, a)"],
    ),
    "moves, detach under way": (
        view("b", at("a", deleting=True, waiting_for=20.0)),
        [
            DETACHING,
            "Wait AttacherBusy(b, a) 100",
        ],
    ),
    "moves, the detach failed: it is tried again before another node has its turn": (
        view("b", at("a", deleting=True, detach_error="x", waiting_for=20.0)),
        [
            f"{DETACHING}: x",
            "Wait AttacherBusy(b, a) 100",
        ],
    ),
    "moves, the detach kept failing: uncertain does not block": (
        view("b", at("a", deleting=True, detach_error="x", waiting_for=120.0)),
        [f"{DETACHING}: x", "CreateAttachment b"],
    ),
    "wanted twice, one attach failed: uncertain does not block": (
        view("a b", at("a", attached=False, attach_error="x")),
        ["ReportAttachFailure a: x", f"{ATTACHING}: x", "CreateAttachment b"],
    ),
    "moves, the detach got no answer: uncertain does not block": (
        view("b", at("a", deleting=True, waiting_for=121.0)),
        [DETACHING, "CreateAttachment b"],
    ),
    "used elsewhere": (
        view("a b", at("a"), nodes={"a": MOUNTED}),
        ["ReportMultiAttach b ['p-a']", "Wait AttachedToOtherNode(b, a)"],
    ),
    "two nodes at once, one is first": (
        view("a b"),
        ["CreateAttachment a", "Wait AttachingToOtherNode(b, a)"],
    ),
    "two nodes, the first is being attached": (
        view("a b", at("a", attached=False, waiting_for=20.0)),
        [f"{ATTACHING} 100", "Wait AttacherBusy(b, a) 100"],
    ),
    # shared
    "shared: everywhere at once": (
        view("a b c", shared=True),
        ["CreateAttachment a", "CreateAttachment b", "CreateAttachment c"],
    ),
    "shared: one failure does not stop the others": (
        view("a b", at("a", attached=False, attach_error="x"), shared=True),
        ["ReportAttachFailure a: x", f"{ATTACHING}: x", "CreateAttachment b"],
    ),
    "shared: enters while it leaves": (
        view("b", at("a"), shared=True),
        ["RemoveFromVolumesAttached a", "DeleteAttachment a", "CreateAttachment b"],
    ),
}


@pytest.mark.parametrize(("seen", "steps"), CASES.values(), ids=CASES.keys())
def test_plan(seen: AttachDetachView, steps: list[str]) -> None:
    assert [describe_step(step) for step in plan(seen)] == steps


HERE = pod("me")
MESSAGES = {
    "no pods left there": (
        [],
        "Volume is already exclusively attached to one node and can't be attached to another",
    ),
    "neighbours": ([pod("b"), pod("a")], "Volume is already used by pod(s) a, b"),
    "neighbours and strangers": (
        [pod("a"), pod("x", "other")],
        "Volume is already used by pod(s) a and 1 pod(s) in different namespaces",
    ),
    "strangers": (
        [pod("x", "other"), pod("y", "else")],
        "Volume is already used by 2 pod(s) in different namespaces",
    ),
}


@pytest.mark.parametrize(("users", "message"), MESSAGES.values(), ids=MESSAGES.keys())
def test_what_a_pod_hears_of_a_conflict(users: list[Pod], message: str) -> None:
    assert p.conflict_message("pv", HERE, users) == f'Multi-Attach error for volume "pv" {message}'


def test_the_other_messages_keep_their_blanks() -> None:
    assert p.success_message("pv") == 'AttachVolume.Attach succeeded for volume "pv" '
    assert p.failure_message("pv", "x") == 'AttachVolume.Attach failed for volume "pv" : x'


def test_attachments_of_one_volume_have_other_names_for_csi_and_flex() -> None:
    csi, flex = view(), view(is_flex=True, unique_name="d/h")
    assert csi.attachment_name("a") == names.attachment_name("h", "d", "a")
    assert flex.attachment_name("a") == names.flex_attachment_name("d/h", "a")
    assert flex.attachment_name("a") != flex.attachment_name("b")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("kubernetes.io/csi/ebs.csi.aws.com^vol-1", ("ebs.csi.aws.com", "vol-1")),
        ("kubernetes.io/csi/ebs.csi.aws.com^vol^1", None),
        ("kubernetes.io/csi/ebs.csi.aws.com", None),
        ("example.com/disks/pv-1", ("example.com/disks", "pv-1")),
    ],
)
def test_a_name_is_read_only_without_doubt(name: str, parts: tuple[str, str] | None) -> None:
    assert split(name) == parts
