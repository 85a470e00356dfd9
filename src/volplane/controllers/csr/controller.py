"""Approves and signs what the plan says; without an authority's key it approves only."""

from __future__ import annotations

import base64
from typing import assert_never

from volplane.api import codec
from volplane.api.authorization import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec
from volplane.api.certificates import CertificateSigningRequest as Request
from volplane.api.certificates import CertificateSigningRequestCondition as Condition
from volplane.base import clock
from volplane.client.client import Client
from volplane.controllers.csr.plan import APPROVED, FAILED, Ask, Fail, Forget, Sign, plan
from volplane.controllers.csr.signing import Authority, subject_of
from volplane.loops.controller import Controller
from volplane.rules.steps import Wait

GROUP, PLURAL = "certificates.k8s.io", "certificatesigningrequests"


class SigningRequests(Controller[str]):
    name = "certificatesigningrequest-controller"

    def __init__(self, client: Client, *, certificate: bytes = b"", key: bytes = b"") -> None:
        super().__init__(client)
        self._authority = Authority(certificate, key) if certificate and key else None

    def setup(self) -> None:
        self.requests = self.watch(Request, lambda old, new: [new.name] if new else [])

    async def reconcile(self, key: str) -> None:
        request = self.requests.get(key)
        if request is None:
            return
        approved = False
        for step in plan(request, subject_of(request.spec.request), clock.wall()):
            match step:
                case Ask(permission, message):
                    if not approved and await self._may(request, permission):
                        approved = True
                        await self._condition(request, "approval", APPROVED, "AutoApproved", message)
                case Sign():
                    await self._sign(request)
                case Fail(message):
                    await self._condition(request, "status", FAILED, "SignerValidationFailure", message)
                case Forget():
                    await self.client.delete(Request, key, uid=request.uid, missing_ok=True)
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case _:
                    assert_never(step)

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

    async def _condition(
        self, request: Request, subresource: str, type: str, reason: str, message: str
    ) -> None:
        told = Condition(type=type, status="True", reason=reason, message=message)
        conditions = [codec.builtins(c) for c in (*request.status.conditions, told)]
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
