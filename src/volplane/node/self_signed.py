"""A serving certificate for a node that was given none, signed by itself, as the kubelet makes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from volplane.base.files import atomic_write

CERTIFICATE, KEY = "kubelet.crt", "kubelet.key"
LIFETIME = timedelta(days=365)
RENEW_BEFORE = timedelta(days=30)


def ensure_certificate(directory: str, name: str, hosts: Sequence[str]) -> tuple[str, str]:
    """The files of a certificate for these hosts and its key; made if there is none that is still good."""
    certificate, key = os.path.join(directory, CERTIFICATE), os.path.join(directory, KEY)
    if not (os.path.exists(key) and _is_good(certificate, hosts)):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        made, secret = _make(name, hosts)
        atomic_write(key, secret, 0o600)
        atomic_write(certificate, made, 0o644)
    return certificate, key


def _is_good(path: str, hosts: Sequence[str]) -> bool:
    try:
        with open(path, "rb") as file:
            known = x509.load_pem_x509_certificate(file.read())
        names = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    lasting = known.not_valid_after_utc - RENEW_BEFORE > datetime.now(UTC)
    return lasting and set(names) == set(_alternative_names(hosts))


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [_alternative_name(host) for host in dict.fromkeys(hosts)]


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _make(name: str, hosts: Sequence[str]) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name}@{int(now.timestamp())}"[:64])])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(encoding, form, serialization.NoEncryption())
    return made.public_bytes(encoding), secret
