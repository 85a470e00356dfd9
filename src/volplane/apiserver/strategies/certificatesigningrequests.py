"""CertificateSigningRequests. The server fills in the requesting user; approval and signing are separate.

The main endpoint changes neither spec nor status. `/approval` adds the Approved or Denied condition, once;
`/status` adds the certificate. `auth.signers` checks whether a user may approve or sign for a signer.
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
from volplane.api.errors import Causes, duplicate, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.apiserver.struct_edit import replace_fields, set_defaults
from volplane.base import clock

APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
_VERDICTS = (APPROVED, DENIED)
MIN_EXPIRATION_SECONDS = 600  # seconds
_SIGNER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/[A-Za-z0-9._/-]+")
USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign",
    "data encipherment", "decipher only", "digital signature", "email protection", "encipher only",
    "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement", "key encipherment", "microsoft sgc",
    "netscape sgc", "ocsp signing", "s/mime", "server auth", "signing", "timestamping",
)  # fmt: skip


class CertificateSigningRequestStrategy(Strategy[Request]):
    def prepare_create(self, call: ApiCall, obj: Request) -> Request:
        user = call.user
        spec = replace_fields(
            obj.spec, username=user.name, uid=user.uid, groups=user.groups, extra=user.extra
        )
        return structs.replace(obj, spec=spec, status=Status())

    def prepare_update(self, call: ApiCall, old: Request, new: Request) -> Request:
        status = old.status
        if call.subresource == "approval":
            conditions = _set_timestamps(call, status.conditions, new.status.conditions)
            status = structs.replace(status, conditions=conditions)
        return structs.replace(new, spec=old.spec, status=status)

    def prepare_status(self, call: ApiCall, old: Request, new: Request) -> Request:
        verdicts = tuple(c for c in old.status.conditions if c.type in _VERDICTS)
        message = tuple(c for c in new.status.conditions if c.type not in _VERDICTS)
        conditions = _set_timestamps(call, old.status.conditions, (*verdicts, *message))
        return structs.replace(new, spec=old.spec, status=structs.replace(new.status, conditions=conditions))

    def validate_create(self, call: ApiCall, obj: Request) -> Causes:
        spec = obj.spec
        yield from _check_request(spec.request)
        yield from checks.present("spec.usages", spec.usages)
        for at, usage in enumerate(spec.usages):
            if usage not in USAGES:
                yield not_supported(f"spec.usages[{at}]", usage, USAGES)
            if usage in spec.usages[:at]:
                yield duplicate(f"spec.usages[{at}]", usage)
        yield from _check_signer_name(spec.signer_name)
        if spec.expiration_seconds is not None and spec.expiration_seconds < MIN_EXPIRATION_SECONDS:
            message = "may not specify a duration less than 600 seconds (10 minutes)"
            yield invalid("spec.expirationSeconds", spec.expiration_seconds, message)

    def validate_update(self, call: ApiCall, old: Request, new: Request) -> Causes:
        yield from _check_removed_conditions(old, new)
        yield from _check_conditions(new.status.conditions)

    def validate_status(self, call: ApiCall, old: Request, new: Request) -> Causes:
        yield from self.validate_update(call, old, new)
        path, held, given = "status.certificate", old.status.certificate, new.status.certificate
        if held and held != given:
            yield forbidden(path, "updates may not modify existing certificate content")
        elif given and not _has_certificates(given):
            yield invalid(path, "<certificate data>", "must contain one or more PEM blocks")


def parse_request(request: bytes) -> x509.CertificateSigningRequest:
    """Raises ValueError."""
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in request:
        raise ValueError("PEM block type must be CERTIFICATE REQUEST")
    return x509.load_pem_x509_csr(request)


def _check_request(request: bytes) -> Causes:
    try:
        parse_request(request)
    except ValueError as error:
        shown = base64.b64encode(request).decode() if request else None
        yield invalid("spec.request", shown, str(error))
        return


def _check_signer_name(name: str) -> Causes:
    path = "spec.signerName"
    if not name:
        yield required_value(path)
        return
    if name == "kubernetes.io/legacy-unknown":
        yield invalid(path, name, "the legacy signerName is not allowed via this API version")
        return
    if _SIGNER.fullmatch(name):
        return
    message = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
    yield invalid(path, name, message)


def _has_certificates(text: bytes) -> bool:
    try:
        return bool(x509.load_pem_x509_certificates(text))
    except ValueError:
        return False


def _set_timestamps(
    call: ApiCall, old: Iterable[Condition], new: Iterable[Condition]
) -> tuple[Condition, ...]:
    """Fill in the timestamps that the writer left out."""
    now, held = clock.stamp(call.now), {c.type: c for c in old}

    def stamp(condition: Condition) -> Condition:
        before = held.get(condition.type)
        same = before is not None and before.status == condition.status
        since = before.last_transition_time if before is not None and same else now
        return set_defaults(condition, last_update_time=now, last_transition_time=since)

    return tuple(stamp(c) for c in new)


def _check_conditions(conditions: tuple[Condition, ...]) -> Causes:
    held = {c.type for c in conditions}
    for at, condition in enumerate(conditions):
        here = f"status.conditions[{at}]"
        yield from checks.present(f"{here}.type", condition.type)
        if condition.type in (APPROVED, DENIED, FAILED) and condition.status != "True":
            yield not_supported(f"{here}.status", condition.status, ("True",))
        if condition.type == DENIED and APPROVED in held:
            message = "Approved and Denied conditions are mutually exclusive"
            yield invalid(f"{here}.type", condition.type, message)


def _check_removed_conditions(old: Request, new: Request) -> Causes:
    """An Approved, Denied or Failed condition cannot be removed."""
    left = {c.type for c in new.status.conditions}
    yield from [
        forbidden("status.conditions", f'updates may not remove a condition of type "{c.type}"')
        for c in old.status.conditions
        if c.type in (APPROVED, DENIED, FAILED) and c.type not in left
    ]
