"""RBAC roles and bindings: non-empty rules, known kinds of subjects, an immutable roleRef."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from volplane.api import name_validation
from volplane.api.errors import Causes, invalid, not_supported, required_value
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

GROUP = "rbac.authorization.k8s.io"
SUBJECTS = ("ServiceAccount", "User", "Group")

B = TypeVar("B", RoleBinding, ClusterRoleBinding)


class RoleStrategy(Strategy[Role]):
    def validate_create(self, call: ApiCall, obj: Role) -> Causes:
        return _rules(obj.rules, namespaced=True)


class ClusterRoleStrategy(Strategy[ClusterRole]):
    def validate_create(self, call: ApiCall, obj: ClusterRole) -> Causes:
        yield from _rules(obj.rules, namespaced=False)
        yield from _aggregation(obj)


class RoleBindingStrategy(Strategy[RoleBinding]):
    def validate_create(self, call: ApiCall, obj: RoleBinding) -> Causes:
        yield from _reference(obj, ("Role", "ClusterRole"))
        yield from _subjects(obj.subjects, namespaced=True)

    def validate_update(self, call: ApiCall, old: RoleBinding, new: RoleBinding) -> Causes:
        yield from self.validate_create(call, new)
        yield from _same_reference(old, new)


class ClusterRoleBindingStrategy(Strategy[ClusterRoleBinding]):
    def validate_create(self, call: ApiCall, obj: ClusterRoleBinding) -> Causes:
        yield from _reference(obj, ("ClusterRole",))
        yield from _subjects(obj.subjects, namespaced=False)

    def validate_update(self, call: ApiCall, old: ClusterRoleBinding, new: ClusterRoleBinding) -> Causes:
        yield from self.validate_create(call, new)
        yield from _same_reference(old, new)


# Validation


def _rules(rules: Sequence[PolicyRule], *, namespaced: bool) -> Causes:
    return [
        cause for at, rule in enumerate(rules) for cause in _rule(f"rules[{at}]", rule, namespaced=namespaced)
    ]


def _rule(path: str, rule: PolicyRule, *, namespaced: bool) -> Causes:
    if not rule.verbs:
        yield required_value(f"{path}.verbs", "verbs must contain at least one value")
    if rule.non_resource_urls:
        here, urls = f"{path}.nonResourceURLs", list(rule.non_resource_urls)
        if namespaced:
            yield invalid(here, urls, "namespaced rules cannot apply to non-resource URLs")
        if rule.api_groups or rule.resources or rule.resource_names:
            yield invalid(here, urls, "rules cannot apply to both regular resources and non-resource URLs")
        return
    if not rule.api_groups:
        yield required_value(f"{path}.apiGroups", "resource rules must supply at least one api group")
    if not rule.resources:
        yield required_value(f"{path}.resources", "resource rules must supply at least one resource")


def _aggregation(role: ClusterRole) -> Causes:
    if role.aggregation_rule is None:
        return
    path, selectors = "aggregationRule.clusterRoleSelectors", role.aggregation_rule.cluster_role_selectors
    if not selectors:
        yield required_value(path, "at least one clusterRoleSelector required if aggregationRule is non-nil")
        return
    yield from [
        cause
        for at, selector in enumerate(selectors)
        for cause in checks.label_selector(f"{path}[{at}]", selector)
    ]


def _reference(binding: RoleBinding | ClusterRoleBinding, kinds: Sequence[str]) -> Causes:
    reference = binding.role_ref
    if reference.api_group != GROUP:
        yield not_supported("roleRef.apiGroup", reference.api_group, (GROUP,))
    if reference.kind not in kinds:
        yield not_supported("roleRef.kind", reference.kind, kinds)
    yield from checks.present("roleRef.name", reference.name)
    yield from [
        invalid("roleRef.name", reference.name, text)
        for text in name_validation.path_segment_problems(reference.name, False)
    ]


def _same_reference(old: B, new: B) -> Causes:
    if old.role_ref == new.role_ref:
        return
    yield invalid("roleRef", checks.to_plain(new.role_ref), "cannot change roleRef")


def _subjects(subjects: Sequence[Subject], *, namespaced: bool) -> Causes:
    return [
        cause
        for at, subject in enumerate(subjects)
        for cause in _subject(f"subjects[{at}]", subject, namespaced=namespaced)
    ]


def _subject(path: str, subject: Subject, *, namespaced: bool) -> Causes:
    yield from checks.present(f"{path}.name", subject.name)
    if subject.kind not in SUBJECTS:
        yield not_supported(f"{path}.kind", subject.kind, SUBJECTS)
        return
    if subject.kind != "ServiceAccount":
        if subject.api_group != GROUP:
            yield not_supported(f"{path}.apiGroup", subject.api_group, (GROUP,))
        return
    if subject.name:
        yield from checks.subdomain(f"{path}.name", subject.name)
    if subject.api_group:
        yield not_supported(f"{path}.apiGroup", subject.api_group, ("",))
    if not namespaced and not subject.namespace:
        yield required_value(f"{path}.namespace")
