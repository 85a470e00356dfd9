"""The HTTP face: a request finds its user, its verb and its kind, and whatever happens becomes an answer.

Order: who asks (401), may they (403), is there such a thing (404, 405), then the verb. A failure inside is
logged with its trace and told as a 500 without it. Bodies and tokens are never logged.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from functools import cache

from prometheus_client import Counter, Histogram

from volplane.api.errors import (
    APIError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    Timeout,
    TooLarge,
    Unavailable,
)
from volplane.apiserver import answers, discovery, options, public, reviews
from volplane.apiserver.acts import act_of, path_act, verb_of
from volplane.apiserver.auth.authenticate import Authenticator
from volplane.apiserver.auth.authorize import Authority
from volplane.apiserver.auth.issuer import metadata
from volplane.apiserver.backend import Backend
from volplane.apiserver.handlers import HANDLERS, on_post
from volplane.apiserver.paths import Target, parse
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call, User
from volplane.apiserver.subresources import POSTS, scale
from volplane.apiserver.subresources.streams import STREAMS, Streams
from volplane.base import clock, metrics
from volplane.store import Closed, Failed
from volplane.web import BodyTooLarge, Request, Response, Upgraded
from volplane.web.message import pairs

log = logging.getLogger(__name__)

Reply = Response | Upgraded

PATIENCE = 60.0  # seconds a request may take, streams left out
BODY_LIMIT = 3 * 1024 * 1024
_PARTS = frozenset({"status", "finalize", "ephemeralcontainers"})  # of the object itself, see Strategy
_OPENAPI = ("/openapi/v2", "/openapi/v3")
_requests = metrics.counter(
    "apiserver_request_total", "Requests by verb, resource and code.", ("verb", "resource", "code")
)
_seconds = metrics.histogram(
    "apiserver_request_duration_seconds", "Time to answer, streams left out.", ("verb", "resource")
)


@cache  # finding a metric by its labels costs more than counting
def _measures(verb: str, resource: str, code: int) -> tuple[Counter, Histogram]:
    return _requests.labels(verb, resource, code), _seconds.labels(verb, resource)


class App:
    def __init__(
        self,
        backend: Backend,
        authenticate: Authenticator,
        authority: Authority,
        streams: Streams,
    ) -> None:
        self.backend = backend
        self.authenticate = authenticate
        self.authority = authority
        self.streams = streams
        self.ready = False
        self._run = secrets.token_hex(8)  # tells the requests of two runs apart in Audit-Id
        self._count = itertools.count(1)

    async def __call__(self, request: Request) -> Reply:
        began = time.perf_counter()
        seen = Seen()
        try:
            answer = await self._answer(request, seen)
        except APIError as error:
            answer = answers.failure(error)
        except BodyTooLarge:
            answer = answers.failure(TooLarge(f"Request entity too large: limit is {BODY_LIMIT}"))
        except Closed:
            answer = answers.failure(Unavailable("the server is shutting down"))
        except Failed as error:
            answer = answers.failure(InternalError.because(error))
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            answer = answers.failure(InternalError.because(type(error).__name__))
        return self._finished(answer, seen, began)

    def _finished(self, answer: Reply, seen: Seen, began: float) -> Reply:
        code = 101
        if isinstance(answer, Response):
            code = answer.status
            extra = [("Audit-Id", f"{self._run}-{next(self._count):x}")]
            extra += [("Warning", f"299 - {_quoted(text)}") for text in seen.warnings]
            answer.headers = [*pairs(answer.headers), *extra]
        count, seconds = _measures(seen.verb, seen.resource, code)
        count.inc()
        if seen.verb != "watch":
            seconds.observe(time.perf_counter() - began)
        return answer

    async def _answer(self, request: Request, seen: Seen) -> Reply:
        user = self.authenticate(request)
        target = parse(request.path)
        if target is None or not target.plural:
            return await self._outside(request, user)
        verb = verb_of(request, target)
        self.authority.require(user, act_of(request, target, verb))
        entry = self.backend.registry.find(target.group, target.version, target.plural)
        if entry is None:
            raise NotFound.path()
        seen.verb, seen.resource = verb, entry.kind.plural
        _check(entry, verb, target)
        if target.subresource == "proxy":
            return await self.streams.proxy(self.backend, target.name, target.below, request)
        call = self._call(request, user, entry, verb, target)
        seen.warnings = call.warnings
        return await self._serve(request, entry, call)

    async def _serve(self, request: Request, entry: Entry, call: Call) -> Reply:
        if call.subresource in STREAMS and entry.resource == "pods":
            return await self.streams.serve(self.backend, entry, call, request)
        if call.subresource == "scale":
            return await scale.serve(self.backend, entry, call, request)
        if review := reviews.REVIEWS.get(entry.resource):
            return await reviews.serve(review, self, call, request)
        if post := POSTS.get((entry.resource, call.subresource)):
            return await on_post(post, self.backend, entry, call, request)
        handler = HANDLERS.get(call.verb)
        if handler is None or (call.subresource and call.subresource not in _PARTS):
            raise NotFound.path()
        if call.verb == "watch":
            return await handler(self.backend, entry, call, request)
        try:
            async with asyncio.timeout(PATIENCE):
                return await handler(self.backend, entry, call, request)
        except TimeoutError as error:
            raise Timeout("Timeout: request did not complete within the allotted timeout") from error

    def _call(self, request: Request, user: User, entry: Entry, verb: str, target: Target) -> Call:
        writes = verb in ("create", "update", "patch")
        return Call(
            verb,
            entry.kind,
            user,
            self.backend.reader,
            clock.wall(),
            namespace=target.namespace,
            name=target.name,
            subresource=target.subresource,
            dry_run=options.dry_run(request.query, verb) if writes else False,
            manager=options.manager(request) if writes else "",
        )

    async def _outside(self, request: Request, user: User) -> Reply:
        """What is not a resource: health, version, metrics, discovery, schemas."""
        path = request.path
        self.authority.require(user, path_act(request))
        if public.is_health(path):
            return public.health(request, ready=self.ready)
        if path == "/version":
            return answers.json(200, public.VERSION)
        if path == "/openid/v1/jwks":
            return answers.json(200, self.backend.issuer.jwks())
        if path == "/.well-known/openid-configuration":
            return answers.json(200, metadata())
        if path == "/metrics":
            return public.measured()
        if path == "/debug/trace":
            return public.traced(request)
        if path.startswith(_OPENAPI):
            # Loaded when first asked for: describing every field takes memory that most runs never need.
            from volplane.apiserver import openapi

            return await openapi.handle(self.backend.registry, request)
        if path.startswith(("/api", "/apis")):
            return await discovery.handle(self.backend.registry, request)
        raise NotFound.path()


class Seen:
    """What a request turned out to be, for its headers and its metrics."""

    __slots__ = ("resource", "verb", "warnings")

    def __init__(self) -> None:
        self.verb = ""
        self.resource = ""
        self.warnings: list[str] = []


def _check(entry: Entry, verb: str, target: Target) -> None:
    """Is this verb served on this path?"""
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
    if verb in ("create", "update", "patch", "delete", "get") and kind.namespaced and not target.namespace:
        if verb == "create" and kind.plural.endswith("reviews"):
            return
        raise MethodNotAllowed.of(kind, verb)
    if verb == "create" and target.name:
        raise MethodNotAllowed.of(kind, verb)
    if verb in ("update", "patch") and not target.name:
        raise MethodNotAllowed.of(kind, verb)


def _quoted(text: str) -> str:
    """A warning's text in a header: quoted, and without anything a header cannot hold."""
    clean = "".join(c if " " <= c <= "~" else "?" for c in text)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'
