"""The audit log: one JSON line per event, at Metadata level.

Bodies are never logged. A streaming response is logged when it starts and when it ends. A thread writes lines
in batches, so that a slow disk does not delay requests. Events that exceed the backlog are dropped and
counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from volplane.api.errors import APIError
from volplane.apiserver.auth.authorize import Attributes, Decision
from volplane.apiserver.strategy import RequestUser
from volplane.base import clock, metrics
from volplane.web import Request, Response, Upgraded

log = logging.getLogger(__name__)

BACKLOG = 20_000  # events waiting to be written; further events are dropped
FLUSH_INTERVAL = 0.05  # seconds between batches
AGENT_LENGTH = 1024

_events = metrics.counter("apiserver_audit_event_total", "Audit events written.", ())
_dropped = metrics.counter("apiserver_audit_error_total", "Audit events that could not be written.", ())


class RequestInfo(Struct):
    """What is known about a request so far: for response headers, metrics and the audit log."""

    verb: str = ""
    resource: str = ""
    version: str = ""
    warnings: list[str] = []
    annotations: Mapping[str, str] = {}
    user: RequestUser | None = None
    impersonated: RequestUser | None = None
    attributes: Attributes | None = None
    decision: Decision | None = None
    error: APIError | None = None


class AuditLog:
    """Writes audit events to a file, or to standard output for "-"."""

    def __init__(self, path: str) -> None:
        self._file = _open_log(path)
        self._waiting: list[bytes] = []
        self._writer = ThreadPoolExecutor(1, "audit log")
        self._writing: asyncio.Task[None] | None = None

    def record_response(
        self,
        request: Request,
        answer: Response | Upgraded,
        info: RequestInfo,
        audit_id: str,
        received: datetime,
    ) -> Response | Upgraded:
        """Record a response. A streaming body is wrapped so that its end is recorded, too."""
        code = answer.status if isinstance(answer, Response) else 101
        event = _event(request, info, audit_id, received, code)
        if isinstance(answer, Response) and not isinstance(answer.body, bytes):
            self.record(event, "ResponseStarted")
            answer.body = _AuditedStream(answer.body, self, event)
            return answer
        if isinstance(answer, Response) and code == 201:
            _add_object_name(event, answer.body)
        self.record(event, "ResponseComplete")
        return answer

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        self._writer.shutdown()
        if self._file is not sys.stdout.buffer:
            self._file.close()

    def record(self, event: dict[str, Any], stage: str) -> None:
        if len(self._waiting) >= BACKLOG:
            _dropped.inc()
            return
        event["stage"], event["stageTimestamp"] = stage, _stamp(clock.wall())
        self._waiting.append(msgspec.json.encode(event))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="audit log")

    async def _write(self) -> None:
        """Write batches until no events are left; the next event starts a new task."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(FLUSH_INTERVAL)
            lines, self._waiting = self._waiting, []
            try:
                await loop.run_in_executor(self._writer, self._append, b"\n".join([*lines, b""]))
                _events.inc(len(lines))
            except OSError as error:
                _dropped.inc(len(lines))
                log.error("cannot write the audit log: %s", error)
        self._writing = None

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()


class _AuditedStream:
    """A response body that records its end in the audit log."""

    def __init__(self, body: Any, audit: AuditLog, event: dict[str, Any]) -> None:
        self._body, self._audit, self._event = body, audit, event
        self._ended = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece: bytes = await anext(self._body)
            return piece
        except BaseException:
            self._end()
            raise

    async def aclose(self) -> None:
        self._end()
        close = getattr(self._body, "aclose", None)
        if close is not None:
            await close()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._audit.record(self._event, "ResponseComplete")


def _open_log(path: str) -> BinaryIO:
    if path == "-":
        return sys.stdout.buffer
    directory = os.path.dirname(path)
    if directory:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def _event(
    request: Request, info: RequestInfo, audit_id: str, received: datetime, code: int
) -> dict[str, Any]:
    query = f"?{request.query.raw}" if request.query.raw else ""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": audit_id,
        "stage": "",
        "requestURI": request.raw_path + query,
        "verb": info.attributes.verb if info.attributes is not None else request.method.lower(),
        "user": _user_info(info.user),
    }
    if info.impersonated is not None:
        event["impersonatedUser"] = _user_info(info.impersonated)
    event["sourceIPs"] = _sources(request)
    if agent := request.headers.get("user-agent"):
        event["userAgent"] = agent if len(agent) <= AGENT_LENGTH else f"{agent[:AGENT_LENGTH]}...TRUNCATED"
    if info.attributes is not None and info.attributes.plural:
        event["objectRef"] = _object(info.attributes, info.version)
    event["responseStatus"] = _status(info, code)
    event["requestReceivedTimestamp"] = _stamp(received)
    event["stageTimestamp"] = ""
    if info.decision is not None:
        event["annotations"] = {
            "authorization.k8s.io/decision": "allow" if info.decision.allowed else "forbid",
            "authorization.k8s.io/reason": info.decision.reason,
            **info.annotations,
        }
    return event


def _stamp(moment: datetime) -> str:
    return f"{_second(moment.replace(microsecond=0))}.{moment.microsecond:06d}Z"


@lru_cache(maxsize=4)  # formatting the second costs more than the rest of the event
def _second(moment: datetime) -> str:
    return clock.stamp(moment).removesuffix("Z")


def _user_info(user: RequestUser | None) -> Mapping[str, Any]:
    if user is None:
        return {}
    fields = {"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    return {key: value for key, value in fields.items() if value}


def _sources(request: Request) -> list[str]:
    forwarded = request.headers.get("x-forwarded-for")
    through = [part.strip() for part in forwarded.split(",") if part.strip()] if forwarded else []
    return [*through, *([request.remote] if request.remote not in through else [])]


def _object(attributes: Attributes, version: str) -> dict[str, str]:
    fields = {
        "resource": attributes.plural,
        "namespace": attributes.namespace,
        "name": attributes.name,
        "apiGroup": attributes.group,
        "apiVersion": version,
        "subresource": attributes.subresource,
    }
    return {key: value for key, value in fields.items() if value}


def _status(info: RequestInfo, code: int) -> dict[str, Any]:
    if info.error is None:
        return {"metadata": {}, "code": code}
    status = {k: v for k, v in info.error.status().items() if k not in ("kind", "apiVersion")}
    if info.user is None and code == 401:
        status["message"] = "Authentication failed, attempted: bearer"  # a bad certificate is refused by TLS
    return status


class _Meta(Struct):
    name: str = ""


class _NamedObject(Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_name_decoder = msgspec.json.Decoder(_NamedObject)


def _add_object_name(event: dict[str, Any], body: bytes | AsyncIterator[bytes]) -> None:
    """Add the name of a created object, which only the response body has (generateName)."""
    about = event.get("objectRef")
    if about is None or "name" in about or not isinstance(body, bytes):
        return
    try:
        name = _name_decoder.decode(body).metadata.name
    except msgspec.MsgspecError:
        return
    if name:
        about["name"] = name
