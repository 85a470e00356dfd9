"""Pods that seek or avoid each other, and pods that spread: tables of who is where and who comes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.controllers.objects import node as full_node
from tests.scheduler.test_scheduler_plan import NO_VICTIM, NOT_HELPFUL, TAIL, ZONE, make_snapshot, node, pod
from tests.support.scheduler_env import scheduler_env
from volplane.api import codec
from volplane.api.core import Namespace, Pod
from volplane.api.selectors import LabelMatcher
from volplane.scheduler.node_cache import NodeCache
from volplane.scheduler.plan import Placement, Unschedulable, decide
from volplane.scheduler.pod_affinity_index import CombinedPodSelector, PodSelector
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

HOST = "kubernetes.io/hostname"


def someone(name: str = "p", app: str = "", on: str = "", *, space: str = "default", **spec: Any) -> Pod:
    whole = codec.to_dict(pod(name, on=on, **spec))
    whole["metadata"] |= {"labels": {"app": app} if app else {}, "namespace": space}
    whole["spec"]["containers"][0]["image"] = "busybox"
    return codec.convert(Pod, whole)


def term(app: str, key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def away(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def rather(side: str, weight: int, one: dict[str, Any]) -> dict[str, Any]:
    soft = [{"weight": weight, "podAffinityTerm": one}]
    return {side: {"preferredDuringSchedulingIgnoredDuringExecution": soft}}


def even(app: str, skew: int = 1, key: str = ZONE, **more: Any) -> list[dict[str, Any]]:
    selector = {"matchLabels": {"app": app}}
    base = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**base, "labelSelector": selector, **more}]


OWN_LABEL = {"labelSelector": {}, "topologyKey": ZONE, "matchLabelKeys": ["app"]}
NODES = (node("a1"), node("a2"), node("b1", zone="b"), node("c1", zone="c"))

PLACED: dict[str, tuple[Pod, SchedulingSnapshot, set[str]]] = {
    "near another": (
        someone(affinity=near(term("db"))),
        make_snapshot(*NODES, someone("db", "db", "b1")),
        {"b1"},
    ),
    "the first of its kind goes anywhere": (
        someone("w", "web", affinity=near(term("web"))),
        make_snapshot(*NODES),
        {"a1", "a2", "b1", "c1"},
    ),
    "near one that matches every term": (
        someone(affinity=near(term("db"), term("db", HOST))),
        make_snapshot(*NODES, someone("db", "db", "a2")),
        {"a2"},
    ),
    "away from another's zone": (
        someone(affinity=away(term("db"))),
        make_snapshot(*NODES, someone("db", "db", "a1"), someone("db2", "db", "b1")),
        {"c1"},
    ),
    "away from another's node only": (
        someone(affinity=away(term("db", HOST))),
        make_snapshot(*NODES[:2], someone("db", "db", "a1")),
        {"a2"},
    ),
    "one that is there keeps it out": (
        someone("w", "web"),
        make_snapshot(*NODES[:3], someone("db", "db", "a1", affinity=away(term("web")))),
        {"b1"},
    ),
    "another namespace is not meant": (
        someone(affinity=away(term("db"))),
        make_snapshot(*NODES[:1], someone("db", "db", "a1", space="other")),
        {"a1"},
    ),
    "another namespace is named": (
        someone(affinity=away(term("db", namespaces=["other"]))),
        make_snapshot(*NODES[:3], someone("db", "db", "a1", space="other")),
        {"b1"},
    ),
    "all namespaces": (
        someone(affinity=away(term("db", namespaceSelector={}))),
        make_snapshot(*NODES[:3], someone("db", "db", "a1", space="other")),
        {"b1"},
    ),
    "its own label is part of the term": (
        someone(
            "w", "web", affinity=away({"labelSelector": {}, "topologyKey": ZONE, "matchLabelKeys": ["app"]})
        ),
        make_snapshot(*NODES[:3], someone("x", "db", "b1"), someone("y", "web", "a1")),
        {"b1"},
    ),
    "rather near": (
        someone(affinity=rather("podAffinity", 100, term("db"))),
        make_snapshot(*NODES, someone("db", "db", "b1"), someone("x", "", "b1", cpu="2")),
        {"b1"},
    ),
    "rather away": (
        someone(affinity=rather("podAntiAffinity", 100, term("db"))),
        make_snapshot(*NODES[:3], someone("db", "db", "a1"), someone("x", "", "b1", cpu="3")),
        {"b1"},
    ),
    "one that is there would like its company": (
        someone("w", "web"),
        make_snapshot(
            *NODES[:3], someone("db", "db", "b1", cpu="3", affinity=rather("podAffinity", 9, term("web")))
        ),
        {"b1"},
    ),
    "evenly over zones": (
        someone("w", "web", topologySpreadConstraints=even("web")),
        make_snapshot(*NODES, someone("x", "web", "a1"), someone("y", "web", "b1")),
        {"c1"},
    ),
    "a skew of two is allowed": (
        someone("w", "web", topologySpreadConstraints=even("web", 2), nodeSelector={ZONE: "a"}),
        make_snapshot(*NODES, someone("x", "web", "a1"), someone("y", "web", "b1")),
        {"a1", "a2"},
    ),
    "a zone that it cannot use does not count": (
        someone("w", "web", topologySpreadConstraints=even("web"), nodeSelector={ZONE: "a"}),
        make_snapshot(*NODES, someone("x", "web", "a1"), someone("y", "web", "a2")),
        {"a1", "a2"},
    ),
    "a soft constraint is only a preference": (
        someone("w", "web", topologySpreadConstraints=even("web", whenUnsatisfiable="ScheduleAnyway")),
        make_snapshot(*NODES[:3], someone("x", "web", "a1"), someone("y", "other", "b1", cpu="2")),
        {"b1"},
    ),
}


@pytest.mark.parametrize(("wanted", "around", "names"), PLACED.values(), ids=PLACED.keys())
def test_goes_where(wanted: Pod, around: SchedulingSnapshot, names: set[str]) -> None:
    decision = decide(wanted, around)
    assert isinstance(decision, Placement), decision
    assert decision.node in names


REFUSED: dict[str, tuple[Pod, SchedulingSnapshot, str]] = {
    "no pod to be near to": (
        someone(affinity=near(term("db"))),
        make_snapshot(*NODES),
        "0/4 nodes are available: 4 node(s) didn't match pod affinity rules." + TAIL.format(4, NOT_HELPFUL),
    ),
    "a pod to avoid on every node": (
        someone(affinity=away(term("db"))),
        make_snapshot(*NODES[:2], someone("db", "db", "a1")),
        "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."
        + TAIL.format(2, NO_VICTIM),
    ),
    "kept out": (
        someone("w", "web"),
        make_snapshot(*NODES[:2], someone("db", "db", "a1", affinity=away(term("web")))),
        "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
        + TAIL.format(2, NO_VICTIM),
    ),
    "too uneven, and a node without the label": (
        someone("w", "web", topologySpreadConstraints=even("web", key="rack")),
        make_snapshot(
            node("n1", labels={"rack": "1"}),
            node("n2", labels={"rack": "2"}, unschedulable=True),
            node("n3"),
            someone("x", "web", "n1"),
        ),
        "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, 1 node(s) didn't "
        "match pod topology spread constraints (missing required label), 1 node(s) were unschedulable. no "
        "new claims to deallocate, preemption: 0/3 nodes are available: 1 No preemption victims found for "
        "incoming pod, 2 Preemption is not helpful for scheduling.",
    ),
    "fewer domains than there should be": (
        someone("w", "web", topologySpreadConstraints=even("web", minDomains=3)),
        make_snapshot(*NODES[:3], someone("x", "web", "a1"), someone("y", "web", "b1")),
        "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints."
        + TAIL.format(3, NO_VICTIM),
    ),
}


@pytest.mark.parametrize(("wanted", "around", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused(wanted: Pod, around: SchedulingSnapshot, message: str) -> None:
    decision = decide(wanted, around)
    assert isinstance(decision, Unschedulable), decision
    assert decision.message == message


def test_replicas_of_one_controller_spread_over_zones_though_nothing_says_so() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": True}
    around = make_snapshot(*(node(f"{zone}{i}", zone=zone) for zone in "abc" for i in (1, 2)))
    zones = []
    for i in range(3):
        whole = codec.to_dict(someone(f"db-{i}", "db"))
        whole["metadata"]["ownerReferences"] = [owner]
        replica = codec.convert(Pod, whole)
        decision = decide(replica, around)
        assert isinstance(decision, Placement)
        around.node_cache.put_pod(replica, decision.node)
        zones.append(decision.node[0])
    assert sorted(zones) == ["a", "b", "c"]


def test_counts_that_are_kept_are_those_that_a_fresh_look_gives() -> None:
    dice = random.Random(1)
    group = CombinedPodSelector(
        (PodSelector(LabelMatcher.equal({"app": "web"}), frozenset(("default",))),), ignores_terminating=True
    )
    cache = NodeCache()
    for name in ("n1", "n2"):
        cache.put_node(node(name))
    for _ in range(300):
        name, app = f"p{dice.randrange(8)}", dice.choice(["web", "db"])
        if dice.random() < 0.3:
            cache.drop_pod(f"default/{name}")
        else:
            whole = codec.to_dict(someone(name, app, affinity=away(term("web"))))
            if dice.random() < 0.3:
                whole["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            cache.put_pod(codec.convert(Pod, whole), dice.choice(["n1", "n2"]))
        kept = dict(cache.count_pods(group))
        cache.affinity_index.clear_counts()
        assert dict(cache.count_pods(group)) == kept
    for i in range(8):
        cache.drop_pod(f"default/p{i}")
    assert not cache.affinity_index.rules


@pytest.mark.virtual
async def test_company_that_comes_wakes_the_pod_that_waits_for_it() -> None:
    async with scheduler_env(full_node("a"), full_node("b", zone="b")) as b:
        await b.client.create(someone("w", affinity=near(term("db"))))
        await b.expect_unschedulable(
            "w",
            "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."
            + TAIL.format(2, NOT_HELPFUL),
        )
        await b.client.create(someone("db", "db", nodeSelector={ZONE: "b"}))
        assert await b.wait_until_scheduled("w") == "b"


@pytest.mark.virtual
async def test_namespaces_may_be_meant_by_their_labels() -> None:
    async with scheduler_env(full_node("a"), full_node("b", zone="b")) as b:
        await b.client.create(someone("db", "db", nodeSelector={ZONE: "a"}))
        await b.wait_until_scheduled("db")
        shared: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "data"}}}
        await b.client.create(someone("w", affinity=near(term("db", **shared))))
        await b.expect_unschedulable(
            "w",
            "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."
            + TAIL.format(2, NOT_HELPFUL),
        )
        await b.client.patch(Namespace, "default", merge={"metadata": {"labels": {"team": "data"}}})
        assert await b.wait_until_scheduled("w") == "a"
