"""Read signing requests, and sign certificates with the cluster's CA."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from volplane.controllers.csr.plan import RequestSubject

LONGEST = timedelta(days=365)
BACKDATED = timedelta(minutes=5)  # tolerance for clock skew


class UnreadableRequest(ValueError):
    """Not a signing request, or not signed by its own key."""


class CertificateSigner:
    def __init__(self, certificate: bytes, key: bytes) -> None:
        self._certificate = x509.load_pem_x509_certificate(certificate)
        loaded = load_pem_private_key(key, password=None)
        assert isinstance(loaded, EllipticCurvePrivateKey | RSAPrivateKey)
        self._key = loaded

    def sign(self, request: bytes, usages: tuple[str, ...], seconds: int | None) -> bytes:
        """The certificate as PEM; only subject and names are taken from the request."""
        asked = _load(request)
        now = datetime.now(UTC)  # certificates are checked by the machine's clock, not by a virtual one
        lasts = min(timedelta(seconds=seconds), LONGEST) if seconds else LONGEST
        builder = (
            x509.CertificateBuilder()
            .subject_name(asked.subject)
            .issuer_name(self._certificate.subject)
            .public_key(asked.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(min(now + lasts, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(usages), critical=True)
            .add_extension(x509.ExtendedKeyUsage(list(_extended_usages(usages))), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        names = _names(asked)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def subject_of(request: bytes) -> RequestSubject:
    try:
        asked = _load(request)
    except UnreadableRequest:
        return RequestSubject()
    common = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = asked.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    names = _names(asked) or ()
    hosts = tuple(str(n.value) for n in names if isinstance(n, x509.DNSName | x509.IPAddress))
    return RequestSubject(
        name=str(common[0].value) if common else "",
        groups=tuple(str(g.value) for g in groups),
        hosts=hosts,
        others=len(hosts) != len(tuple(names)),
    )


def _load(request: bytes) -> x509.CertificateSigningRequest:
    try:
        asked = x509.load_pem_x509_csr(request)
    except ValueError as error:
        raise UnreadableRequest(str(error)) from error
    if not asked.is_signature_valid:
        raise UnreadableRequest("the request is not signed by its own key")
    return asked


def _names(asked: x509.CertificateSigningRequest) -> x509.SubjectAlternativeName | None:
    try:
        return asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _extended_usages(usages: tuple[str, ...]) -> list[x509.ObjectIdentifier]:
    known = {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH, "server auth": ExtendedKeyUsageOID.SERVER_AUTH}
    return [known[usage] for usage in usages if usage in known]


def _key_usage(usages: tuple[str, ...]) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature="digital signature" in usages,
        key_encipherment="key encipherment" in usages,
        key_cert_sign=False,
        crl_sign=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
