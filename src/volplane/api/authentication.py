"""authentication.k8s.io/v1: token and subject reviews, token requests."""

from collections.abc import Mapping

from volplane.api.meta import Resource
from volplane.api.object import Object, Time, no_omitempty


class TokenReviewSpec(Object):
    token: str = ""
    audiences: tuple[str, ...] = ()


class UserInfo(Object):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class TokenReviewStatus(Object):
    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: tuple[str, ...] = ()
    error: str = ""


class TokenReview(Resource):
    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


class BoundObjectReference(Object):
    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class TokenRequestSpec(Object):
    audiences: tuple[str, ...] = no_omitempty(factory=tuple)
    expiration_seconds: int | None = None
    bound_object_ref: BoundObjectReference | None = None


class TokenRequestStatus(Object):
    token: str = no_omitempty(factory=str)
    expiration_timestamp: Time = ""


class TokenRequest(Resource):
    spec: TokenRequestSpec = TokenRequestSpec()
    status: TokenRequestStatus = TokenRequestStatus()


class SelfSubjectReviewStatus(Object):
    user_info: UserInfo = UserInfo()


class SelfSubjectReview(Resource):
    status: SelfSubjectReviewStatus = SelfSubjectReviewStatus()
