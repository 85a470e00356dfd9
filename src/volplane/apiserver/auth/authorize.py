"""May they: authorizers in a row, of which the first that says yes decides.

Nobody says no: what no authorizer allows is refused, with what each of them had to say about it. The order is
upstream's: `system:masters` may do everything, then nodes by what runs on them, then roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from volplane.api.errors import Forbidden
from volplane.api.rbac import PolicyRule
from volplane.apiserver.auth.users import MASTERS
from volplane.apiserver.strategy import User


class Act(Struct, frozen=True):
    """What somebody wants to do: a verb on a resource, or on a bare path."""

    verb: str
    group: str = ""
    plural: str = ""  # "": a path that is no resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    path: str = ""
    fields: str = ""  # the field selector, as sent

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


class Verdict(NamedTuple):
    allowed: bool
    reason: str = ""


ALLOWED = Verdict(True)
NO_OPINION = Verdict(False)


class Known(NamedTuple):
    """The rules that an authorizer can tell in advance."""

    rules: Sequence[PolicyRule] = ()
    incomplete: bool = False
    errors: Sequence[str] = ()


class Authorizer(Protocol):
    def judge(self, user: User, act: Act) -> Verdict: ...

    def known(self, user: User, namespace: str) -> Known: ...


class Masters:
    def judge(self, user: User, act: Act) -> Verdict:
        return ALLOWED if MASTERS in user.groups else NO_OPINION

    def known(self, user: User, namespace: str) -> Known:
        return Known()


class Authority:
    """All authorizers, asked as one."""

    def __init__(self, authorizers: Sequence[Authorizer]) -> None:
        self._authorizers = tuple(authorizers)

    def judge(self, user: User, act: Act) -> Verdict:
        reasons = []
        for authorizer in self._authorizers:
            verdict = authorizer.judge(user, act)
            if verdict.allowed:
                return verdict
            if verdict.reason:
                reasons.append(verdict.reason)
        return Verdict(False, "\n".join(reasons)) if reasons else NO_OPINION

    def allows(self, user: User, act: Act) -> bool:
        return self.judge(user, act).allowed

    def require(self, user: User, act: Act) -> Verdict:
        """Raises Forbidden unless somebody says yes."""
        verdict = self.judge(user, act)
        if verdict.allowed:
            return verdict
        raise refusal(user, act, verdict.reason)

    def known(self, user: User, namespace: str) -> Known:
        told = [authorizer.known(user, namespace) for authorizer in self._authorizers]
        return Known(
            [rule for known in told for rule in known.rules],
            any(known.incomplete for known in told),
            [error for known in told for error in known.errors],
        )


def refusal(user: User, act: Act, reason: str) -> Forbidden:
    why = _harmless(_denied(user, act))
    if reason:
        why = f"{why}: {reason}"
    if not act.plural:
        return Forbidden(f"forbidden: {why}")
    resource = f"{act.plural}.{act.group}" if act.group else act.plural
    subject = f'{resource} "{act.name}"' if act.name else resource
    about = (("name", act.name), ("group", act.group), ("kind", act.plural))
    return Forbidden(f"{subject} is forbidden: {why}", details={key: value for key, value in about if value})


def _denied(user: User, act: Act) -> str:
    if not act.plural:
        return f'User "{user.name}" cannot {act.verb} path "{act.path}"'
    where = f'in the namespace "{act.namespace}"' if act.namespace else "at the cluster scope"
    return (
        f'User "{user.name}" cannot {act.verb} resource "{act.resource}" in API group "{act.group}" {where}'
    )


def _harmless(text: str) -> str:
    """A browser that sniffs must not find HTML in what we repeat."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
