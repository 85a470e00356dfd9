"""The HTTP application: authenticate, authorize, route to a verb, and turn every outcome into a response.

Order: authentication (401), authorization (403), resource and method (404, 405), then the verb. An unexpected
exception is logged with its traceback and answered with a 500 that does not show it. Bodies and tokens are
never logged.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Iterator
from functools import cache, partial

from msgspec import structs
from prometheus_client import Counter, Histogram

from volplane.api.errors import (
    APIError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    Timeout,
    TooLarge,
)
from volplane.apiserver import (
    componentstatuses,
    health_and_metrics,
    query_options,
    responses,
    reviews,
)
from volplane.apiserver.audit import AuditLog, RequestInfo
from volplane.apiserver.auth.authenticate import Authenticator
from volplane.apiserver.auth.authorize import Attributes, AuthorizerChain, forbidden_error
from volplane.apiserver.auth.impersonate import resolve_impersonation
from volplane.apiserver.auth.issuer import openid_configuration
from volplane.apiserver.auth.well_known_users import ANONYMOUS
from volplane.apiserver.authorization_attributes import attributes_of, path_attributes, verb_of
from volplane.apiserver.backend import Backend
from volplane.apiserver.discovery import Discovery
from volplane.apiserver.handlers import HANDLERS, on_post
from volplane.apiserver.inflight import InflightLimiter
from volplane.apiserver.paths import RequestTarget, parse_path
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.start_progress import StartProgress
from volplane.apiserver.store_errors import to_api_error
from volplane.apiserver.strategy import ApiCall, RequestUser
from volplane.apiserver.subresources import POSTS, scale
from volplane.apiserver.subresources.proxy import ResourceProxy
from volplane.apiserver.subresources.streams import STREAMS, NodeStreams
from volplane.base import clock, metrics, trace
from volplane.base.trace_context import HEADER
from volplane.store import StoreClosed, StoreFailed, WriteUncertain
from volplane.web import BodyTooLarge, Request, Response, Upgraded
from volplane.web.message import header_pairs

log = logging.getLogger(__name__)

Reply = Response | Upgraded

REQUEST_TIMEOUT = 60.0  # seconds a request may take; watches and streams are exempt
BODY_LIMIT = 3 * 1024 * 1024
WARNINGS = 50  # per response: http.client accepts at most 100 headers
WARNINGS_LENGTH, WARNING_LENGTH = 4096, 256  # characters: in total, and of each when the total is exceeded
_PART_SUBRESOURCES = frozenset(
    {"status", "finalize", "ephemeralcontainers", "resize", "approval"}
)  # they update the object itself, see Strategy
_READS = frozenset({"get", "list"})
UPGRADED = frozenset({"exec", "attach", "portforward"})
_OPENAPI = ("/openapi/v2", "/openapi/v3")
_requests = metrics.counter(
    "apiserver_request_total", "Requests by verb, resource and code.", ("verb", "resource", "code")
)
_seconds = metrics.histogram(
    "apiserver_request_duration_seconds",
    "Response time, except for watches and streams.",
    ("verb", "resource"),
)


@cache  # looking up a metric by labels costs more than counting
def _request_metrics(verb: str, resource: str, code: int) -> tuple[Counter, Histogram]:
    return _requests.labels(verb, resource, code), _seconds.labels(verb, resource)


class ApiServerApp:
    def __init__(
        self,
        backend: Backend,
        authenticate: Authenticator,
        authorizer: AuthorizerChain,
        streams: NodeStreams,
        audit: AuditLog | None = None,
        *,
        progress: StartProgress | None = None,
        reads: int = 0,
        writes: int = 0,
    ) -> None:
        """`reads` and `writes`: how many requests one user may have in flight; 0 means no limit."""
        self.backend = backend
        self.authenticate = authenticate
        self.authorizer = authorizer
        self.streams = streams
        self.proxy = ResourceProxy(streams)
        self.audit = audit
        self.reads, self.writes = InflightLimiter(reads), InflightLimiter(writes)
        self.health = health_and_metrics.ServerHealth(backend.store, progress or StartProgress())
        self.discovery = Discovery(backend.registry)
        self.started = asyncio.Event()
        self._ids = _audit_ids()

    async def __call__(self, request: Request) -> Reply:
        began, received = time.perf_counter(), clock.wall() if self.audit else None
        info = RequestInfo()
        try:
            if self.backend.trace.sinks and (caller := request.headers.get(HEADER)):
                with trace.continue_trace(caller):
                    answer = await self._answer(request, info)
            else:
                answer = await self._answer(request, info)
        except APIError as error:
            answer = _error_response(info, error)
        except BodyTooLarge:
            answer = _error_response(info, TooLarge(f"Request entity too large: limit is {BODY_LIMIT}"))
        except (StoreClosed, StoreFailed, WriteUncertain) as error:
            answer = _error_response(info, to_api_error(error))
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            answer = _error_response(info, InternalError.because(type(error).__name__))
        audit_id = request.headers.get("audit-id") or next(self._ids)
        if self.audit is not None and received is not None:
            answer = self.audit.record_response(request, answer, info, audit_id, received)
        return self._finish(answer, info, began, audit_id)

    def _finish(self, answer: Reply, info: RequestInfo, began: float, audit_id: str) -> Reply:
        code = 101
        if isinstance(answer, Response):
            code = answer.status
            extra = [("Audit-Id", audit_id)]
            extra += [("Warning", f"299 - {_quote_warning(text)}") for text in _limit_warnings(info.warnings)]
            answer.headers = [*header_pairs(answer.headers), *extra]
        count, seconds = _request_metrics(info.verb, info.resource, code)
        count.inc()
        if info.verb != "watch":
            seconds.observe(time.perf_counter() - began)
        return answer

    async def _answer(self, request: Request, info: RequestInfo) -> Reply:
        if not self.started.is_set():
            # RBAC is not loaded yet. Only health checks are answered before it is.
            if health_and_metrics.is_health_path(request.path):
                return await health_and_metrics.health_response(request, self.health)
            await self.started.wait()
        user = self._user(request, info)
        target = parse_path(request.path)
        if target is None or not target.plural:
            return await self._serve_non_resource(request, user, info)
        verb = verb_of(request, target)
        attributes, info.version = attributes_of(request, target, verb), target.version
        entry = self.backend.registry.find(target.group, target.version, target.plural)
        if entry is not None:  # unknown resources would explode the cardinality of the metrics' labels
            info.verb, info.resource = verb, entry.kind.plural
        self._authorize(user, attributes, info)
        if entry is None:
            raise NotFound.path()
        _check_verb(entry, verb, target)
        if target.subresource == "proxy":
            return await self.proxy.serve(self.backend, target, request)
        if verb != "watch":
            query_options.check_timeout(request.query)
        call = self._call(request, user, entry, attributes, target)
        call.warnings.extend(entry.strategy.warnings)
        info.warnings, info.annotations = call.warnings, call.annotations
        return await self._serve(request, entry, call)

    def _user(self, request: Request, info: RequestInfo) -> RequestUser:
        """Return the authenticated user, or the user that it impersonates."""
        info.user = user = self.authenticate(request)
        if user is not ANONYMOUS:
            request.user = user.name
        other = resolve_impersonation(self.authorizer, user, request.headers)
        if other is not user:
            info.impersonated = other
        return other

    def _authorize(self, user: RequestUser, attributes: Attributes, info: RequestInfo) -> None:
        """Raise Forbidden unless the user may do it."""
        info.attributes = attributes
        info.decision = self.authorizer.authorize(user, attributes)
        if (
            info.decision.allowed
            and attributes.subresource in UPGRADED
            and attributes.verb == "get"
            and attributes.plural == "pods"
        ):
            # A browser's WebSocket can only use GET, but exec needs the same permission as with POST.
            info.attributes = attributes = structs.replace(attributes, verb="create")
            info.decision = self.authorizer.authorize(user, attributes)
        if not info.decision.allowed:
            error = forbidden_error(user, attributes, info.decision.reason)
            log.debug("%s", error.message)
            raise error

    async def _serve(self, request: Request, entry: ServedResource, call: ApiCall) -> Reply:
        if call.subresource in STREAMS and entry.resource == "pods":
            return await self.streams.serve(self.backend, entry, call, request)
        if call.subresource == "scale":
            return await scale.serve(self.backend, entry, call, request)
        if entry.resource == "componentstatuses":
            return await componentstatuses.serve(self.backend, entry, call, request)
        if review := reviews.REVIEWS.get(entry.resource):
            return await reviews.serve(review, self, call, request)
        if post := POSTS.get((entry.resource, call.subresource)):
            return await on_post(post, self.backend, entry, call, request)
        handler = HANDLERS.get(call.verb)
        if handler is None or (call.subresource and call.subresource not in _PART_SUBRESOURCES):
            raise NotFound.path()
        if call.verb == "watch":
            return await handler(self.backend, entry, call, request)
        room = self.reads if call.verb in _READS else self.writes
        room.enter(call.user)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                return await handler(self.backend, entry, call, request)
        except TimeoutError as error:
            raise Timeout("Timeout: request did not complete within the allotted timeout") from error
        finally:
            room.leave(call.user)

    def _call(
        self,
        request: Request,
        user: RequestUser,
        entry: ServedResource,
        attributes: Attributes,
        target: RequestTarget,
    ) -> ApiCall:
        verb = attributes.verb
        writes = verb in ("create", "update", "patch")
        return ApiCall(
            verb,
            entry.kind,
            user,
            self.backend.reader,
            clock.wall(),
            namespace=target.namespace,
            name=target.name,
            subresource=target.subresource,
            dry_run=query_options.dry_run(request.query, verb) if writes else False,
            manager=query_options.manager(request, verb) if writes else "",
            check_access=partial(self._require_verb, user, attributes),
        )

    def _require_verb(self, user: RequestUser, attributes: Attributes, verb: str) -> None:
        self.authorizer.require(user, structs.replace(attributes, verb=verb))

    async def _serve_non_resource(self, request: Request, user: RequestUser, info: RequestInfo) -> Reply:
        """Serve paths that are not resources: health, version, metrics, discovery, OpenAPI."""
        self._authorize(user, path_attributes(request), info)
        path = request.path.rstrip("/")
        if health_and_metrics.is_health_path(path):
            return await health_and_metrics.health_response(request, self.health)
        if path == "/version":
            return responses.json_response(200, health_and_metrics.VERSION)
        if path == "/openid/v1/jwks":
            return health_and_metrics.cacheable_json_response(
                self.backend.issuer.jwks(), "application/jwk-set+json"
            )
        if path == "/.well-known/openid-configuration":
            return health_and_metrics.cacheable_json_response(openid_configuration(), "application/json")
        if path == "/metrics":
            return await health_and_metrics.metrics_response()
        if path == "/debug/trace":
            return health_and_metrics.trace_response(self.backend.trace, request)
        if path.startswith(_OPENAPI):
            # Imported on first use: the field descriptions take memory that most runs never need.
            from volplane.apiserver import openapi

            return await openapi.handle(self.backend.registry, request)
        if path.startswith(("/api", "/apis")):
            return self.discovery.handle(request)
        raise NotFound.path()


def _error_response(info: RequestInfo, error: APIError) -> Response:
    info.error = error.with_traceback(None)  # its frames refer to `info`: a reference cycle per error
    return responses.error_response(error)


def _audit_ids() -> Iterator[str]:
    """Generate audit ids: a random UUID prefix per process and a counter, because uuid4 is too slow."""
    start = str(uuid.uuid4())[:-12]
    return (f"{start}{count:012x}" for count in itertools.count(1))


def _check_verb(entry: ServedResource, verb: str, target: RequestTarget) -> None:
    """Raise NotFound or MethodNotAllowed if the resource does not serve this verb on this path."""
    kind = entry.kind
    if target.subresource:
        below = kind.subresource(target.subresource)
        if below is None:
            raise NotFound.path()
        if verb not in below.verbs and not (verb == "get" and target.subresource == "status"):
            raise MethodNotAllowed.of(kind, verb)
        return
    if target.namespace and not kind.namespaced:
        raise NotFound.path()
    if verb not in kind.verbs:
        raise MethodNotAllowed.of(kind, verb)
    # Across all namespaces only list and watch are possible.
    if verb not in ("list", "watch") and kind.namespaced and not target.namespace:
        if verb == "create" and kind.plural.endswith("reviews"):
            return
        if target.name:
            raise NotFound.path()  # there is no such path
        raise MethodNotAllowed.of(kind, verb)
    if verb == "create" and target.name:
        raise MethodNotAllowed.of(kind, verb)
    if verb in ("update", "patch") and not target.name:
        raise MethodNotAllowed.of(kind, verb)


def _limit_warnings(warnings: list[str]) -> list[str]:
    """Limit warnings to what clients accept: if there are too many, shorten each and drop the rest."""
    if len(warnings) <= WARNINGS and sum(map(len, warnings)) <= WARNINGS_LENGTH:
        return warnings
    left, kept = WARNINGS_LENGTH, []
    for text in warnings[:WARNINGS]:
        left -= min(len(text), WARNING_LENGTH)
        if left < 0:
            break
        kept.append(text[:WARNING_LENGTH])
    return kept


def _quote_warning(text: str) -> str:
    """Quote a warning for a header; characters that a header cannot hold become "?"."""
    clean = "".join(c if " " <= c <= "~" else "?" for c in text)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'
