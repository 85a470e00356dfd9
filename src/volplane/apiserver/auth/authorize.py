"""May they: a list of authorizers, of which the first that says yes decides.

`system:masters` may do everything; the fixed roles below are what the system's own users need; reading
health and version is open to all. Role-based rules from the API join as one more function in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from volplane.api.errors import Forbidden
from volplane.api.kinds import Kind
from volplane.apiserver.auth.users import AUTHENTICATED, MASTERS
from volplane.apiserver.strategy import User


class Act(Struct, frozen=True):
    """What somebody wants to do: a verb on a resource, or on a bare path."""

    verb: str
    kind: Kind | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    path: str = ""

    @property
    def resource(self) -> str:
        assert self.kind is not None
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


Authorizer = Callable[[User, Act], bool]


def masters(user: User, act: Act) -> bool:
    return MASTERS in user.groups


_OPEN = ("/healthz", "/livez", "/readyz", "/version")
_DISCOVERY = ("/api", "/apis", "/openapi", "/.well-known", "/openid")
_SELF_REVIEWS = frozenset({"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"})


def public(user: User, act: Act) -> bool:
    """Health and version for everybody; discovery and questions about oneself for everybody known."""
    if act.kind is None:
        open_to_user = (*_OPEN, *_DISCOVERY) if AUTHENTICATED in user.groups else _OPEN
        return act.verb == "get" and any(_under(act.path, path) for path in open_to_user)
    return act.verb == "create" and act.kind.plural in _SELF_REVIEWS and AUTHENTICATED in user.groups


def _under(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


class Rule(Struct, frozen=True):
    verbs: frozenset[str]  # "*" is any
    resources: frozenset[str]  # plural[.group] and plural[.group]/sub; "*" is any


class Roles:
    """Fixed rules by group, or by the name of a user."""

    def __init__(self, rules: Mapping[str, Sequence[Rule]]) -> None:
        self._rules = rules

    def __call__(self, user: User, act: Act) -> bool:
        if act.kind is None:
            return False
        below = f"/{act.subresource}" if act.subresource else ""
        resource = f"{act.kind.resource}{below}"
        return any(
            (act.verb in rule.verbs or "*" in rule.verbs)
            and (resource in rule.resources or "*" in rule.resources)
            for subject in (user.name, *user.groups)
            for rule in self._rules.get(subject, ())
        )


def allowed(authorizers: Sequence[Authorizer], user: User, act: Act) -> bool:
    return any(authorizer(user, act) for authorizer in authorizers)


def may(authorizers: Sequence[Authorizer], user: User, act: Act) -> None:
    """Raises Forbidden unless one of them says yes."""
    if allowed(authorizers, user, act):
        return
    if act.kind is None:
        raise Forbidden(f'forbidden: User "{user.name}" cannot {act.verb} path "{act.path}"')
    where = f'in the namespace "{act.namespace}"' if act.namespace else "at the cluster scope"
    why = (
        f'User "{user.name}" cannot {act.verb} resource "{act.resource}" '
        f'in API group "{act.kind.group}" {where}'
    )
    raise Forbidden.to(act.kind, act.name, why)
