"""Where a volume goes and what it leaves: contract attach-and-mount A as a table of situations."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import Pod
from volplane.controllers.attachdetach import plan as p
from volplane.controllers.attachdetach.facts import split
from volplane.controllers.attachdetach.plan import Held, Place, View, plan
from volplane.rules.steps import Wait


def pod(name: str = "p", namespace: str = "default") -> Pod:
    return codec.convert(Pod, {"metadata": {"name": name, "namespace": namespace}})


def view(wanted: str = "", *held: Held, shared: bool = False, **more: Any) -> View:
    """`wanted`: node names with blanks between; places default to healthy nodes that list what they hold."""
    nodes = {node: [pod(f"p-{node}")] for node in wanted.split()}
    places = {node: Place() for node in nodes}
    places |= {h.node: Place(listed=h.attached and not h.deleting) for h in held}
    places |= more.pop("places", {})
    return View("pv", "d", "h", shareable=shared, wanted=nodes, held=held, places=places, **more)


def at(node: str, **more: Any) -> Held:
    return Held(node, f"va-{node}", attached=more.pop("attached", True), **more)


def told(step: object) -> str:
    match step:
        case p.Detach(held, check, forced):
            return f"Detach {held.node}" + ("" if check else " unchecked") + (f" {forced}" if forced else "")
        case p.Conflict(node, pods):
            return f"Conflict {node} {[each.name for each in pods]}"
        case p.Fail(node, message):
            return f"Fail {node}: {message}"
        case Wait(seconds, why):
            return f"Wait {seconds:g}: {why}"
        case p.Attach(node) | p.List(node) | p.Unlist(node):
            return f"{type(step).__name__} {node}"
    raise AssertionError(step)


ATTACHING = "waiting for external-attacher of d to attach it to {}"
DETACHING = "waiting for external-attacher of d to detach it from {}"
MOUNTED = Place(in_use=True, listed=True)
DOWN = Place(ready=False, in_use=True, listed=True)
FENCED = Place(ready=False, fenced=True, in_use=True, listed=True)
UNREADY = "is not ready and may still mount it"

CASES: dict[str, tuple[View, list[str]]] = {
    "nothing wanted, nothing held": (view(), []),
    # entering
    "wanted, not held": (view("a"), ["Attach a"]),
    "asked, no answer yet": (view("a", at("a", attached=False)), [f"Wait 120: {ATTACHING.format('a')}"]),
    "attached, the node does not know": (view("a", at("a"), places={"a": Place()}), ["List a"]),
    "attached and listed: rest": (view("a", at("a")), []),
    "two pods on one node, one leaves: rest": (view("a", at("a"), places={"a": MOUNTED}), []),
    "the attacher failed": (
        view("a", at("a", attached=False, attach_error="boom")),
        ["Fail a: boom", f"Wait inf: {ATTACHING.format('a')}: boom"],
    ),
    "the attacher does not answer": (
        view("a", at("a", attached=False, waiting_for=120.0)),
        ["Fail a: timed out waiting for external-attacher of d CSI driver to attach volume h"],
    ),
    "deleted by somebody while wanted": (
        view("a", at("a", deleting=True, waiting_for=1.0), places={"a": MOUNTED}),
        ["Unlist a", f"Wait inf: {DETACHING.format('a')}"],
    ),
    "detaching failed, wanted again": (
        view("a", at("a", deleting=True, detach_error="busy")),
        ["Fail a: volume attachment is being deleted", f"Wait inf: {DETACHING.format('a')}: busy"],
    ),
    "the attachment vanished under a pod": (view("a", places={"a": MOUNTED}), ["Unlist a", "Attach a"]),
    # leaving
    "unwanted and unmounted": (view("", at("a")), ["Unlist a", "Detach a"]),
    "unwanted, taken from the list before a crash": (view("", at("a"), places={"a": Place()}), ["Detach a"]),
    "unwanted while the attacher is at work": (view("", at("a", attached=False)), ["Detach a"]),
    "detach under way": (
        view("", at("a", deleting=True)),
        [f"Wait inf: {DETACHING.format('a')}"],
    ),
    "known only from the node's list": (view("", places={"a": Place(listed=True)}), ["Unlist a"]),
    # the gate
    "mounted, healthy": (view("", at("a"), places={"a": MOUNTED}), ["Wait inf: a still mounts it"]),
    "mounted, healthy, for an hour": (
        view("", at("a", unwanted_for=3600.0), places={"a": MOUNTED}),
        ["Wait inf: a still mounts it"],
    ),
    "mounted, not ready": (
        view("", at("a", unwanted_for=60.0), places={"a": DOWN}),
        [f"Wait 300: a {UNREADY}; detached by force when the grace is over"],
    ),
    "mounted, not ready, six minutes": (
        view("", at("a", unwanted_for=360.0), places={"a": DOWN}),
        ["Unlist a", "Detach a unchecked timeout"],
    ),
    "mounted, not ready, six minutes, no force": (
        view("", at("a", unwanted_for=360.0), places={"a": DOWN}, force=False),
        [f"Wait inf: a {UNREADY}"],
    ),
    "mounted, not ready, another grace": (
        view("", at("a", unwanted_for=11.0), places={"a": DOWN}, grace=10.0),
        ["Unlist a", "Detach a unchecked timeout"],
    ),
    "out of service": (
        view("", at("a"), places={"a": FENCED}),
        ["Unlist a", "Detach a unchecked out-of-service"],
    ),
    "out of service without force": (
        view("", at("a", unwanted_for=400.0), places={"a": FENCED}, force=False),
        ["Unlist a", "Detach a unchecked out-of-service"],
    ),
    "out of service for six minutes": (
        view("", at("a", unwanted_for=400.0), places={"a": FENCED}),
        ["Unlist a", "Detach a unchecked timeout"],
    ),
    "out of service and Ready": (
        view("", at("a"), places={"a": Place(fenced=True, in_use=True, listed=True)}),
        ["Unlist a", "Detach a unchecked out-of-service"],
    ),
    "not mounted, six minutes": (
        view("", at("a", unwanted_for=360.0)),
        ["Unlist a", "Detach a unchecked timeout"],
    ),
    "out of service, but a pod is still there": (view("a", at("a"), places={"a": FENCED}), []),
    # moving
    "moves, still mounted": (
        view("b", at("a"), places={"a": MOUNTED}),
        ["Wait inf: a still mounts it", "Conflict b []", "Wait inf: not free for b: attached to a"],
    ),
    "moves, told before": (
        view("b", at("a"), places={"a": MOUNTED}, told=frozenset({"b"})),
        ["Wait inf: a still mounts it", "Wait inf: not free for b: attached to a"],
    ),
    "moves, unmounted": (
        view("b", at("a")),
        ["Unlist a", "Detach a", "Wait inf: not free for b: it leaves a first"],
    ),
    "moves, detach under way": (
        view("b", at("a", deleting=True, waiting_for=20.0)),
        [
            f"Wait inf: {DETACHING.format('a')}",
            "Wait 100: not free for b: the attacher is at work on a",
        ],
    ),
    "moves, the detach failed: it is tried again before another node has its turn": (
        view("b", at("a", deleting=True, detach_error="x", waiting_for=20.0)),
        [
            f"Wait inf: {DETACHING.format('a')}: x",
            "Wait 100: not free for b: the attacher is at work on a",
        ],
    ),
    "moves, the detach kept failing: uncertain does not block": (
        view("b", at("a", deleting=True, detach_error="x", waiting_for=120.0)),
        [f"Wait inf: {DETACHING.format('a')}: x", "Attach b"],
    ),
    "wanted twice, one attach failed: uncertain does not block": (
        view("a b", at("a", attached=False, attach_error="x")),
        ["Fail a: x", f"Wait inf: {ATTACHING.format('a')}: x", "Attach b"],
    ),
    "moves, the detach got no answer: uncertain does not block": (
        view("b", at("a", deleting=True, waiting_for=121.0)),
        [f"Wait inf: {DETACHING.format('a')}", "Attach b"],
    ),
    "used elsewhere": (
        view("a b", at("a"), places={"a": MOUNTED}),
        ["Conflict b ['p-a']", "Wait inf: not free for b: attached to a"],
    ),
    "two nodes at once, one is first": (
        view("a b"),
        ["Attach a", "Wait inf: not free for b: it goes to a first"],
    ),
    "two nodes, the first is being attached": (
        view("a b", at("a", attached=False, waiting_for=20.0)),
        [f"Wait 100: {ATTACHING.format('a')}", "Wait 100: not free for b: the attacher is at work on a"],
    ),
    # shared
    "shared: everywhere at once": (view("a b c", shared=True), ["Attach a", "Attach b", "Attach c"]),
    "shared: one failure does not stop the others": (
        view("a b", at("a", attached=False, attach_error="x"), shared=True),
        ["Fail a: x", f"Wait inf: {ATTACHING.format('a')}: x", "Attach b"],
    ),
    "shared: enters while it leaves": (view("b", at("a"), shared=True), ["Unlist a", "Detach a", "Attach b"]),
}


@pytest.mark.parametrize(("seen", "steps"), CASES.values(), ids=CASES.keys())
def test_plan(seen: View, steps: list[str]) -> None:
    assert [told(step) for step in plan(seen)] == steps


HERE = pod("me")
MESSAGES = {
    "nobody left there": (
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


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("kubernetes.io/csi/ebs.csi.aws.com^vol-1", ("ebs.csi.aws.com", "vol-1")),
        ("kubernetes.io/csi/ebs.csi.aws.com^vol^1", None),
        ("kubernetes.io/csi/ebs.csi.aws.com", None),
        ("flexvolume-example/disk/x^y", None),
    ],
)
def test_a_name_is_read_only_without_doubt(name: str, parts: tuple[str, str] | None) -> None:
    assert split(name) == parts
