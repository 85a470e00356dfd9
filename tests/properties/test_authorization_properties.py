"""Whatever roles, bindings, pods and volumes come and go: the indexes say what the objects themselves say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volplane.api import codec
from volplane.api.core import PersistentVolume, Pod
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject
from volplane.api.storage import VolumeAttachment
from volplane.apiserver.auth.authorize import Attributes
from volplane.apiserver.auth.nodes.graph import NodeGraph
from volplane.apiserver.auth.rbac.rules import allows_path, allows_resource, compact_rules, missing_rules
from volplane.apiserver.auth.rbac.user_rules import Rbac
from volplane.apiserver.strategy import RequestUser

SLOW = [HealthCheck.too_slow]  # a busy machine is not a reason to fail
NAMES, SPACES, USERS = ("a", "b", "c"), ("x", "y"), ("alice", "system:serviceaccount:x:bob")
VERBS, GROUPS, RESOURCES = ("get", "list", "*"), ("", "apps", "*"), ("pods", "pods/log", "*/log", "*")


def some(values: tuple[str, ...], least: int = 1) -> Any:
    return st.lists(st.sampled_from(values), min_size=least, max_size=2).map(tuple)


rules = st.one_of(
    st.builds(
        PolicyRule,
        verbs=some(VERBS),
        api_groups=some(GROUPS),
        resources=some(RESOURCES),
        resource_names=some(NAMES, 0),
    ),
    st.builds(PolicyRule, verbs=some(VERBS), non_resource_urls=some(("/a", "/a/*", "*"))),
)
subjects = st.one_of(
    st.builds(Subject, kind=st.just("User"), name=st.sampled_from(USERS)),
    st.builds(Subject, kind=st.just("Group"), name=st.sampled_from(("dev", "ops"))),
    st.builds(
        Subject,
        kind=st.just("ServiceAccount"),
        name=st.just("bob"),
        namespace=st.sampled_from(("", "x", "y")),
    ),
)
lists_of_rules = st.lists(rules, max_size=3).map(tuple)
lists_of_subjects = st.lists(subjects, max_size=3).map(tuple)
people = st.builds(RequestUser, st.sampled_from(USERS), some(("dev", "ops", "other"), 0))
acts = st.one_of(
    st.builds(
        Attributes,
        st.sampled_from(("get", "list", "delete")),
        st.sampled_from(("", "apps")),
        st.sampled_from(("pods", "nodes")),
        st.sampled_from(("", *SPACES)),
        st.sampled_from(("", *NAMES)),
        st.sampled_from(("", "log")),
    ),
    st.builds(Attributes, st.sampled_from(("get", "list")), path=st.sampled_from(("/a", "/a/b", "/c"))),
)


def make_object(kind: type[Any], name: str, space: str, body: dict[str, Any]) -> tuple[str, Any]:
    meta = {"name": name, "namespace": space}
    return (f"{space}/{name}" if space else name), codec.convert(kind, {"metadata": meta, **body})


@st.composite
def policies(draw: Any) -> tuple[str, Any]:
    kind = draw(st.sampled_from((ClusterRole, Role, ClusterRoleBinding, RoleBinding)))
    name, space = draw(st.sampled_from(NAMES)), draw(st.sampled_from(SPACES))
    if kind in (ClusterRole, Role):
        made = kind(rules=draw(lists_of_rules))
        key, _ = make_object(kind, name, "" if kind is ClusterRole else space, {})
        return key, made
    of = "ClusterRole" if kind is ClusterRoleBinding else draw(st.sampled_from(("ClusterRole", "Role")))
    reference = {"kind": of, "name": draw(st.sampled_from(NAMES)), "apiGroup": "rbac.authorization.k8s.io"}
    key, bare = make_object(kind, name, "" if kind is ClusterRoleBinding else space, {"roleRef": reference})
    return key, codec.convert(kind, {**codec.to_dict(bare), "subjects": draw(_plain_subjects())})


def _plain_subjects() -> Any:
    return lists_of_subjects.map(lambda given: [codec_subject(one) for one in given])


def codec_subject(subject: Subject) -> dict[str, str]:
    return {"kind": subject.kind, "name": subject.name, "namespace": subject.namespace}


def _holds(subject: Subject, space: str, user: RequestUser) -> bool:
    match subject.kind:
        case "User":
            return subject.name == user.name
        case "Group":
            return subject.name in user.groups
    where = subject.namespace or space
    return bool(where) and user.name == f"system:serviceaccount:{where}:{subject.name}"


def _rules_of(held: dict[tuple[type[Any], str], Any], user: RequestUser, space: str) -> Iterator[PolicyRule]:
    """As the API defines it: look through everything."""
    for (kind, key), obj in held.items():
        place = key.rpartition("/")[0]
        if kind not in (ClusterRoleBinding, RoleBinding) or place not in ("", space):
            continue
        if not any(_holds(subject, place, user) for subject in obj.subjects):
            continue
        reference = obj.role_ref
        where: tuple[type, str] = (ClusterRole, reference.name)
        if reference.kind == "Role":
            where = (Role, f"{place}/{reference.name}")
        if where in held:
            yield from held[where].rules


def _allows(rule: PolicyRule, act: Attributes) -> bool:
    if not act.plural:
        return allows_path(rule, act.verb, act.path)
    named = not rule.resource_names or act.name in rule.resource_names
    return named and allows_resource(rule, act.verb, act.group, act.plural, act.subresource)


changes = st.lists(st.tuples(st.booleans(), policies()), max_size=25)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(changes, st.lists(st.tuples(people, acts), min_size=1, max_size=6))
def test_the_index_of_roles_answers_as_the_objects_do(
    steps: list[tuple[bool, tuple[str, Any]]], questions: list[tuple[RequestUser, Attributes]]
) -> None:
    index = Rbac()
    held: dict[tuple[type[Any], str], Any] = {}
    for gone, (key, obj) in steps:
        if gone:
            held.pop((type(obj), key), None)
            index.drop(type(obj), key)
        else:
            held[type(obj), key] = obj
            index.put(key, obj)
        for user, act in questions:
            expected = any(_allows(rule, act) for rule in _rules_of(held, user, act.namespace))
            verdict = index.authorize(user, act)
            assert verdict.allowed is expected
            assert verdict.reason.startswith("RBAC: allowed by ") is expected


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(lists_of_rules, lists_of_rules, acts)
def test_what_nobody_lacks_nobody_gains(
    held: tuple[PolicyRule, ...], given: tuple[PolicyRule, ...], act: Attributes
) -> None:
    lacks = missing_rules(held, given)
    if not lacks and any(_allows(rule, act) for rule in given):
        assert any(_allows(rule, act) for rule in held)
    assert not missing_rules(given, given)
    assert not missing_rules([*held, *lacks], given)
    assert not missing_rules(compact_rules(lacks), lacks)


NODES = ("n1", "n2", "")


@st.composite
def workloads(draw: Any) -> tuple[str, Any]:
    name = draw(st.sampled_from(NAMES))
    kind = draw(st.sampled_from((Pod, PersistentVolume, VolumeAttachment)))
    if kind is VolumeAttachment:
        return make_object(kind, name, "", {"spec": {"nodeName": draw(st.sampled_from(NODES))}})
    if kind is PersistentVolume:
        secret = {"name": draw(st.sampled_from(NAMES)), "namespace": "x"}
        csi = {"driver": "d", "volumeHandle": "h", "nodeStageSecretRef": secret}
        claim = draw(st.sampled_from((None, "a", "b")))
        bound = {"claimRef": {"namespace": "x", "name": claim}} if claim else {}
        return make_object(kind, name, "", {"spec": {"csi": csi, **bound}})
    volumes = [
        {"name": "s", "secret": {"secretName": draw(st.sampled_from(NAMES))}},
        {"name": "c", "persistentVolumeClaim": {"claimName": draw(st.sampled_from(NAMES))}},
    ]
    mirror = {"kubernetes.io/config.mirror": "y"} if draw(st.booleans()) else {}
    key, made = make_object(
        kind, name, "x", {"spec": {"nodeName": draw(st.sampled_from(NODES)), "volumes": volumes}}
    )
    plain = codec.to_dict(made)
    plain["metadata"] = {
        **plain["metadata"],
        "uid": draw(st.sampled_from(("1", "2"))),
        "annotations": mirror,
    }
    return key, codec.convert(kind, plain)


def _uses(held: dict[tuple[type[Any], str], Any], node: str, claim: str = "", secret: str = "") -> bool:
    for (kind, _), pod in held.items():
        if kind is not Pod or pod.spec.node_name != node or pod.metadata.annotations:
            continue
        secrets, claims = pod.spec.volumes
        if claim and claims.persistent_volume_claim.claim_name == claim:
            return True
        if secret and secrets.secret.secret_name == secret:
            return True
    return False


def _reaches(held: dict[tuple[type[Any], str], Any], node: str, volume: PersistentVolume) -> bool:
    claim = volume.spec.claim_ref
    return claim is not None and _uses(held, node, claim=claim.name)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(st.lists(st.tuples(st.booleans(), workloads()), max_size=25))
def test_the_graph_of_nodes_answers_as_the_objects_do(steps: list[tuple[bool, tuple[str, Any]]]) -> None:
    graph = NodeGraph()
    held: dict[tuple[type[Any], str], Any] = {}
    for gone, (key, obj) in steps:
        before = held.get((type(obj), key))
        if gone:
            held.pop((type(obj), key), None)
            graph.drop(type(obj), key)
        else:
            if isinstance(obj, Pod) and before is not None and before.metadata.uid == obj.metadata.uid:
                continue  # what a pod names never changes: another one has another uid
            held[type(obj), key] = obj
            graph.put(key, obj)
        _agree(graph, held)


def _agree(graph: NodeGraph, held: dict[tuple[type[Any], str], Any]) -> None:
    volumes = {key: obj for (kind, key), obj in held.items() if kind is PersistentVolume}
    for node in ("n1", "n2"):
        for name in NAMES:
            pod = held.get((Pod, f"x/{name}"))
            assert graph.runs_pod(node, f"x/{name}") is (pod is not None and pod.spec.node_name == node)
            assert graph.uses_object(node, "persistentvolumeclaims", f"x/{name}") is _uses(
                held, node, claim=name
            )
            volume, attachment = volumes.get(name), held.get((VolumeAttachment, name))
            assert graph.uses_volume(node, name) is (volume is not None and _reaches(held, node, volume))
            assert graph.has_attachment(node, name) is (
                attachment is not None and attachment.spec.node_name == node
            )
            by_volume = any(
                _reaches(held, node, v)
                for v in volumes.values()
                if v.spec.csi.node_stage_secret_ref.name == name
            )
            expected = by_volume or _uses(held, node, secret=name)
            assert graph.uses_object(node, "secrets", f"x/{name}") is expected
