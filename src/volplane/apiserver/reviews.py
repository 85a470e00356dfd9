"""Reviews: SubjectAccessReview, TokenReview and similar kinds, which are answered and never stored.

They pass authentication and authorization like any request, then call the same functions for the reviewed
user. The response is the sent object with its status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import json, structs

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
    SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReview,
    SubjectAccessReview,
    SubjectAccessReviewStatus,
    SubjectRulesReviewStatus,
)
from volplane.api.errors import BadRequest, Cause, Invalid, invalid
from volplane.api.meta import ObjectMeta
from volplane.apiserver import decode, query_options, responses
from volplane.apiserver.auth import review_selectors
from volplane.apiserver.auth.authenticate import AUDIENCES, Authenticator
from volplane.apiserver.auth.authorize import Attributes, AuthorizerChain
from volplane.apiserver.auth.go_format import aggregate_errors
from volplane.apiserver.negotiation import negotiate
from volplane.apiserver.strategy import ApiCall, RequestUser
from volplane.base import clock
from volplane.web import Request, Response

Access = SubjectAccessReview | LocalSubjectAccessReview | SelfSubjectAccessReview


class ReviewServer(Protocol):
    """The part of the server that reviews need."""

    authenticate: Authenticator
    authorizer: AuthorizerChain


Review = Callable[[ReviewServer, ApiCall, Any], Any]  # returns the response object


async def serve(review: Review, server: ReviewServer, call: ApiCall, request: Request) -> Response:
    format = negotiate(request.headers.get("accept"))
    if format.transform:
        raise responses.not_convertible(format)
    validation = query_options.field_validation(request.query, "create")
    obj, warnings = await decode.decode_request(call.kind, request, validation)
    call.warnings.extend(warnings)
    data = codec.encode(review(server, call, obj))
    return await responses.object_response(format, 201, data)


def _who_am_i(server: ReviewServer, call: ApiCall, review: SelfSubjectReview) -> SelfSubjectReview:
    meta = ObjectMeta(creation_timestamp=clock.stamp(call.now))
    return SelfSubjectReview(metadata=meta, status=SelfSubjectReviewStatus(user_info=_info(call.user)))


def _info(user: RequestUser) -> UserInfo:
    return UserInfo(username=user.name, uid=user.uid, groups=user.groups, extra=user.extra)


def _token(server: ReviewServer, call: ApiCall, review: TokenReview) -> TokenReview:
    if not review.spec.token:
        raise BadRequest("token is required for TokenReview in authentication")
    return structs.replace(review, status=_token_status(server, review))


def _token_status(server: ReviewServer, review: TokenReview) -> TokenReviewStatus:
    checked = server.authenticate.check(review.spec.token, review.spec.audiences or AUDIENCES)
    if checked.user is None:
        return TokenReviewStatus(error=checked.error)
    return TokenReviewStatus(authenticated=True, user=_info(checked.user), audiences=checked.audiences)


# --- access reviews


def _access(server: ReviewServer, call: ApiCall, review: Access) -> Access:
    return review_access(server.authorizer, call, review)


def review_access(authorizer: AuthorizerChain, call: ApiCall, review: Access) -> Access:
    """Answer an access review; also used by the in-process transport."""
    causes = _attribute_causes(review)
    user, spec = call.user, review.spec
    if not isinstance(spec, SelfSubjectAccessReviewSpec):
        user = RequestUser(spec.user, spec.groups, spec.uid, spec.extra)
        if not spec.user and not spec.groups:
            causes.append(invalid("spec.user", spec.user, "at least one of user or group must be specified"))
    is_local = isinstance(review, LocalSubjectAccessReview)
    causes += _local_causes(review) if is_local else _metadata_causes(review.metadata)
    if causes:
        raise Invalid.of(call.kind, "", causes)
    if is_local and not call.namespace:
        raise BadRequest("namespace is required on this type: ")
    if is_local and review.namespace != call.namespace:
        raise BadRequest(f"spec.resourceAttributes.namespace must match namespace: {call.namespace}")
    return structs.replace(review, status=_access_status(authorizer, user, review))


def _attribute_causes(review: Access) -> list[Cause]:
    resource, path = review.spec.resource_attributes, review.spec.non_resource_attributes
    if resource is not None and path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        return [invalid("spec.nonResourceAttributes", json.decode(json.encode(path)), detail)]
    if resource is None and path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [invalid("spec.resourceAttributes", None, detail)]
    return review_selectors.validate_selectors(resource) if resource is not None else []


def _metadata_causes(meta: ObjectMeta) -> list[Cause]:
    bare = structs.replace(meta, managed_fields=()) == ObjectMeta()
    return [] if bare else [invalid("metadata", json.decode(json.encode(meta)), "must be empty")]


def _local_causes(review: Access) -> list[Cause]:
    meta = review.metadata
    causes: list[Cause] = []
    if structs.replace(meta, namespace="", managed_fields=()) != ObjectMeta():
        detail = "must be empty except for namespace"
        causes.append(invalid("metadata", json.decode(json.encode(meta)), detail))
    resource, path = review.spec.resource_attributes, review.spec.non_resource_attributes
    if resource is not None and resource.namespace != meta.namespace:
        detail = "must match metadata.namespace"
        causes.append(invalid("spec.resourceAttributes.namespace", resource.namespace, detail))
    if path is not None:
        detail = "disallowed on this kind of request"
        causes.append(invalid("spec.nonResourceAttributes", json.decode(json.encode(path)), detail))
    return causes


def _access_status(
    authorizer: AuthorizerChain, user: RequestUser, review: Access
) -> SubjectAccessReviewStatus:
    resource, path = review.spec.resource_attributes, review.spec.non_resource_attributes
    fields, errors = _parse_selectors(resource)
    attrs = _resource_attributes(resource, fields) if resource is not None else _path_attributes(path)
    decision = authorizer.authorize(user, attrs)
    return SubjectAccessReviewStatus(
        allowed=decision.allowed, reason=decision.reason, evaluation_error="; ".join(errors)
    )


def _resource_attributes(about: ResourceAttributes, fields: str) -> Attributes:
    return Attributes(
        about.verb, about.group, about.resource, about.namespace, about.name, about.subresource, fields=fields
    )


def _parse_selectors(about: ResourceAttributes | None) -> tuple[str, list[str]]:
    """Return the field selector of the review, and errors about selectors that cannot be parsed.

    An ignored requirement makes the reviewed request broader, so that access is never granted by mistake.
    """
    fields, errors = "", []
    if about is not None and (by_field := about.field_selector) is not None:
        fields, is_invalid = review_selectors.parse_field_selector(by_field)
        errors += _parse_errors("fieldSelector", is_invalid, fields)
    if about is not None and (by_label := about.label_selector) is not None:
        left, is_invalid = review_selectors.parse_label_selector(by_label)
        errors += _parse_errors("labelSelector", is_invalid, left)
    return fields, errors


def _parse_errors(which: str, is_invalid: bool, left: object) -> list[str]:
    part = "partially ignored" if left else "ignored"
    return [f"spec.resourceAttributes.{which} {part} due to parse error"] if is_invalid else []


def _path_attributes(about: NonResourceAttributes | None) -> Attributes:
    return Attributes(about.verb, path=about.path) if about is not None else Attributes("")


def _rules(server: ReviewServer, call: ApiCall, review: SelfSubjectRulesReview) -> SelfSubjectRulesReview:
    namespace = review.spec.namespace
    if not namespace:
        raise BadRequest("no namespace on request")
    known = server.authorizer.rules_for(call.user, namespace)
    resources = [
        ResourceRule(
            verbs=rule.verbs,
            api_groups=rule.api_groups,
            resources=rule.resources,
            resource_names=rule.resource_names,
        )
        for rule in known.rules
        if rule.resources
    ]
    paths = [
        NonResourceRule(verbs=rule.verbs, non_resource_urls=rule.non_resource_urls)
        for rule in known.rules
        if rule.non_resource_urls
    ]
    return SelfSubjectRulesReview(
        status=SubjectRulesReviewStatus(
            resource_rules=tuple(resources),
            non_resource_rules=tuple(paths),
            incomplete=known.incomplete,
            evaluation_error=aggregate_errors(known.errors) if known.errors else "",
        )
    )


REVIEWS: Mapping[str, Review] = {
    "selfsubjectreviews.authentication.k8s.io": _who_am_i,
    "tokenreviews.authentication.k8s.io": _token,
    "selfsubjectaccessreviews.authorization.k8s.io": _access,
    "subjectaccessreviews.authorization.k8s.io": _access,
    "localsubjectaccessreviews.authorization.k8s.io": _access,
    "selfsubjectrulesreviews.authorization.k8s.io": _rules,
}
