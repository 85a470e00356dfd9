"""Certificate signing requests: who asks is written down by the server, who approves and who signs are two.

The main endpoint changes neither spec nor status; `/approval` says yes or no, once; `/status` brings the
certificate. Which signer's requests somebody may approve or sign is asked by `auth.signers`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from cryptography import x509
from msgspec import structs

from volplane.api.certificates import CertificateSigningRequest as Request
from volplane.api.certificates import CertificateSigningRequestCondition as Condition
from volplane.api.certificates import CertificateSigningRequestStatus as Status
from volplane.api.errors import Cause, duplicate, forbidden, invalid, not_supported, required
from volplane.apiserver.strategies.edit import changed, filled
from volplane.apiserver.strategy import Call, Strategy
from volplane.base import clock

APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
_VERDICTS = (APPROVED, DENIED)
SHORTEST = 600  # seconds
_SIGNER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/[A-Za-z0-9._/-]+")
USAGES = (
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
)


class RequestStrategy(Strategy[Request]):
    def prepare_create(self, call: Call, obj: Request) -> Request:
        user = call.user
        spec = changed(obj.spec, username=user.name, uid=user.uid, groups=user.groups, extra=user.extra)
        return structs.replace(obj, spec=spec, status=Status())

    def prepare_update(self, call: Call, old: Request, new: Request) -> Request:
        status = old.status
        if call.subresource == "approval":
            conditions = _stamped(call, status.conditions, new.status.conditions)
            status = structs.replace(status, conditions=conditions)
        return structs.replace(new, spec=old.spec, status=status)

    def prepare_status(self, call: Call, old: Request, new: Request) -> Request:
        verdicts = tuple(c for c in old.status.conditions if c.type in _VERDICTS)
        told = tuple(c for c in new.status.conditions if c.type not in _VERDICTS)
        conditions = _stamped(call, old.status.conditions, (*verdicts, *told))
        return structs.replace(new, spec=old.spec, status=structs.replace(new.status, conditions=conditions))

    def validate_create(self, call: Call, obj: Request) -> list[Cause]:
        spec = obj.spec
        wrong = _wrong_request(spec.request)
        if not spec.usages:
            wrong.append(required("spec.usages"))
        for at, usage in enumerate(spec.usages):
            if usage not in USAGES:
                wrong.append(not_supported(f"spec.usages[{at}]", usage, USAGES))
            if usage in spec.usages[:at]:
                wrong.append(duplicate(f"spec.usages[{at}]", usage))
        wrong += _wrong_signer(spec.signer_name)
        if spec.expiration_seconds is not None and spec.expiration_seconds < SHORTEST:
            told = "may not specify a duration less than 600 seconds (10 minutes)"
            wrong.append(invalid("spec.expirationSeconds", spec.expiration_seconds, told))
        return wrong

    def validate_update(self, call: Call, old: Request, new: Request) -> list[Cause]:
        return _kept(old, new) + _wrong_conditions(new.status.conditions)

    def validate_status(self, call: Call, old: Request, new: Request) -> list[Cause]:
        wrong = self.validate_update(call, old, new)
        path, held, given = "status.certificate", old.status.certificate, new.status.certificate
        if held and held != given:
            wrong.append(forbidden(path, "updates may not modify existing certificate content"))
        elif given and not _certificates(given):
            wrong.append(invalid(path, "<certificate data>", "must contain one or more PEM blocks"))
        return wrong


def read(request: bytes) -> x509.CertificateSigningRequest:
    """Raises ValueError."""
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in request:
        raise ValueError("PEM block type must be CERTIFICATE REQUEST")
    return x509.load_pem_x509_csr(request)


def _wrong_request(request: bytes) -> list[Cause]:
    try:
        read(request)
    except ValueError as error:
        shown = base64.b64encode(request).decode() if request else None
        return [invalid("spec.request", shown, str(error))]
    return []


def _wrong_signer(name: str) -> list[Cause]:
    path = "spec.signerName"
    if not name:
        return [required(path)]
    if name == "kubernetes.io/legacy-unknown":
        return [invalid(path, name, "the legacy signerName is not allowed via this API version")]
    if _SIGNER.fullmatch(name):
        return []
    told = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
    return [invalid(path, name, told)]


def _certificates(text: bytes) -> bool:
    try:
        return bool(x509.load_pem_x509_certificates(text))
    except ValueError:
        return False


def _stamped(call: Call, old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """With the times that the writer left out."""
    now, held = clock.stamp(call.now), {c.type: c for c in old}

    def stamp(condition: Condition) -> Condition:
        before = held.get(condition.type)
        same = before is not None and before.status == condition.status
        since = before.last_transition_time if before is not None and same else now
        return filled(condition, last_update_time=now, last_transition_time=since)

    return tuple(stamp(c) for c in new)


def _wrong_conditions(conditions: tuple[Condition, ...]) -> list[Cause]:
    wrong: list[Cause] = []
    held = {c.type for c in conditions}
    for at, condition in enumerate(conditions):
        here = f"status.conditions[{at}]"
        if not condition.type:
            wrong.append(required(f"{here}.type"))
        if condition.type in (APPROVED, DENIED, FAILED) and condition.status != "True":
            wrong.append(not_supported(f"{here}.status", condition.status, ("True",)))
        if condition.type == DENIED and APPROVED in held:
            told = "Approved and Denied conditions are mutually exclusive"
            wrong.append(invalid(f"{here}.type", condition.type, told))
    return wrong


def _kept(old: Request, new: Request) -> list[Cause]:
    """What was decided stays decided."""
    left = {c.type for c in new.status.conditions}
    return [
        forbidden("status.conditions", f'updates may not remove a condition of type "{c.type}"')
        for c in old.status.conditions
        if c.type in (APPROVED, DENIED, FAILED) and c.type not in left
    ]
