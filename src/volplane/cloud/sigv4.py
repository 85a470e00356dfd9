"""Who asks: AWS Signature Version 4, checked.

The signature covers method, path, query, the signed headers and the body, so a request that was changed on
its way is refused like one with a wrong key. Only the header form is taken; nobody presigns EC2 calls.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from urllib.parse import parse_qsl, quote

from msgspec import Struct

from volplane.cloud.errors import Refusal

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "ec2"
SKEW = timedelta(minutes=5)

_STAMP = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_FIELDS = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")


class Keys(Struct, frozen=True):
    access: str
    secret: str


class Signed(Struct, frozen=True):
    """A request as far as its signature is concerned."""

    method: str
    path: str  # as sent, still percent-encoded
    query: str
    header: Callable[[str], str]
    body: bytes


def verify(request: Signed, keys: Keys, now: datetime) -> None:
    """Raises Refusal unless the holder of the secret key signed exactly this, just now."""
    fields = _authorization(request.header("authorization"))
    access, *scope = fields["Credential"].split("/")
    if not hmac.compare_digest(access.encode(), keys.access.encode()):
        raise Refusal("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
    stamp = request.header("x-amz-date")
    _check_time(stamp, now)
    if len(scope) != 4 or scope[0] != stamp[:8] or scope[2:] != [SERVICE, "aws4_request"]:
        raise _mismatch(f"Credential should be scoped to a valid date and to service '{SERVICE}'.")
    names = fields["SignedHeaders"].split(";")
    if "host" not in names or "x-amz-date" not in names:
        raise _mismatch("'host' and 'x-amz-date' must be signed headers.")
    text = "\n".join([ALGORITHM, stamp, "/".join(scope), _digest(_canonical(request, names).encode())])
    expected = hmac.new(_key(keys.secret, tuple(scope)), text.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), fields["Signature"].encode()):
        raise _mismatch("Check your AWS Secret Access Key and signing method.")


def _authorization(header: str) -> dict[str, str]:
    if not header:
        raise Refusal("MissingAuthenticationToken", "The request has no Authorization header", 403)
    fields = dict(_FIELDS.findall(header))
    if not header.startswith(ALGORITHM) or len(fields) != 3:
        raise Refusal("IncompleteSignature", "The Authorization header is not an AWS4-HMAC-SHA256 signature")
    return fields


def _check_time(stamp: str, now: datetime) -> None:
    try:
        if not _STAMP.fullmatch(stamp):
            raise ValueError(stamp)
        signed = datetime.fromisoformat(stamp)
    except ValueError:
        raise Refusal("IncompleteSignature", "X-Amz-Date is missing or malformed") from None
    if abs(now - signed) > SKEW:
        raise Refusal("RequestExpired", "Request has expired.")


def _canonical(request: Signed, names: list[str]) -> str:
    headers = "".join(f"{name}:{' '.join(request.header(name).split())}\n" for name in names)
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(request.query, keep_blank_values=True)
    )
    query = "&".join(f"{name}={value}" for name, value in pairs)
    path = quote(request.path or "/", safe="/-_.~%")
    return "\n".join([request.method, path, query, headers, ";".join(names), _digest(request.body)])


@lru_cache(maxsize=16)  # the same all day long
def _key(secret: str, scope: tuple[str, ...]) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _mismatch(hint: str) -> Refusal:
    text = "The request signature we calculated does not match the signature you provided."
    return Refusal("SignatureDoesNotMatch", f"{text} {hint}", 403)
