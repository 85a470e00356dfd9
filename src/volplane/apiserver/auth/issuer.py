"""Sign and verify service account tokens: JWTs with ES256. The public key is published as JWKS."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from volplane.apiserver.auth.certificates import UnusableKey, load_key, write_private

ISSUER = "https://kubernetes.default.svc.cluster.local"
LONGEST_TOKEN = 64 * 1024  # characters: the size limit of request headers
_ALGORITHM = ec.ECDSA(hashes.SHA256())


class ParsedToken(NamedTuple):
    """The claims of a token, and an error if its signature is not valid."""

    claims: Mapping[str, Any]
    error: str = ""


class TokenIssuer:
    """The signing key, and the public key that others need to verify tokens."""

    def __init__(self, key: ec.EllipticCurvePrivateKey | None = None) -> None:
        self._key = key or ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        raw = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.key_id = _text(hashlib.sha256(raw).digest())
        self._public = public

    @classmethod
    def load(cls, path: Path) -> TokenIssuer:
        """Load the key, or create it once, so that tokens survive a restart. Raise UnusableKey."""
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        try:
            return cls(load_key(path))
        except ValueError as error:
            raise UnusableKey(path, error) from None

    def sign(self, claims: Mapping[str, Any]) -> str:
        header = {"alg": "ES256", "kid": self.key_id}
        head = f"{_text(msgspec.json.encode(header))}.{_text(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(head.encode(), _ALGORITHM))
        return f"{head}.{_text(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def parse(self, token: str) -> ParsedToken | None:
        """Parse a token and verify its signature. Return None if it is not a JWT."""
        if len(token) > LONGEST_TOKEN:
            return None
        try:
            header, claims, signature = token.split(".", 3)  # more than three parts raise ValueError
            head: dict[str, Any] = msgspec.json.decode(_bytes(header), type=dict[str, Any])
            payload: dict[str, Any] = msgspec.json.decode(_bytes(claims), type=dict[str, Any])
            raw = _bytes(signature)
        except (ValueError, RecursionError, binascii.Error, msgspec.MsgspecError):
            return None
        if head.get("kid") not in (None, "", self.key_id):
            return ParsedToken(payload, "invalid signature, no keys found")
        signed = head.get("alg") == "ES256" and self._has_valid_signature(f"{header}.{claims}".encode(), raw)
        return ParsedToken(payload, "" if signed else "go-jose/go-jose: error in cryptographic primitive")

    def _has_valid_signature(self, text: bytes, raw: bytes) -> bool:
        if len(raw) != 64:
            return False
        r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
        try:
            self._public.verify(encode_dss_signature(r, s), text, _ALGORITHM)
        except InvalidSignature:
            return False
        return True

    def jwks(self) -> dict[str, Any]:
        numbers = self._public.public_numbers()
        return {
            "keys": [
                {
                    "use": "sig",
                    "kty": "EC",
                    "kid": self.key_id,
                    "crv": "P-256",
                    "alg": "ES256",
                    "x": _text(numbers.x.to_bytes(32, "big")),
                    "y": _text(numbers.y.to_bytes(32, "big")),
                }
            ]
        }


def openid_configuration() -> dict[str, Any]:
    return {
        "issuer": ISSUER,
        "jwks_uri": f"{ISSUER}/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
