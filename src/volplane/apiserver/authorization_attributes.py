"""Build the authorization attributes of a request.

They differ from the verb's view in two ways: a list with a `metadata.name` field selector is authorized for
that name, and a Namespace counts as an object in itself, so that a Role in it can allow reading it.
"""

from __future__ import annotations

from volplane.api import name_validation
from volplane.api.selectors import FieldMatcher, InvalidSelector
from volplane.apiserver import query_options
from volplane.apiserver.auth.authorize import Attributes
from volplane.apiserver.paths import RequestTarget
from volplane.web import Request

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_SELECTING = frozenset({"list", "watch", "deletecollection"})


def verb_of(request: Request, target: RequestTarget) -> str:
    match request.method:
        case "GET" | "HEAD":
            if target.name:
                return "get"
            return "watch" if query_options.boolean(request.query, "watch") else "list"
        case "DELETE":
            return "delete" if target.name else "deletecollection"
        case method:
            return _VERBS.get(method, method.lower())


def attributes_of(request: Request, target: RequestTarget, verb: str) -> Attributes:
    name, fields = target.name, ""
    if verb in _SELECTING and "fieldSelector" in request.query.raw:
        fields = request.query.get("fieldSelector")
        name = "" if verb == "deletecollection" else selected_name(fields)
    namespace = target.namespace
    if target.plural == "namespaces" and not target.group:
        namespace = target.name
    return Attributes(verb, target.group, target.plural, namespace, name, target.subresource, fields=fields)


def path_attributes(request: Request) -> Attributes:
    return Attributes(request.method.lower(), path=request.path)


def selected_name(selector: str) -> str:
    """Return the name that a field selector requires, or ""."""
    try:
        name = FieldMatcher.parse(selector).required_value("metadata.name") or ""
    except InvalidSelector:
        return ""
    return "" if name_validation.path_segment_problems(name, False) else name
