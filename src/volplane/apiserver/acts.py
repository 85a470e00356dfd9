"""What a request wants to do, as authorization sees it.

Two things differ from how the verbs see it: a list of one name is authorised as that name, and a namespace is
an object inside itself, so that a role in a namespace can cover reading it.
"""

from __future__ import annotations

from volplane.api.selectors import BadSelector, Fields
from volplane.apiserver import naming, options
from volplane.apiserver.auth.authorize import Act
from volplane.apiserver.paths import Target
from volplane.web import Request

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_SELECTING = frozenset({"list", "watch", "deletecollection"})


def verb_of(request: Request, target: Target) -> str:
    match request.method:
        case "GET" | "HEAD":
            if target.name:
                return "get"
            return "watch" if options.boolean(request.query, "watch") else "list"
        case "DELETE":
            return "delete" if target.name else "deletecollection"
        case method:
            return _VERBS.get(method, method.lower())


def act_of(request: Request, target: Target, verb: str) -> Act:
    name, fields = target.name, ""
    if verb in _SELECTING and "fieldSelector" in request.query.raw:
        fields = request.query.get("fieldSelector")
        name = "" if verb == "deletecollection" else name_in(fields)
    namespace = target.namespace
    if target.plural == "namespaces" and not target.group:
        namespace = target.name
    return Act(verb, target.group, target.plural, namespace, name, target.subresource, fields=fields)


def path_act(request: Request) -> Act:
    return Act(request.method.lower(), path=request.path)


def name_in(selector: str) -> str:
    """The one name that a field selector asks for."""
    try:
        name = Fields.parse(selector).required("metadata.name") or ""
    except BadSelector:
        return ""
    return "" if naming.path_segment(name, False) else name
