"""Impersonation: the Impersonate-* headers make a request run as another user.

The headers name a user, groups, a uid and extra values. Each is authorized separately, with the verb
`impersonate` on a resource of that kind. The rest of the request uses only the other user's permissions.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from volplane.api import names
from volplane.api.errors import BadRequest
from volplane.apiserver.auth.authorize import Attributes, AuthorizerChain
from volplane.apiserver.auth.well_known_users import (
    ACCOUNT_PREFIX,
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    account_groups,
)
from volplane.apiserver.strategy import RequestUser
from volplane.web import Headers

VERB = "impersonate"
GROUP = "authentication.k8s.io"
_PREFIX, _EXTRA = "impersonate-", "impersonate-extra-"


class _ImpersonatedIdentity(NamedTuple):
    """One requested identity. Its text form appears in error messages."""

    kind: str
    plural: str
    name: str
    namespace: str = ""
    group: str = ""
    key: str = ""

    def attributes(self) -> Attributes:
        return Attributes(VERB, self.group, self.plural, self.namespace, self.name, self.key)

    def __str__(self) -> str:
        version = f"{GROUP}/v1" if self.group else ""
        return f"{{{self.kind} {self.namespace} {self.name}  {version}  {self.key}}}"


def resolve_impersonation(authorizer: AuthorizerChain, user: RequestUser, headers: Headers) -> RequestUser:
    """Return the impersonated user, or `user` if no header asks for one. Raise Forbidden or BadRequest."""
    if not any(name.startswith(_PREFIX) for name in headers.names()):
        return user
    identities = _requested_identities(headers)
    if not identities:
        return user
    if identities[0].plural not in ("users", "serviceaccounts"):
        text = " ".join(str(identity) for identity in identities)
        raise BadRequest(f"requested [{text}] without impersonating a user")
    for identity in identities:
        authorizer.require(user, identity.attributes())
    return _user(identities)


def _requested_identities(headers: Headers) -> list[_ImpersonatedIdentity]:
    found: list[_ImpersonatedIdentity] = []
    if name := headers.get("impersonate-user"):
        found.append(_account(name) or _ImpersonatedIdentity("User", "users", name))
    found += [_ImpersonatedIdentity("Group", "groups", group) for group in headers.all("impersonate-group")]
    for header in headers.names():
        if header.startswith(_EXTRA):
            key = unquote(header.removeprefix(_EXTRA))
            found += [
                _ImpersonatedIdentity("UserExtra", "userextras", value, group=GROUP, key=key)
                for value in headers.all(header)
            ]
    if uid := headers.get("impersonate-uid"):
        found.append(_ImpersonatedIdentity("UID", "uids", uid, group=GROUP))
    return found


def _account(name: str) -> _ImpersonatedIdentity | None:
    space, colon, account = name.removeprefix(ACCOUNT_PREFIX).partition(":")
    if not name.startswith(ACCOUNT_PREFIX) or not colon:
        return None
    if not names.is_label(space) or not names.is_subdomain(account):
        return None
    return _ImpersonatedIdentity("ServiceAccount", "serviceaccounts", account, space)


def _user(identities: list[_ImpersonatedIdentity]) -> RequestUser:
    first = identities[0]
    name = f"{ACCOUNT_PREFIX}{first.namespace}:{first.name}" if first.namespace else first.name
    groups = [identity.name for identity in identities if identity.plural == "groups"]
    if not groups and first.namespace:
        groups = list(account_groups(first.namespace))
    extra: dict[str, tuple[str, ...]] = {}
    for identity in identities:
        if identity.plural == "userextras":
            extra[identity.key] = (*extra.get(identity.key, ()), identity.name)
    uid = next((identity.name for identity in identities if identity.plural == "uids"), "")
    return RequestUser(name, _with_default_group(name, groups), uid, extra)


def _with_default_group(name: str, groups: list[str]) -> tuple[str, ...]:
    """Add system:authenticated, or system:unauthenticated for the anonymous user."""
    if name == ANONYMOUS.name:
        return tuple(groups) if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    if AUTHENTICATED in groups or UNAUTHENTICATED in groups:
        return tuple(groups)
    return (*groups, AUTHENTICATED)
