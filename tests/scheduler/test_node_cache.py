"""The node cache: what is added can be removed again."""

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
    cache = NodeCache()
    for name in ("n1", "n2"):
        cache.put_node(node(name))
    where: dict[str, str] = {}
    for what, each, at in moves:
        if what == "put":
            cache.put_pod(each, at)
            where[each.key] = at
        else:
            assert cache.drop_pod(each.key) is (where.pop(each.key, None) is not None)
    fresh = NodeCache()
    for name in ("n1", "n2"):
        fresh.put_node(node(name))
    for each in PODS:
        if each.key in where:
            fresh.put_pod(each, where[each.key])
    for one, other in zip(cache.nodes, fresh.nodes, strict=True):
        assert +one.requested == +other.requested
        assert one.ports == other.ports
        assert one.claims == other.claims
        assert (one.cpu, one.memory) == (other.cpu, other.memory)
        assert one.pods.keys() == other.pods.keys()


def test_pods_are_remembered_while_their_node_is_unknown() -> None:
    cache = NodeCache()
    cache.put_pod(PODS[0], "n1")
    assert cache.nodes == []
    cache.put_node(node("n1"))
    assert [info.requested["cpu"] for info in cache.nodes] == [1000]
    cache.drop_node("n1")
    assert cache.find_node("n1") is None
    cache.put_node(node("n1"))
    assert list(cache.nodes[0].pods) == ["default/a"]


def test_a_claim_is_used_as_long_as_a_pod_on_a_node_uses_it() -> None:
    cache = NodeCache()
    cache.put_pod(PODS[0], "n1")
    assert cache.is_claim_used("default/claim-of-a")
    cache.drop_pod("default/a")
    assert not cache.is_claim_used("default/claim-of-a")


def test_a_pod_of_the_same_name_replaces_the_one_before() -> None:
    cache = NodeCache()
    cache.put_node(node("n1"))
    cache.put_pod(pod("a", "one", resources={"requests": {"cpu": "1"}}), "n1")
    cache.put_pod(pod("a", "two", resources={"requests": {"cpu": "3"}}), "n1")
    assert cache.nodes[0].requested["cpu"] == 3000
