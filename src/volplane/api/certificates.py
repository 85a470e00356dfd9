"""certificates.k8s.io/v1: signing requests."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.meta import Resource
from volplane.api.object import Object, Time, kept, keyed


class CertificateSigningRequestSpec(Object):
    request: bytes = b""
    signer_name: str = kept(factory=str)
    expiration_seconds: int | None = None
    usages: tuple[str, ...] = ()
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class CertificateSigningRequestCondition(Object):
    type: str = kept(factory=str)
    status: str = kept(factory=str)
    reason: str = ""
    message: str = ""
    last_update_time: Time = ""
    last_transition_time: Time = ""


class CertificateSigningRequestStatus(Object):
    conditions: Annotated[tuple[CertificateSigningRequestCondition, ...], keyed("type")] = ()
    certificate: bytes = b""


class CertificateSigningRequest(Resource):
    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()
