"""The EC2 endpoint: signed requests in, XML out.

An action that has begun runs to its end even if the client disconnects, so that no operation is left
incomplete.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import datetime

from volplane.base import clock, metrics, trace
from volplane.base.tasks import TaskSet, ignore_error
from volplane.base.trace_context import HEADER
from volplane.cloud import sigv4, xml
from volplane.cloud.actions import ACTIONS, CHECKS, Action
from volplane.cloud.actions.parameters import check_names
from volplane.cloud.errors import Ec2ErrorResponse, insufficient_capacity, internal_error
from volplane.cloud.faults import FaultScript
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService
from volplane.cloud.throttle import RequestThrottle
from volplane.store import StoreFull
from volplane.web import Request, Response
from volplane.web.sigv4 import AwsKeys, SignedRequest

log = logging.getLogger(__name__)

_requests = metrics.counter("volplane_cloud_requests_total", "EC2 API requests", ("action", "code"))
_CONTENT_TYPE = ("Content-Type", "text/xml;charset=UTF-8")


class Ec2Endpoint:
    def __init__(
        self,
        service: DiskService,
        keys: AwsKeys,
        *,
        throttle: RequestThrottle | None = None,
        faults: FaultScript | None = None,
    ) -> None:
        self._service, self._keys = service, keys
        self._throttle, self._faults = throttle or RequestThrottle(0, 1), faults or FaultScript()
        self._running = TaskSet(ignore_error)  # `_run` logs errors

    async def handle(self, request: Request) -> Response:
        request_id = _request_id()
        action = ""
        try:
            parameters = self._read(request)
            action = parameters.text("Action")
            tree = await self._dispatch(action, parameters, request.headers.get(HEADER) or "")
            status, code, body = 200, "OK", xml.answer(action, request_id, tree)
        except Ec2ErrorResponse as error:
            status, code, body = error.status, error.code, xml.error(error.code, error.message, request_id)
            log.info("%s: %s", action or request.method, error)
        _requests.labels(action if action in ACTIONS else "", code).inc()
        return Response(status=status, headers=[_CONTENT_TYPE, ("x-amzn-RequestId", request_id)], body=body)

    async def close(self) -> None:
        """Wait for the actions in progress."""
        await self._running.wait()

    def _read(self, request: Request) -> QueryParameters:
        sigv4.verify(_to_signed_request(request), self._keys, _now())
        request.user = self._keys.access
        if request.method not in ("GET", "POST"):
            raise Ec2ErrorResponse("InvalidRequest", f"{request.method} is not supported by this API", 405)
        try:
            return QueryParameters.parse(
                request.body.decode() if request.method == "POST" else request.query.raw
            )
        except (UnicodeDecodeError, ValueError) as error:
            raise Ec2ErrorResponse(
                "MalformedQueryString", f"The query string cannot be read: {error}"
            ) from None

    async def _dispatch(self, name: str, parameters: QueryParameters, caller: str) -> dict[str, xml.Value]:
        if name == "SetFaults":
            self._faults = FaultScript.read(parameters.text("Script", "[]").encode())
            return {"return": True}
        action = ACTIONS.get(name)
        if action is None:
            raise Ec2ErrorResponse(
                "InvalidAction", f"The action {name or '(none)'} is not valid for this web service."
            )
        self._throttle.take(name)
        check_names(name, parameters)
        if parameters.flag("DryRun"):
            if check := CHECKS.get(name):
                await check(self._service, parameters)
            raise Ec2ErrorResponse(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412
            )
        with trace.continue_trace(caller):
            return await asyncio.shield(self._running.start(self._run(name, action, parameters)))

    async def _run(self, name: str, action: Action, parameters: QueryParameters) -> dict[str, xml.Value]:
        with trace.span("cloud", name, f"volume/{parameters.text('VolumeId')}"):
            try:
                return await self._act(name, action, parameters)
            except Ec2ErrorResponse:
                raise
            except StoreFull as error:  # of the service's own records
                raise insufficient_capacity(str(error)) from error
            except Exception as error:
                log.exception("%s failed", name)
                raise internal_error("An internal error has occurred") from error

    async def _act(self, name: str, action: Action, parameters: QueryParameters) -> dict[str, xml.Value]:
        fault = self._faults.next_fault(name, _resources(parameters))
        if fault is None:
            return await action(self._service, parameters)
        await asyncio.sleep(fault.delay)
        if fault.code and not fault.after:
            raise fault.to_error()
        answer = await action(self._service, parameters)
        if fault.code:
            raise fault.to_error()
        return answer


def _resources(parameters: QueryParameters) -> tuple[str, ...]:
    kinds = ("VolumeId", "SnapshotId", "InstanceId")
    return tuple(text for kind in kinds for text in (parameters.text(kind), *parameters.texts(kind)) if text)


def _to_signed_request(request: Request) -> SignedRequest:
    path, _, _ = request.raw_path.partition("?")
    return SignedRequest(
        method=request.method,
        path=path,
        query=request.query.raw,
        header=lambda name: request.headers.get(name),
        body=request.body,
    )


def _now() -> datetime:
    return clock.wall()


def _request_id() -> str:
    digits = secrets.token_hex(16)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
