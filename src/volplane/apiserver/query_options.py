"""Parse the query parameters of a request into options; malformed values are refused."""

from __future__ import annotations

from volplane.api.errors import (
    BadRequest,
    Cause,
    Invalid,
    forbidden,
    invalid,
    not_supported,
    required_value,
    too_long,
)
from volplane.api.kind import Kind
from volplane.api.meta import DeleteOptions
from volplane.apiserver import decode
from volplane.apiserver.apply.managed import MANAGER_LENGTH
from volplane.apiserver.selectors import select
from volplane.apiserver.verbs import list as listing
from volplane.apiserver.verbs import watch as watching
from volplane.base.units import parse_duration
from volplane.web import Query, Request

_WORDS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
_VALIDATIONS = ("Ignore", "Strict", "Warn")
_NO = ("false", "0")


def boolean(query: Query, name: str) -> bool | None:
    """Return None if it is missing. As upstream, every value except "false" and "0" is true."""
    values = query.all(name)
    return values[0].lower() not in _NO if values else None


def integer(query: Query, name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def check_timeout(query: Query) -> None:
    """Refuse a malformed `timeout`. This server's own limit applies in any case."""
    text = query.get("timeout")
    if not text:
        return
    try:
        parse_duration(text)
    except ValueError:
        why = f'time: invalid duration "{text}"'
        raise BadRequest(f"invalid timeout specified in the request URL - {why}") from None


def dry_run(query: Query, verb: str) -> bool:
    values = query.all("dryRun")
    if not values:
        return False
    if set(values) != {"All"}:
        raise Invalid.of(
            _WORDS.get(verb, "DeleteOptions"),
            "",
            [not_supported("dryRun", values, ("All",))],
            group="meta.k8s.io",
        )
    return True


def field_validation(query: Query, verb: str) -> str:
    value = query.get("fieldValidation") or "Warn"
    if value not in _VALIDATIONS:
        cause = not_supported("fieldValidation", value, ("", *_VALIDATIONS))
        raise Invalid.of(_WORDS[verb], "", [cause], group="meta.k8s.io")
    return value


def manager(request: Request, verb: str) -> str:
    """Return the field manager: the fieldManager parameter, else the first part of the User-Agent."""
    named = request.query.get("fieldManager")
    if not named:
        agent = request.headers.get("user-agent").partition("/")[0]
        printed = agent if agent.isprintable() else "".join(c for c in agent if c.isprintable())
        return printed[:MANAGER_LENGTH] or "unknown"
    if causes := _manager_causes(named):
        raise Invalid.of(_WORDS[verb], "", causes, group="meta.k8s.io")
    return named


def _manager_causes(name: str) -> list[Cause]:
    causes = [
        invalid("fieldManager", name, f"invalid character U+{ord(c):04X} (at position {at})")
        for at, c in enumerate(name)
        if not c.isprintable()
    ]
    too_many = [too_long("fieldManager", MANAGER_LENGTH)] if len(name.encode()) > MANAGER_LENGTH else []
    return too_many + causes


def force(query: Query, *, applies: bool) -> bool:
    """Return whether an apply may take over fields. Raise Invalid if another patch type sets `force`."""
    given = boolean(query, "force")
    causes = []
    if applies and not query.get("fieldManager"):
        causes.append(required_value("fieldManager", "is required for apply patch"))
    if not applies and given is not None:
        causes.append(forbidden("force", "may not be specified for non-apply patch"))
    if causes:
        raise Invalid.of("PatchOptions", "", causes, group="meta.k8s.io")
    return given or False


def list_options_of(query: Query, kind: Kind) -> listing.ListOptions:
    if boolean(query, "sendInitialEvents") is not None:
        cause = forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
        raise Invalid.of("ListOptions", "", [cause], group="meta.k8s.io")
    limit = integer(query, "limit") or 0
    return listing.ListOptions(
        selection=select(kind, query.get("labelSelector"), query.get("fieldSelector")),
        limit=max(limit, 0),
        token=query.get("continue"),
        version=query.get("resourceVersion"),
        match=query.get("resourceVersionMatch"),
    )


def watch_options_of(query: Query, kind: Kind) -> watching.WatchOptions:
    asked = watching.WatchOptions(
        selection=select(kind, query.get("labelSelector"), query.get("fieldSelector")),
        version=query.get("resourceVersion"),
        match=query.get("resourceVersionMatch"),
        initial=boolean(query, "sendInitialEvents"),
        bookmarks=boolean(query, "allowWatchBookmarks") or False,
        seconds=max(integer(query, "timeoutSeconds") or 0, 0),
    )
    watching.check_options(asked)
    return asked


def include_object(query: Query) -> str:
    value = query.get("includeObject")
    if value not in ("", "None", "Metadata", "Object"):
        detail = "must be 'Metadata', 'Object', 'None', or empty"
        raise BadRequest(
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{value}": {detail}'
        )
    return value


def delete_options_of(request: Request) -> DeleteOptions:
    """Read DeleteOptions from the body, or from the query if there is no body."""
    if request.body:
        options = decode.decode_options(DeleteOptions, request.body, request.headers.get("content-type"))
        assert isinstance(options, DeleteOptions)
        return options
    query = request.query
    return DeleteOptions(
        grace_period_seconds=integer(query, "gracePeriodSeconds"),
        propagation_policy=query.get("propagationPolicy") or None,
        orphan_dependents=boolean(query, "orphanDependents"),
        dry_run=tuple(query.all("dryRun")),
    )
