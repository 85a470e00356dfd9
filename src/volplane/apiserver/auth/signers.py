"""Whose requests somebody may approve or sign: a judge of admission for certificate signing requests.

Signers are resources that only authorization knows: `approve` or `sign` on `signers` named `example.com/x`,
or `example.com/*` for all of a domain.
"""

from __future__ import annotations

from typing import Any

from cryptography.x509.oid import NameOID

from volplane.api.certificates import CertificateSigningRequest
from volplane.api.errors import Forbidden
from volplane.apiserver.auth.authorize import Act, Authority
from volplane.apiserver.auth.users import MASTERS
from volplane.apiserver.strategies.requests import read
from volplane.apiserver.strategy import Call

CLIENTS = "kubernetes.io/kube-apiserver-client"


class Signers:
    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def create(self, call: Call, obj: Any) -> None:
        """Nobody becomes master of everything by a certificate that only looks like any other."""
        if not isinstance(obj, CertificateSigningRequest) or obj.spec.signer_name != CLIENTS:
            return
        try:
            subject = read(obj.spec.request).subject
        except ValueError:
            return  # validation has a word for it
        groups = {a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)}
        if MASTERS in groups:
            why = f"use of {CLIENTS} signer with {MASTERS} group is not allowed"
            raise Forbidden.to(call.kind, obj.name, why)

    async def update(self, call: Call, old: Any, new: Any) -> None:
        if not isinstance(new, CertificateSigningRequest):
            return
        if call.subresource == "approval":
            self._require(call, "approve", old)
        elif call.subresource == "status" and (
            new.status.certificate != old.status.certificate or _failed(new) != _failed(old)
        ):
            self._require(call, "sign", old)

    async def delete(self, call: Call, obj: Any) -> None:
        return None

    async def post(self, call: Call, obj: Any) -> None:
        return None

    def _require(self, call: Call, verb: str, request: CertificateSigningRequest) -> None:
        signer = request.spec.signer_name
        names = (signer, f"{signer.partition('/')[0]}/*")
        acts = (Act(verb, call.kind.group, "signers", name=name) for name in names)
        if not any(self._authority.allows(call.user, act) for act in acts):
            why = f'user not permitted to {verb} requests with signerName "{signer}"'
            raise Forbidden.to(call.kind, request.name, why)


def _failed(request: CertificateSigningRequest) -> bool:
    return any(c.type == "Failed" for c in request.status.conditions)
