"""Authorization: a chain of authorizers; the first one that allows the request decides.

No authorizer denies. A request that none allows is refused with the reasons of all. The order is upstream's:
`system:masters`, then the node authorizer, then RBAC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from volplane.api.errors import Forbidden
from volplane.api.rbac import PolicyRule
from volplane.apiserver.auth.well_known_users import MASTERS
from volplane.apiserver.strategy import RequestUser


class Attributes(Struct, frozen=True):
    """What a request asks to do: a verb on a resource, or on a non-resource path."""

    verb: str
    group: str = ""
    plural: str = ""  # "": a non-resource path
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    path: str = ""
    fields: str = ""  # the field selector, as sent

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


class Decision(NamedTuple):
    allowed: bool
    reason: str = ""


ALLOWED = Decision(True)
NO_OPINION = Decision(False)


class ResolvedRules(NamedTuple):
    """The rules that an authorizer can list for a user, as SelfSubjectRulesReview needs them."""

    rules: Sequence[PolicyRule] = ()
    incomplete: bool = False
    errors: Sequence[str] = ()


class Authorizer(Protocol):
    def authorize(self, user: RequestUser, attrs: Attributes) -> Decision: ...

    def rules_for(self, user: RequestUser, namespace: str) -> ResolvedRules: ...


class SystemMasters:
    def authorize(self, user: RequestUser, attrs: Attributes) -> Decision:
        return ALLOWED if MASTERS in user.groups else NO_OPINION

    def rules_for(self, user: RequestUser, namespace: str) -> ResolvedRules:
        return ResolvedRules()


class AuthorizerChain:
    """All authorizers in order."""

    def __init__(self, authorizers: Sequence[Authorizer]) -> None:
        self._authorizers = tuple(authorizers)

    def authorize(self, user: RequestUser, attrs: Attributes) -> Decision:
        reasons = []
        for authorizer in self._authorizers:
            decision = authorizer.authorize(user, attrs)
            if decision.allowed:
                return decision
            if decision.reason:
                reasons.append(decision.reason)
        return Decision(False, "\n".join(reasons)) if reasons else NO_OPINION

    def allows(self, user: RequestUser, attrs: Attributes) -> bool:
        return self.authorize(user, attrs).allowed

    def require(self, user: RequestUser, attrs: Attributes) -> Decision:
        """Raise Forbidden unless an authorizer allows it."""
        decision = self.authorize(user, attrs)
        if decision.allowed:
            return decision
        raise forbidden_error(user, attrs, decision.reason)

    def rules_for(self, user: RequestUser, namespace: str) -> ResolvedRules:
        resolved = [authorizer.rules_for(user, namespace) for authorizer in self._authorizers]
        return ResolvedRules(
            [rule for known in resolved for rule in known.rules],
            any(known.incomplete for known in resolved),
            [error for known in resolved for error in known.errors],
        )


def forbidden_error(user: RequestUser, attrs: Attributes, reason: str) -> Forbidden:
    why = _escape_html(_describe_denial(user, attrs))
    if reason:
        why = f"{why}: {reason}"
    if not attrs.plural:
        return Forbidden(f"forbidden: {why}")
    resource = f"{attrs.plural}.{attrs.group}" if attrs.group else attrs.plural
    subject = f'{resource} "{attrs.name}"' if attrs.name else resource
    about = (("name", attrs.name), ("group", attrs.group), ("kind", attrs.plural))
    return Forbidden(f"{subject} is forbidden: {why}", details={key: value for key, value in about if value})


def _describe_denial(user: RequestUser, attrs: Attributes) -> str:
    if not attrs.plural:
        return f'User "{user.name}" cannot {attrs.verb} path "{attrs.path}"'
    where = f'in the namespace "{attrs.namespace}"' if attrs.namespace else "at the cluster scope"
    what = f'{attrs.verb} resource "{attrs.resource}" in API group "{attrs.group}"'
    return f'User "{user.name}" cannot {what} {where}'


def _escape_html(text: str) -> str:
    """Escape HTML: the message repeats user input, and browsers may guess the content type."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
