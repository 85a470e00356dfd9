"""Admission of CertificateSigningRequests: who may approve or sign the requests of a signer.

Signers are virtual resources: the verbs `approve` and `sign` on `signers` named `example.com/x`, or
`example.com/*` for all signers of a domain.
"""

from __future__ import annotations

from typing import Any

from cryptography.x509.oid import NameOID

from volplane.api.certificates import CertificateSigningRequest
from volplane.api.errors import Forbidden
from volplane.apiserver.auth.admission import AdmissionPlugin
from volplane.apiserver.auth.authorize import Attributes, AuthorizerChain
from volplane.apiserver.auth.well_known_users import MASTERS
from volplane.apiserver.strategies.certificatesigningrequests import parse_request
from volplane.apiserver.strategy import ApiCall

CLIENTS = "kubernetes.io/kube-apiserver-client"


class SignerAuthorization(AdmissionPlugin):
    def __init__(self, authorizer: AuthorizerChain) -> None:
        self._authorizer = authorizer

    async def create(self, call: ApiCall, obj: Any) -> None:
        """Refuse client certificates for the group system:masters."""
        if not isinstance(obj, CertificateSigningRequest) or obj.spec.signer_name != CLIENTS:
            return
        try:
            subject = parse_request(obj.spec.request).subject
        except ValueError:
            return  # validation reports it
        groups = {a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)}
        if MASTERS in groups:
            why = f"use of {CLIENTS} signer with {MASTERS} group is not allowed"
            raise Forbidden.to(call.kind, obj.name, why)

    async def update(self, call: ApiCall, old: Any, new: Any) -> None:
        if not isinstance(new, CertificateSigningRequest):
            return
        if call.subresource == "approval":
            self._require(call, "approve", old)
        elif call.subresource == "status" and (
            new.status.certificate != old.status.certificate or _has_failed(new) != _has_failed(old)
        ):
            self._require(call, "sign", old)

    def _require(self, call: ApiCall, verb: str, request: CertificateSigningRequest) -> None:
        signer = request.spec.signer_name
        names = (signer, f"{signer.partition('/')[0]}/*")
        choices = (Attributes(verb, call.kind.group, "signers", name=name) for name in names)
        if not any(self._authorizer.allows(call.user, attrs) for attrs in choices):
            why = f'user not permitted to {verb} requests with signerName "{signer}"'
            raise Forbidden.to(call.kind, request.name, why)


def _has_failed(request: CertificateSigningRequest) -> bool:
    return any(c.type == "Failed" for c in request.status.conditions)
