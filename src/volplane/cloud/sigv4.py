"""Verifies AWS Signature Version 4.

The signature covers method, path, query, signed headers and body, so a request that was altered is rejected
like one with a wrong key.
"""

from __future__ import annotations

import hmac
import re
from datetime import datetime, timedelta

from volplane.cloud.errors import Ec2ErrorResponse
from volplane.web.sigv4 import ALGORITHM, END, AwsKeys, SignedRequest, signature

SERVICE = "ec2"
SKEW = timedelta(minutes=5)

_STAMP = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_FIELDS = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")


def verify(request: SignedRequest, keys: AwsKeys, now: datetime) -> None:
    """Raises Ec2ErrorResponse unless the request was signed with the secret key within the last minutes."""
    fields = _authorization(request.header("authorization"))
    access, *scope = fields["Credential"].split("/")
    if not hmac.compare_digest(access.encode(), keys.access.encode()):
        raise Ec2ErrorResponse(
            "AuthFailure", "AWS was not able to validate the provided access credentials", 401
        )
    stamp = request.header("x-amz-date")
    _check_time(stamp, now)
    if len(scope) != 4 or scope[0] != stamp[:8] or scope[2:] != [SERVICE, END]:
        raise _mismatch(f"Credential should be scoped to a valid date and to service '{SERVICE}'.")
    names = fields["SignedHeaders"].split(";")
    if "host" not in names or "x-amz-date" not in names:
        raise _mismatch("'host' and 'x-amz-date' must be signed headers.")
    expected = signature(request, names, stamp, scope, keys.secret)
    if not hmac.compare_digest(expected.encode(), fields["Signature"].encode()):
        raise _mismatch("Check your AWS Secret Access Key and signing method.")


def _authorization(header: str) -> dict[str, str]:
    if not header:
        raise Ec2ErrorResponse("MissingAuthenticationToken", "The request has no Authorization header", 403)
    fields = dict(_FIELDS.findall(header))
    if not header.startswith(ALGORITHM) or len(fields) != 3:
        raise Ec2ErrorResponse(
            "IncompleteSignature", "The Authorization header is not an AWS4-HMAC-SHA256 signature"
        )
    return fields


def _check_time(stamp: str, now: datetime) -> None:
    try:
        if not _STAMP.fullmatch(stamp):
            raise ValueError(stamp)
        signed = datetime.fromisoformat(stamp)
    except ValueError:
        raise Ec2ErrorResponse("IncompleteSignature", "X-Amz-Date is missing or malformed") from None
    if abs(now - signed) > SKEW:
        raise Ec2ErrorResponse("RequestExpired", "Request has expired.")


def _mismatch(hint: str) -> Ec2ErrorResponse:
    text = "The request signature we calculated does not match the signature you provided."
    return Ec2ErrorResponse("SignatureDoesNotMatch", f"{text} {hint}", 403)
