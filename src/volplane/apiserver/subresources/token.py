"""serviceaccounts/token: issues a token for a service account, optionally bound to a pod, secret or node."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from msgspec import structs

from volplane.api.authentication import BoundObjectReference, TokenRequest, TokenRequestStatus
from volplane.api.core import Node, Pod, Secret, ServiceAccount
from volplane.api.errors import BadRequest, Conflict, Invalid, NotFound, invalid
from volplane.api.meta import ObjectMeta, Resource
from volplane.apiserver.auth.issuer import ISSUER
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.base import clock

DEFAULT_LIFE = 3600
SHORTEST, LONGEST = 600, 1 << 32
GROUP = "authentication.k8s.io"
POD_LIFE = (
    3607  # what admission writes into pods; old clients may not reload the token, so it gets EXTENDED_LIFE
)
EXTENDED_LIFE = 365 * 24 * 3600
_BOUND: dict[str, type[Resource]] = {"Pod": Pod, "Secret": Secret, "Node": Node}


async def request_token(
    backend: Backend, entry: ServedResource, call: ApiCall, request: TokenRequest
) -> TokenRequest:
    _check_names(call, request.metadata)
    account = await backend.reader.get(ServiceAccount, call.name, call.namespace)
    if account is None:
        raise NotFound.of(entry.kind, call.name)
    _check_uid(call.name, request.metadata.uid, account.uid)
    life = DEFAULT_LIFE if request.spec.expiration_seconds is None else request.spec.expiration_seconds
    _check_life(life)
    audiences = request.spec.audiences or (ISSUER,)
    bound = await _bound_object_claims(backend, call, account, request.spec.bound_object_ref)
    extended = life == POD_LIFE and "pod" in bound and set(audiences) <= {ISSUER}
    claims = _claims(call, account, bound, audiences, EXTENDED_LIFE if extended else life)
    if extended:
        claims["kubernetes.io"]["warnafter"] = claims["iat"] + life
    status = TokenRequestStatus(
        token=backend.issuer.sign(claims),
        expiration_timestamp=clock.stamp(call.now + timedelta(seconds=life)),
    )
    meta = ObjectMeta(
        name=account.name,
        namespace=account.namespace,
        uid=account.uid,
        creation_timestamp=clock.stamp(call.now),
    )
    spec = structs.replace(request.spec, audiences=audiences, expiration_seconds=life)
    return TokenRequest(metadata=meta, spec=spec, status=status)


def _check_names(call: ApiCall, meta: ObjectMeta) -> None:
    for field, given, wanted in (
        ("name", meta.name, call.name),
        ("namespace", meta.namespace, call.namespace),
    ):
        if given and given != wanted:
            cause = invalid(
                f"metadata.{field}", given, f"must match the service account {field} if specified"
            )
            raise Invalid.of("TokenRequest", call.name, [cause], group=GROUP)


def _check_uid(name: str, given: str, uid: str) -> None:
    if given and given != uid:
        why = f"the UID in the token request ({given}) does not match the UID of the service account ({uid})"
        raise _conflict(f"TokenRequest.{GROUP}", name, why, group=GROUP, kind="TokenRequest")


def _conflict(resource: str, name: str, why: str, *, group: str = "", kind: str = "") -> Conflict:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    about = (("name", name), ("group", group), ("kind", kind or resource))
    return Conflict(message, details={key: value for key, value in about if value})


def _check_life(life: int) -> None:
    field = "spec.expirationSeconds"
    if life < SHORTEST:
        cause = invalid(field, life, "may not specify a duration less than 10 minutes")
    elif life > LONGEST:
        cause = invalid(field, life, "may not specify a duration larger than 2^32 seconds")
    else:
        return
    raise Invalid.of("TokenRequest", "", [cause], group=GROUP)


async def _bound_object_claims(
    backend: Backend, call: ApiCall, account: ServiceAccount, reference: BoundObjectReference | None
) -> dict[str, Any]:
    """Return the claims for the bound object, and for a pod also its node."""
    if reference is None:
        return {}
    type = _BOUND.get(reference.kind)
    if type is None or reference.api_version != "v1":
        group, _, version = reference.api_version.rpartition("/")
        raise BadRequest(f"cannot bind token to object of type {group}/{version}, Kind={reference.kind}")
    namespace = "" if type is Node else call.namespace
    found = await backend.reader.get(type, reference.name, namespace)
    kind = backend.registry.of(type).kind
    if found is None:
        raise NotFound.of(kind, reference.name)
    bound: dict[str, Any] = {reference.kind.lower(): _reference(found)}
    if isinstance(found, Pod):
        bound |= await _node_of_pod(backend, account, found)
    if reference.uid and reference.uid != found.uid:
        why = (
            f"the UID in the bound object reference ({reference.uid}) does not match the UID in record. "
            "The object might have been deleted and then recreated"
        )
        raise _conflict(reference.kind, reference.name, why)
    return bound


async def _node_of_pod(backend: Backend, account: ServiceAccount, pod: Pod) -> dict[str, Any]:
    if (pod.spec.service_account_name or "default") != account.name:
        raise BadRequest(
            f'cannot bind token for serviceaccount "{account.name}" to pod running with different '
            "serviceaccount name."
        )
    if not pod.spec.node_name:
        return {}
    node = await backend.reader.get(Node, pod.spec.node_name)
    return {"node": _reference(node) if node is not None else {"name": pod.spec.node_name}}


def _reference(obj: Resource) -> dict[str, str]:
    return {"name": obj.name, "uid": obj.uid}


def _claims(
    call: ApiCall, account: ServiceAccount, bound: dict[str, Any], audiences: tuple[str, ...], life: int
) -> dict[str, Any]:
    now = int(call.now.timestamp())
    inside = {"namespace": account.namespace, "serviceaccount": _reference(account), **bound}
    return {
        "iss": ISSUER,
        "sub": f"system:serviceaccount:{account.namespace}:{account.name}",
        "aud": list(audiences),
        "iat": now,
        "nbf": now,
        "exp": now + life,
        "jti": str(uuid.uuid4()),
        "kubernetes.io": inside,
    }
