"""The RBAC authorizer: all roles and bindings, indexed by subject.

What a user may do in a namespace is a `UserRules`, resolved on first use and dropped when any role or binding
changes. It also caches each decision, so that a typical request costs two lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from volplane.api.rbac import (
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
    RoleRef,
    Subject,
)
from volplane.apiserver.auth.authorize import (
    NO_OPINION,
    Attributes,
    Decision,
    ResolvedRules,
)
from volplane.apiserver.auth.go_format import aggregate_errors
from volplane.apiserver.auth.rbac.rules import allows_path, allows_resource
from volplane.apiserver.auth.well_known_users import ACCOUNT_PREFIX
from volplane.apiserver.strategy import RequestUser

CACHED = 4096  # users, and decisions of each; the cache is cleared when it is full

Binding = RoleBinding | ClusterRoleBinding
SubjectKey = tuple[str, str]  # "User" or "Group", and the name


class Grant(NamedTuple):
    rule: PolicyRule
    decision: Decision  # if this rule allows the request


class UserRules:
    """The rules of one user in one namespace."""

    def __init__(self, grants: list[Grant], errors: list[str]) -> None:
        self.grants = grants
        self.errors = errors
        reason = f"RBAC: {aggregate_errors(errors)}" if errors else ""
        self._no = Decision(False, reason) if reason else NO_OPINION
        self._answers: dict[tuple[str, ...], tuple[Decision, list[Grant]]] = {}

    def authorize(self, attrs: Attributes) -> Decision:
        plural = attrs.plural
        key = (attrs.verb, attrs.group, plural, attrs.subresource) if plural else (attrs.verb, attrs.path)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._cache_answer(key, self._resource(attrs) if plural else self._path(attrs))
        decision, named = answer
        if named and not decision.allowed:
            name = attrs.name
            for grant in named:
                if name in grant.rule.resource_names:
                    return grant.decision
        return decision

    def _resource(self, attrs: Attributes) -> tuple[Decision, list[Grant]]:
        """Return the decision for any name, and the rules that allow only certain names."""
        fitting = [
            grant
            for grant in self.grants
            if allows_resource(grant.rule, attrs.verb, attrs.group, attrs.plural, attrs.subresource)
        ]
        for grant in fitting:
            if not grant.rule.resource_names:
                return grant.decision, []
        return self._no, fitting

    def _path(self, attrs: Attributes) -> tuple[Decision, list[Grant]]:
        for grant in self.grants:
            if allows_path(grant.rule, attrs.verb, attrs.path):
                return grant.decision, []
        return self._no, []

    def _cache_answer(
        self, key: tuple[str, ...], answer: tuple[Decision, list[Grant]]
    ) -> tuple[Decision, list[Grant]]:
        if len(self._answers) >= CACHED:
            self._answers.clear()
        self._answers[key] = answer
        return answer


class Rbac:
    """The RBAC authorizer; `put` and `drop` apply changes from the store."""

    def __init__(self) -> None:
        self.roles: dict[str, Role] = {}  # by namespace/name
        self.cluster_roles: dict[str, ClusterRole] = {}
        self._bindings: dict[str, dict[str, Binding]] = {}  # by namespace ("": everywhere), then by name
        self._by_subject: dict[str, dict[SubjectKey, set[str]]] = {}  # names of bindings, likewise
        self._views: dict[tuple[str, tuple[str, ...], str], UserRules] = {}
        self.on_change: set[Callable[[], None]] = set()  # called after each change of a role or a binding

    # --- queries

    def authorize(self, user: RequestUser, attrs: Attributes) -> Decision:
        view = self._views.get((user.name, user.groups, attrs.namespace))
        if view is None:
            view = self.user_rules(user, attrs.namespace)
        return view.authorize(attrs)

    def rules_for(self, user: RequestUser, namespace: str) -> ResolvedRules:
        view = self.user_rules(user, namespace)
        return ResolvedRules([grant.rule for grant in view.grants], errors=view.errors)

    def user_rules(self, user: RequestUser, namespace: str) -> UserRules:
        key = (user.name, user.groups, namespace)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= CACHED:
                self._views.clear()
            found = self._views[key] = self._resolve_rules(user, namespace)
        return found

    def rules_of(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """Return the rules that a binding in this namespace grants, or None if the role does not exist."""
        role: Role | ClusterRole | None = (
            self.cluster_roles.get(reference.name)
            if reference.kind == "ClusterRole"
            else self.roles.get(f"{namespace}/{reference.name}")
        )
        return None if role is None else role.rules

    def _resolve_rules(self, user: RequestUser, namespace: str) -> UserRules:
        grants: list[Grant] = []
        errors: list[str] = []
        for scope in ("", namespace) if namespace else ("",):
            for binding in self._bindings_of(user, scope):
                rules = self.rules_of(binding.role_ref, scope)
                if rules is None:
                    errors.append(_missing_role_message(binding.role_ref))
                    continue
                decision = Decision(True, f"RBAC: allowed by {_describe_binding(binding, user, scope)}")
                grants += [Grant(rule, decision) for rule in rules]
        return UserRules(grants, errors)

    def _bindings_of(self, user: RequestUser, scope: str) -> Iterator[Binding]:
        by_subject = self._by_subject.get(scope)
        if not by_subject:
            return
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        names = {name for subject in subjects for name in by_subject.get(subject, ())}
        bindings = self._bindings[scope]
        yield from (bindings[name] for name in sorted(names))

    # --- updates from the store

    def put(self, key: str, obj: Any) -> None:
        match obj:
            case ClusterRole():
                self.cluster_roles[key] = obj
            case Role():
                self.roles[key] = obj
            case RoleBinding() | ClusterRoleBinding():
                self._unbind(key)
                self._bind(key, obj)
        self._forget()

    def drop(self, type: type[Any], key: str) -> None:
        if type is ClusterRole:
            self.cluster_roles.pop(key, None)
        elif type is Role:
            self.roles.pop(key, None)
        else:
            self._unbind(key)
        self._forget()

    def _forget(self) -> None:
        self._views.clear()
        for tell in tuple(self.on_change):
            tell()

    def _bind(self, key: str, binding: Binding) -> None:
        scope, _, name = key.rpartition("/")
        self._bindings.setdefault(scope, {})[name] = binding
        by_subject = self._by_subject.setdefault(scope, {})
        for subject in _subject_keys(binding.subjects, scope):
            by_subject.setdefault(subject, set()).add(name)

    def _unbind(self, key: str) -> None:
        scope, _, name = key.rpartition("/")
        old = self._bindings.get(scope, {}).pop(name, None)
        if old is None:
            return
        by_subject = self._by_subject[scope]
        for subject in set(_subject_keys(old.subjects, scope)):
            by_subject[subject].discard(name)
            if not by_subject[subject]:
                del by_subject[subject]


def _subject_keys(subjects: Iterable[Subject], scope: str) -> Iterator[SubjectKey]:
    keys = (_subject_key(subject, scope) for subject in subjects)
    return (key for key in keys if key is not None)


def _subject_key(subject: Subject, scope: str) -> SubjectKey | None:
    """Return the user of a service account; a RoleBinding may omit its namespace."""
    if subject.kind != "ServiceAccount":
        return (subject.kind, subject.name) if subject.kind in ("User", "Group") else None
    namespace = subject.namespace or scope
    return ("User", f"{ACCOUNT_PREFIX}{namespace}:{subject.name}") if namespace else None


def _describe_binding(binding: Binding, user: RequestUser, scope: str) -> str:
    reference = binding.role_ref
    kind, name = ("RoleBinding", f"{binding.name}/{scope}") if scope else ("ClusterRoleBinding", binding.name)
    subject = next(s for s in binding.subjects if _applies(_subject_key(s, scope), user))
    to = f"{subject.name}/{subject.namespace or scope}" if subject.kind == "ServiceAccount" else subject.name
    return f'{kind} "{name}" of {reference.kind} "{reference.name}" to {subject.kind} "{to}"'


def _applies(subject: SubjectKey | None, user: RequestUser) -> bool:
    match subject:
        case ("User", name):
            return name == user.name
        case ("Group", name):
            return name in user.groups
    return False


def _missing_role_message(reference: RoleRef) -> str:
    return f'{reference.kind.lower()}.rbac.authorization.k8s.io "{reference.name}" not found'
