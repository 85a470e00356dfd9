"""Approve and sign certificate signing requests; without the key of a CA only approve."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import assert_never

from msgspec import Struct, structs

from volplane.api import codec
from volplane.api.authorization import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec
from volplane.api.certificates import CertificateSigningRequest as Request
from volplane.api.certificates import CertificateSigningRequestCondition as Condition
from volplane.base import clock
from volplane.client.client import Client
from volplane.controllers.csr.plan import (
    APPROVED,
    FAILED,
    ApproveIfAllowed,
    DeleteRequest,
    RejectRequest,
    RequestSubject,
    SignCertificate,
    Step,
    plan,
)
from volplane.controllers.csr.signing import CertificateSigner, subject_of
from volplane.loops.controller import Continue, Controller, Outcome
from volplane.rules.waits import Wait

GROUP, PLURAL = "certificates.k8s.io", "certificatesigningrequests"


class RequestView(Struct, frozen=True):
    request: Request
    subject: RequestSubject
    now: datetime
    approved: bool = False  # by a step of this plan


class SigningRequests(Controller[str, RequestView, Step]):
    name = "certificatesigningrequest-controller"

    def __init__(self, client: Client, *, certificate: bytes = b"", key: bytes = b"") -> None:
        super().__init__(client)
        self._authority = CertificateSigner(certificate, key) if certificate and key else None

    def setup(self) -> None:
        self.requests = self.watch(Request, lambda old, new: [new.name] if new else [])

    def view(self, key: str) -> RequestView | None:
        request = self.requests.get(key)
        if request is None:
            return None
        return RequestView(request, subject_of(request.spec.request), clock.wall())

    def plan(self, view: RequestView) -> Iterator[Step | Wait]:
        return plan(view.request, view.subject, view.now)

    async def act(self, key: str, view: RequestView, step: Step) -> Outcome[RequestView]:
        request = view.request
        match step:
            case ApproveIfAllowed(permission, message):
                if not view.approved and await self._may(request, permission):
                    await self._add_condition(request, "approval", APPROVED, "AutoApproved", message)
                    return Continue(structs.replace(view, approved=True))
            case SignCertificate():
                await self._sign(request)
            case RejectRequest(message):
                await self._add_condition(request, "status", FAILED, "SignerValidationFailure", message)
            case DeleteRequest():
                await self.client.delete(Request, key, uid=request.uid, missing_ok=True)
            case _:
                assert_never(step)
        return None

    async def _may(self, request: Request, permission: str) -> bool:
        spec = request.spec
        about = ResourceAttributes(
            verb="create", group=GROUP, version="*", resource=PLURAL, subresource=permission
        )
        asked = SubjectAccessReviewSpec(
            resource_attributes=about,
            user=spec.username,
            groups=spec.groups,
            uid=spec.uid,
            extra=spec.extra,
        )
        return (await self.client.create(SubjectAccessReview(spec=asked))).status.allowed

    async def _add_condition(
        self, request: Request, subresource: str, type: str, reason: str, message: str
    ) -> None:
        condition = Condition(type=type, status="True", reason=reason, message=message)
        conditions = [codec.to_dict(c) for c in (*request.status.conditions, condition)]
        await self._patch(request, subresource, {"conditions": conditions})

    async def _sign(self, request: Request) -> None:
        if self._authority is None:
            return
        spec = request.spec
        made = self._authority.sign(spec.request, spec.usages, spec.expiration_seconds)
        await self._patch(request, "status", {"certificate": base64.b64encode(made).decode()})

    async def _patch(self, request: Request, subresource: str, status: dict[str, object]) -> None:
        await self.client.patch(
            Request,
            request.name,
            merge={"status": status},
            subresource=subresource,
            uid=request.uid,
            revision=request.metadata.resource_version,
            missing_ok=True,
        )
