"""All roles and bindings, found by subject, and each user's rules worked out once.

What a user may do in a namespace is a `View`, made when it is first asked for and forgotten when any role or
binding changes; inside it every answer is remembered too. So the usual question costs two look-ups.
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
from volplane.apiserver.auth.authorize import NO_OPINION, Act, Known, Verdict
from volplane.apiserver.auth.rbac.rules import allows_path, allows_resource
from volplane.apiserver.auth.texts import aggregate
from volplane.apiserver.auth.users import ACCOUNT_PREFIX
from volplane.apiserver.strategy import User

REMEMBERED = 4096  # views, and answers in each: beyond that all are worked out anew

Binding = RoleBinding | ClusterRoleBinding
Who = tuple[str, str]  # "User" or "Group", and the name


class Grant(NamedTuple):
    rule: PolicyRule
    verdict: Verdict  # the answer when this rule is the one that allows


class View:
    """The rules of one user in one namespace."""

    def __init__(self, grants: list[Grant], errors: list[str]) -> None:
        self.grants = grants
        self.errors = errors
        told = f"RBAC: {aggregate(errors)}" if errors else ""
        self._no = Verdict(False, told) if told else NO_OPINION
        self._answers: dict[tuple[str, ...], tuple[Verdict, list[Grant]]] = {}

    def judge(self, act: Act) -> Verdict:
        plural = act.plural
        key = (act.verb, act.group, plural, act.subresource) if plural else (act.verb, act.path)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._remember(key, self._resource(act) if plural else self._path(act))
        verdict, named = answer
        if named and not verdict.allowed:
            name = act.name
            for grant in named:
                if name in grant.rule.resource_names:
                    return grant.verdict
        return verdict

    def _resource(self, act: Act) -> tuple[Verdict, list[Grant]]:
        """The answer for any name, and the rules that may still allow some."""
        fitting = [
            grant
            for grant in self.grants
            if allows_resource(grant.rule, act.verb, act.group, act.plural, act.subresource)
        ]
        for grant in fitting:
            if not grant.rule.resource_names:
                return grant.verdict, []
        return self._no, fitting

    def _path(self, act: Act) -> tuple[Verdict, list[Grant]]:
        for grant in self.grants:
            if allows_path(grant.rule, act.verb, act.path):
                return grant.verdict, []
        return self._no, []

    def _remember(
        self, key: tuple[str, ...], answer: tuple[Verdict, list[Grant]]
    ) -> tuple[Verdict, list[Grant]]:
        if len(self._answers) >= REMEMBERED:
            self._answers.clear()
        self._answers[key] = answer
        return answer


class Rbac:
    """The authorizer of roles; `put` and `drop` keep it as the store is."""

    def __init__(self) -> None:
        self.roles: dict[str, Role] = {}  # by namespace/name
        self.cluster_roles: dict[str, ClusterRole] = {}
        self._bindings: dict[str, dict[str, Binding]] = {}  # by namespace ("": everywhere), then by name
        self._by_subject: dict[str, dict[Who, set[str]]] = {}  # names of bindings, likewise
        self._views: dict[tuple[str, tuple[str, ...], str], View] = {}
        self.on_change: set[Callable[[], None]] = set()  # called after each change of a role or a binding

    # --- asking

    def judge(self, user: User, act: Act) -> Verdict:
        view = self._views.get((user.name, user.groups, act.namespace))
        if view is None:
            view = self.view(user, act.namespace)
        return view.judge(act)

    def known(self, user: User, namespace: str) -> Known:
        view = self.view(user, namespace)
        return Known([grant.rule for grant in view.grants], errors=view.errors)

    def view(self, user: User, namespace: str) -> View:
        key = (user.name, user.groups, namespace)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= REMEMBERED:
                self._views.clear()
            found = self._views[key] = self._worked_out(user, namespace)
        return found

    def rules_of(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """What a binding in this namespace gives; None when there is no such role."""
        role: Role | ClusterRole | None = (
            self.cluster_roles.get(reference.name)
            if reference.kind == "ClusterRole"
            else self.roles.get(f"{namespace}/{reference.name}")
        )
        return None if role is None else role.rules

    def _worked_out(self, user: User, namespace: str) -> View:
        grants: list[Grant] = []
        errors: list[str] = []
        for scope in ("", namespace) if namespace else ("",):
            for binding in self._of(user, scope):
                rules = self.rules_of(binding.role_ref, scope)
                if rules is None:
                    errors.append(_absent(binding.role_ref))
                    continue
                verdict = Verdict(True, f"RBAC: allowed by {_described(binding, user, scope)}")
                grants += [Grant(rule, verdict) for rule in rules]
        return View(grants, errors)

    def _of(self, user: User, scope: str) -> Iterator[Binding]:
        by_subject = self._by_subject.get(scope)
        if not by_subject:
            return
        whos = [("User", user.name), *(("Group", group) for group in user.groups)]
        names = {name for who in whos for name in by_subject.get(who, ())}
        bindings = self._bindings[scope]
        yield from (bindings[name] for name in sorted(names))

    # --- being fed

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
        for who in _whos(binding.subjects, scope):
            by_subject.setdefault(who, set()).add(name)

    def _unbind(self, key: str) -> None:
        scope, _, name = key.rpartition("/")
        old = self._bindings.get(scope, {}).pop(name, None)
        if old is None:
            return
        by_subject = self._by_subject[scope]
        for who in set(_whos(old.subjects, scope)):
            by_subject[who].discard(name)
            if not by_subject[who]:
                del by_subject[who]


def _whos(subjects: Iterable[Subject], scope: str) -> Iterator[Who]:
    return (who for who in (_who(subject, scope) for subject in subjects) if who is not None)


def _who(subject: Subject, scope: str) -> Who | None:
    """A service account is the user of that name; in a RoleBinding its namespace may be left out."""
    if subject.kind != "ServiceAccount":
        return (subject.kind, subject.name) if subject.kind in ("User", "Group") else None
    namespace = subject.namespace or scope
    return ("User", f"{ACCOUNT_PREFIX}{namespace}:{subject.name}") if namespace else None


def _described(binding: Binding, user: User, scope: str) -> str:
    reference = binding.role_ref
    kind, name = ("RoleBinding", f"{binding.name}/{scope}") if scope else ("ClusterRoleBinding", binding.name)
    subject = next(s for s in binding.subjects if _applies(_who(s, scope), user))
    to = f"{subject.name}/{subject.namespace or scope}" if subject.kind == "ServiceAccount" else subject.name
    return f'{kind} "{name}" of {reference.kind} "{reference.name}" to {subject.kind} "{to}"'


def _applies(who: Who | None, user: User) -> bool:
    match who:
        case ("User", name):
            return name == user.name
        case ("Group", name):
            return name in user.groups
    return False


def _absent(reference: RoleRef) -> str:
    return f'{reference.kind.lower()}.rbac.authorization.k8s.io "{reference.name}" not found'
