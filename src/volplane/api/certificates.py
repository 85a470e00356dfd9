"""certificates.k8s.io/v1: signing requests."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.meta import Resource
from volplane.api.object import Object, Time, map_list, no_omitempty


class CertificateSigningRequestSpec(Object):
    request: bytes = b""
    signer_name: str = no_omitempty(factory=str)
    expiration_seconds: int | None = None
    usages: tuple[str, ...] = ()
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class CertificateSigningRequestCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    reason: str = ""
    message: str = ""
    last_update_time: Time = ""
    last_transition_time: Time = ""


class CertificateSigningRequestStatus(Object):
    conditions: Annotated[tuple[CertificateSigningRequestCondition, ...], map_list("type")] = ()
    certificate: bytes = b""


class CertificateSigningRequest(Resource):
    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()
