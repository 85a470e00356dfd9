"""The roles and bindings that every cluster starts with, read from `policy.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from volplane.api import rbac
from volplane.api.meta import LabelSelector, ObjectMeta
from volplane.apiserver.auth.rbac.aggregation import aggregate_roles

GROUP = "rbac.authorization.k8s.io"
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
CONTROLLER = "system:controller:"
_SUBJECT_KINDS = {"user": "User", "group": "Group", "account": "ServiceAccount"}


@cache
def _policy() -> Mapping[str, Any]:
    text = Path(__file__).with_name("policy.yaml").read_bytes()
    policy: Mapping[str, Any] = yaml.load(
        text, Loader=yaml.CBaseLoader
    )  # everything is text: no types to resolve
    return policy


@cache
def cluster_roles() -> tuple[rbac.ClusterRole, ...]:
    """Aggregated roles already have the rules of the roles that they select."""
    policy = _policy()
    roles = [_cluster_role(name, given) for name, given in policy["clusterRoles"].items()]
    roles += [_cluster_role(CONTROLLER + name, given) for name, given in policy["controllers"].items()]
    return aggregate_roles(roles)


@cache
def cluster_role_bindings() -> tuple[rbac.ClusterRoleBinding, ...]:
    policy = _policy()
    bindings = dict(policy["clusterRoleBindings"])
    bindings |= {CONTROLLER + name: [f"account kube-system/{name}"] for name in policy["controllers"]}
    return tuple(
        rbac.ClusterRoleBinding(
            metadata=_metadata(name), subjects=_subjects(subjects), role_ref=_role_ref("ClusterRole", name)
        )
        for name, subjects in bindings.items()
    )


@cache
def roles() -> tuple[rbac.Role, ...]:
    return tuple(
        rbac.Role(metadata=_metadata(name), rules=parse_rules(rules))
        for name, rules in _policy()["roles"].items()
    )


@cache
def role_bindings() -> tuple[rbac.RoleBinding, ...]:
    return tuple(
        rbac.RoleBinding(
            metadata=_metadata(name),
            subjects=_subjects(given["subjects"]),
            role_ref=_role_ref("Role", given["role"]),
        )
        for name, given in _policy()["roleBindings"].items()
    )


def node_rules() -> tuple[rbac.PolicyRule, ...]:
    """What every node may do, independent of the pods on it: see `auth.nodes`."""
    return parse_rules(_policy()["clusterRoles"]["system:node"])


def _cluster_role(name: str, given: Any) -> rbac.ClusterRole:
    """`given` is a list of rules, or a mapping for a role that aggregates others or is aggregated."""
    if isinstance(given, list):
        return rbac.ClusterRole(metadata=_metadata(name), rules=parse_rules(given))
    aggregation = None
    if "aggregates" in given:
        selector = LabelSelector(match_labels=_aggregate_to(given["aggregates"]))
        aggregation = rbac.AggregationRule(cluster_role_selectors=(selector,))
    labels = _aggregate_to(given["aggregateTo"]) if "aggregateTo" in given else {}
    return rbac.ClusterRole(
        metadata=_metadata(name, labels),
        rules=parse_rules(given.get("rules", ())),
        aggregation_rule=aggregation,
    )


def _aggregate_to(role: str) -> dict[str, str]:
    return {f"{GROUP}/aggregate-to-{role}": "true"}


def _metadata(key: str, labels: Mapping[str, str] | None = None) -> ObjectMeta:
    """Of `name` or `namespace/name`."""
    namespace, _, name = key.rpartition("/")
    return ObjectMeta(
        name=name,
        namespace=namespace,
        labels={"kubernetes.io/bootstrapping": "rbac-defaults", **(labels or {})},
        annotations={AUTOUPDATE: "true"},
    )


def _role_ref(kind: str, name: str) -> rbac.RoleRef:
    return rbac.RoleRef(api_group=GROUP, kind=kind, name=name)


def _subjects(texts: Iterable[str]) -> tuple[rbac.Subject, ...]:
    return tuple(map(_subject, texts))


def _subject(text: str) -> rbac.Subject:
    word, _, key = text.partition(" ")
    if word != "account":
        return rbac.Subject(kind=_SUBJECT_KINDS[word], api_group=GROUP, name=key)
    namespace, _, name = key.partition("/")
    return rbac.Subject(kind=_SUBJECT_KINDS[word], name=name, namespace=namespace)


def parse_rules(texts: Iterable[str]) -> tuple[rbac.PolicyRule, ...]:
    return tuple(map(_rule, texts))


@cache
def _rule(text: str) -> rbac.PolicyRule:
    verbs, _, rest = text.partition(" on ")
    if not rest:
        verbs, _, urls = text.partition(" at ")
        return rbac.PolicyRule(verbs=_words(verbs), non_resource_urls=_words(urls))
    targets, _, names = rest.partition(" named ")
    groups: set[str] = set()
    found: set[str] = set()
    for target in targets.split():
        resource, slash, subresource = target.partition("/")
        plural, _, group = resource.partition(".")
        groups |= set(group.split(","))
        found.add(f"{plural}{slash}{subresource}")
    return rbac.PolicyRule(
        verbs=_words(verbs),
        api_groups=tuple(sorted("" if group == "core" else group for group in groups)),
        resources=tuple(sorted(found)),
        resource_names=_words(names),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(sorted(text.split()))
