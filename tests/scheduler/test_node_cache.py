"""The books of nodes: what goes in comes out again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from volplane.api import codec
from volplane.api.core import Node, Pod
from volplane.scheduler.node_cache import NodeCache


def pod(name: str, uid: str = "", **container: Any) -> Pod:
    whole: dict[str, Any] = {
        "metadata": {"namespace": "default", "name": name, "uid": uid or name},
        "spec": {
            "containers": [{"name": "c", **container}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": f"claim-of-{name}"}}],
        },
    }
    return codec.convert(Pod, whole)


def node(name: str) -> Node:
    return codec.convert(Node, {"metadata": {"name": name}})


PODS = [
    pod("a", resources={"requests": {"cpu": "1", "memory": "1Gi"}}),
    pod("b", ports=[{"containerPort": 1, "hostPort": 80}]),
    pod("c", resources={"requests": {"cpu": "500m"}}),
]


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "drop"]), st.sampled_from(PODS), st.sampled_from(["n1", "n2"]))
    )
)
def test_sums_are_those_of_the_pods_that_are_there(moves: list[tuple[str, Pod, str]]) -> None:
    ledger = NodeCache()
    for name in ("n1", "n2"):
        ledger.put_node(node(name))
    where: dict[str, str] = {}
    for what, each, at in moves:
        if what == "put":
            ledger.put_pod(each, at)
            where[each.key] = at
        else:
            assert ledger.drop_pod(each.key) is (where.pop(each.key, None) is not None)
    fresh = NodeCache()
    for name in ("n1", "n2"):
        fresh.put_node(node(name))
    for each in PODS:
        if each.key in where:
            fresh.put_pod(each, where[each.key])
    for one, other in zip(ledger.nodes, fresh.nodes, strict=True):
        assert +one.requested == +other.requested
        assert one.ports == other.ports
        assert one.claims == other.claims
        assert (one.cpu, one.memory) == (other.cpu, other.memory)
        assert one.pods.keys() == other.pods.keys()


def test_pods_are_remembered_while_their_node_is_unknown() -> None:
    ledger = NodeCache()
    ledger.put_pod(PODS[0], "n1")
    assert ledger.nodes == []
    ledger.put_node(node("n1"))
    assert [info.requested["cpu"] for info in ledger.nodes] == [1000]
    ledger.drop_node("n1")
    assert ledger.find_node("n1") is None
    ledger.put_node(node("n1"))
    assert list(ledger.nodes[0].pods) == ["default/a"]


def test_a_claim_is_used_as_long_as_a_pod_on_a_node_uses_it() -> None:
    ledger = NodeCache()
    ledger.put_pod(PODS[0], "n1")
    assert ledger.is_claim_used("default/claim-of-a")
    ledger.drop_pod("default/a")
    assert not ledger.is_claim_used("default/claim-of-a")


def test_a_pod_of_the_same_name_replaces_the_one_before() -> None:
    ledger = NodeCache()
    ledger.put_node(node("n1"))
    ledger.put_pod(pod("a", "one", resources={"requests": {"cpu": "1"}}), "n1")
    ledger.put_pod(pod("a", "two", resources={"requests": {"cpu": "3"}}), "n1")
    assert ledger.nodes[0].requested["cpu"] == 3000
