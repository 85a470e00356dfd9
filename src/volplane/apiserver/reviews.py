"""Reviews: questions about users and permissions that are posted like objects and answered, never stored.

They go through authentication and authorization like any request, then ask the same functions on somebody's
behalf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import structs

from volplane.api import codec
from volplane.api.authentication import (
    SelfSubjectReview,
    SelfSubjectReviewStatus,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from volplane.api.authorization import (
    LocalSubjectAccessReview,
    NonResourceAttributes,
    NonResourceRule,
    ResourceAttributes,
    ResourceRule,
    SelfSubjectAccessReview,
    SelfSubjectRulesReview,
    SubjectAccessReview,
    SubjectAccessReviewStatus,
    SubjectRulesReviewStatus,
)
from volplane.api.errors import BadRequest, Invalid, required
from volplane.apiserver import answers, decode, options
from volplane.apiserver.auth.authenticate import Authenticator
from volplane.apiserver.auth.authorize import Act, Authorizer, allowed
from volplane.apiserver.auth.issuer import ISSUER
from volplane.apiserver.backend import Backend
from volplane.apiserver.negotiation import negotiate
from volplane.apiserver.strategy import Call, User
from volplane.web import Request, Response


class Asked(Protocol):
    """What a review needs of the server."""

    backend: Backend
    authenticate: Authenticator
    authorizers: Sequence[Authorizer]


Review = Callable[[Asked, Call, Any], Any]  # the answer becomes the object's status


async def serve(review: Review, server: Asked, call: Call, request: Request) -> Response:
    validation = options.field_validation(request.query, "create")
    content_type = request.headers.get("content-type")
    obj, warnings = decode.decode_body(call.kind, request.body, content_type, validation)
    call.warnings.extend(warnings)
    answered = structs.replace(obj, status=review(server, call, obj))
    return answers.body(negotiate(request.headers.get("accept")), 201, codec.encode(answered))


def _who_am_i(server: Asked, call: Call, review: SelfSubjectReview) -> SelfSubjectReviewStatus:
    return SelfSubjectReviewStatus(user_info=_info(call.user))


def _info(user: User) -> UserInfo:
    return UserInfo(username=user.name, uid=user.uid, groups=user.groups, extra=user.extra)


def _token(server: Asked, call: Call, review: TokenReview) -> TokenReviewStatus:
    if not review.spec.token:
        raise BadRequest("token is required for TokenReview in authentication")
    if review.spec.audiences and ISSUER not in review.spec.audiences:
        return TokenReviewStatus(error="the token is not for these audiences")
    user = server.authenticate.by_token(review.spec.token)
    if user is None:
        return TokenReviewStatus(error="the token is not known")
    return TokenReviewStatus(authenticated=True, user=_info(user), audiences=(ISSUER,))


def _self_access(server: Asked, call: Call, review: SelfSubjectAccessReview) -> SubjectAccessReviewStatus:
    spec = review.spec
    return _access(server, call, call.user, spec.resource_attributes, spec.non_resource_attributes)


def _access_of(
    server: Asked, call: Call, review: SubjectAccessReview | LocalSubjectAccessReview
) -> SubjectAccessReviewStatus:
    spec = review.spec
    if not spec.user and not spec.groups:
        raise Invalid.of(
            call.kind, "", [required("spec.user", "at least one of user or group must be specified")]
        )
    user = User(spec.user, spec.groups, spec.uid, spec.extra)
    if call.namespace and spec.resource_attributes and spec.resource_attributes.namespace != call.namespace:
        raise BadRequest(f"spec.resourceAttributes.namespace must match namespace: {call.namespace}")
    return _access(server, call, user, spec.resource_attributes, spec.non_resource_attributes)


def _access(
    server: Asked,
    call: Call,
    user: User,
    resource: ResourceAttributes | None,
    path: NonResourceAttributes | None,
) -> SubjectAccessReviewStatus:
    if (resource is None) == (path is None):
        told = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise Invalid.of(call.kind, "", [required("spec.resourceAttributes", told)])
    act = _resource_act(server, resource) if resource else Act(path.verb, path=path.path) if path else Act("")
    return SubjectAccessReviewStatus(allowed=allowed(server.authorizers, user, act))


def _resource_act(server: Asked, about: ResourceAttributes) -> Act:
    kinds = server.backend.registry.kinds()
    kind = next((k for k in kinds if k.group == about.group and k.plural == about.resource), None)
    unknown = "" if kind else f"/apis/{about.group}/{about.resource}"
    return Act(about.verb, kind, about.namespace, about.name, about.subresource, path=unknown)


def _rules(server: Asked, call: Call, review: SelfSubjectRulesReview) -> SubjectRulesReviewStatus:
    """All, or what is public: finer rules come with the roles of the API."""
    everything = allowed(server.authorizers, call.user, Act("*", path="/*"))
    if everything:
        resources = (ResourceRule(verbs=("*",), api_groups=("*",), resources=("*",)),)
        paths = (NonResourceRule(verbs=("*",), non_resource_urls=("*",)),)
        return SubjectRulesReviewStatus(resource_rules=resources, non_resource_rules=paths)
    health = ("/healthz", "/livez", "/readyz", "/version")
    open_paths = (NonResourceRule(verbs=("get",), non_resource_urls=health),)
    return SubjectRulesReviewStatus(non_resource_rules=open_paths, incomplete=True)


REVIEWS: Mapping[str, Review] = {
    "selfsubjectreviews.authentication.k8s.io": _who_am_i,
    "tokenreviews.authentication.k8s.io": _token,
    "selfsubjectaccessreviews.authorization.k8s.io": _self_access,
    "subjectaccessreviews.authorization.k8s.io": _access_of,
    "localsubjectaccessreviews.authorization.k8s.io": _access_of,
    "selfsubjectrulesreviews.authorization.k8s.io": _rules,
}
