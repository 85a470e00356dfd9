"""Reviews: questions about users and permissions that are posted like objects and answered, never stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from volplane.api.errors import BadRequest
from volplane.apiserver import answers, decode
from volplane.apiserver.auth.authenticate import Authenticator
from volplane.apiserver.auth.authorize import Act, Authorizer, allowed
from volplane.apiserver.auth.users import AUTHENTICATED
from volplane.apiserver.backend import Backend
from volplane.apiserver.decode.parse import Malformed
from volplane.apiserver.strategy import Call, User
from volplane.web import Request, Response


class Asked(Protocol):
    """What a review needs of the server."""

    backend: Backend
    authenticate: Authenticator
    authorizers: Sequence[Authorizer]


Review = Callable[[Asked, Call, dict[str, Any]], dict[str, Any]]


async def serve(review: Review, server: Asked, call: Call, request: Request) -> Response:
    content_type = request.headers.get("content-type")
    try:
        data, _ = decode.read(request.body, content_type)
    except Malformed as error:
        raise BadRequest(str(error)) from error
    if not isinstance(data, dict):
        raise BadRequest("the body must be an object")
    spec = data.get("spec") or {}
    answer = {
        "kind": call.kind.kind,
        "apiVersion": call.kind.api_version,
        "metadata": {"creationTimestamp": None},
        "spec": spec,
        "status": review(server, call, spec),
    }
    return answers.json(201, answer)


def _self_review(server: Asked, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    return {"userInfo": _info(call.user)}


def _info(user: User) -> dict[str, Any]:
    extra = {k: list(v) for k, v in user.extra.items()}
    told = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    return {k: v for k, v in told.items() if v}


def _self_access(server: Asked, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    return _access(server, call.user, spec)


def _subject_access(server: Asked, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
    return _access(server, user, spec)


def _access(server: Asked, user: User, spec: dict[str, Any]) -> dict[str, Any]:
    if (about := spec.get("resourceAttributes")) is not None:
        act = _resource_act(server, about)
    elif (about := spec.get("nonResourceAttributes")) is not None:
        act = Act(about.get("verb", ""), path=about.get("path", ""))
    else:
        raise BadRequest("exactly one of nonResourceAttributes or resourceAttributes must be specified")
    return {"allowed": allowed(server.authorizers, user, act)}


def _resource_act(server: Asked, about: dict[str, Any]) -> Act:
    group, plural = about.get("group", ""), about.get("resource", "")
    kind = next((k for k in server.backend.registry.kinds() if k.group == group and k.plural == plural), None)
    return Act(
        about.get("verb", ""),
        kind,
        about.get("namespace", ""),
        about.get("name", ""),
        about.get("subresource", ""),
        path="" if kind else f"/apis/{group}/{plural}",
    )


def _rules(server: Asked, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    """All or what is public: finer rules come with the roles of the API."""
    everything = allowed(server.authorizers, call.user, Act("*", path="/*"))
    star = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}] if everything else []
    paths = ["*"] if everything else ["/healthz", "/livez", "/readyz", "/version"]
    return {
        "resourceRules": star,
        "nonResourceRules": [{"verbs": ["*"] if everything else ["get"], "nonResourceURLs": paths}],
        "incomplete": False,
    }


def _token(server: Asked, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    token = spec.get("token", "")
    if not token:
        raise BadRequest("token is required for TokenReview in authentication")
    user = server.authenticate.by_token(token)
    if user is None:
        return {"authenticated": False, "error": "the token is not known", "user": {}}
    return {"authenticated": AUTHENTICATED in user.groups, "user": _info(user)}


REVIEWS: Mapping[str, Review] = {
    "selfsubjectreviews.authentication.k8s.io": _self_review,
    "tokenreviews.authentication.k8s.io": _token,
    "selfsubjectaccessreviews.authorization.k8s.io": _self_access,
    "subjectaccessreviews.authorization.k8s.io": _subject_access,
    "localsubjectaccessreviews.authorization.k8s.io": _subject_access,
    "selfsubjectrulesreviews.authorization.k8s.io": _rules,
}
