"""The private CA, the serving certificate and the client certificates that it signs.

The files are created once in the data directory and reused after a restart, so that kubeconfigs stay valid.
Keys are elliptic (P-256): generating an RSA key takes longer than starting the whole server.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from volplane.base.files import UnusableFile, atomic_write

log = logging.getLogger(__name__)

LIFETIME = timedelta(days=3650)
RENEW_BEFORE = timedelta(days=30)
BACKDATED = timedelta(minutes=5)  # tolerance for clocks that are behind


class UnusableKey(UnusableFile):
    """A private key that cannot be read and must not be replaced silently."""

    def __init__(self, path: Path, why: object, *, also: Path | None = None) -> None:
        gone = f"{path} and {also}" if also else str(path)
        super().__init__(
            f"cannot use the key {path}: {_first_sentence(why)}. Restore it from a backup; if there is none, "
            f"remove {gone}: a new key is created, and everything signed with the old one becomes invalid"
        )


def _first_sentence(why: object) -> str:
    return str(why).partition(". ")[0].rstrip(".")


class CertificateFiles(Struct, frozen=True):
    """A certificate and its key, as PEM files."""

    cert_path: Path
    key_path: Path

    @property
    def cert(self) -> bytes:
        return self.cert_path.read_bytes()

    @property
    def key(self) -> bytes:
        return self.key_path.read_bytes()


class CertificateState(Struct, frozen=True):
    """A certificate of a directory, for people."""

    path: Path
    expires: datetime | None = None  # None: it cannot be read
    problem: str = ""

    @property
    def days_left(self) -> int:
        return (self.expires - datetime.now(UTC)).days if self.expires is not None else 0


def inspect_certificates(directory: Path) -> list[CertificateState]:
    """All certificates of a directory, those that expire first at the beginning. Changes nothing."""
    pairs = [_pair(directory, path.stem) for path in directory.glob("*.crt")]
    authority = _read_certificate(_pair(directory, "ca"))
    found = [_inspect(pair, authority) for pair in pairs]
    return sorted(found, key=lambda state: (state.expires or datetime.min.replace(tzinfo=UTC), state.path))


def _inspect(pair: CertificateFiles, authority: x509.Certificate | None) -> CertificateState:
    certificate = _read_certificate(pair)
    if certificate is None:
        return CertificateState(pair.cert_path, problem="it cannot be read; the next start replaces it")
    expires, problem = certificate.not_valid_after_utc, ""
    try:
        if load_key(pair.key_path).public_key() != certificate.public_key():
            problem = f"{pair.key_path.name} is not its key"
    except (OSError, ValueError) as error:
        problem = f"its key cannot be used: {_first_sentence(error)}"
    if not problem and authority is not None and not _is_signed_by(certificate, authority):
        problem = "it was signed by another CA"
    if problem and pair.cert_path.stem != "ca":
        problem += "; the next start replaces it"
    return CertificateState(pair.cert_path, expires, problem)


class CertificateAuthority:
    """The CA of one data directory."""

    def __init__(self, directory: Path) -> None:
        """Raise UnusableKey, without changing anything, if the CA's key exists but cannot be used."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.pair = _pair(directory, "ca")
        self._key, self.certificate = _load_or_create_ca(self.pair)

    def server(self, name: str, hosts: Sequence[str]) -> CertificateFiles:
        """Return the certificate of an HTTPS server; sign a new one if it lacks one of the names."""
        pair = _pair(self.directory, name)
        if not _is_usable(pair, self.certificate) or not _covers(pair, hosts):
            alternatives = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
            self._sign(pair, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, [alternatives])
        return pair

    def client(self, name: str, user: str, groups: Iterable[str] = ()) -> CertificateFiles:
        """Return a client certificate: the common name is the user, the organizations are the groups.

        A certificate for another user or other groups is replaced.
        """
        pair, subject = _pair(self.directory, name), _name(user, groups)
        if not _is_usable(pair, self.certificate) or _subject(pair) != subject:
            self._sign(pair, subject, ExtendedKeyUsageOID.CLIENT_AUTH, [])
        return pair

    def _sign(
        self,
        pair: CertificateFiles,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        more: list[x509.ExtensionType],
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self.certificate.subject, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        _write(pair, builder.sign(self._key, hashes.SHA256()), key)


def _load_or_create_ca(pair: CertificateFiles) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Load or create the CA. A lost or damaged certificate is signed again with the same key: clients that
    trust the old certificate also trust the new one. The key itself cannot be replaced.
    """
    known = _read_certificate(pair)
    try:
        key = load_key(pair.key_path)
    except FileNotFoundError:
        if pair.cert_path.exists():
            what = "it is missing, and the kubeconfigs of this cluster trust only what it has signed"
            raise UnusableKey(pair.key_path, what, also=pair.cert_path) from None
        return _write_root(pair, ec.generate_private_key(ec.SECP256R1()))
    except ValueError as error:
        raise UnusableKey(pair.key_path, error, also=pair.cert_path) from None
    if known is None or not _is_signed_by(known, known):
        if pair.cert_path.exists():
            log.warning("cannot read %s: signed a new certificate with the same key", pair.cert_path)
        return _write_root(pair, key)
    if known.public_key() != key.public_key():
        raise UnusableKey(pair.key_path, f"it is not the key of {pair.cert_path.name}", also=pair.cert_path)
    if _ends_soon(known):
        return _write_root(pair, ec.generate_private_key(ec.SECP256R1()))
    return key, known


def _write_root(
    pair: CertificateFiles, key: ec.EllipticCurvePrivateKey
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    certificate = _sign_root(key)
    _write(pair, certificate, key)
    return key, certificate


def _sign_root(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("volplane-ca")
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = builder.add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return builder.sign(key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)  # TLS checks certificates against the real clock, not the virtual one
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
    )


def _name(common: str, organizations: Iterable[str] = ()) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(directory: Path, name: str) -> CertificateFiles:
    return CertificateFiles(directory / f"{name}.crt", directory / f"{name}.key")


def _is_usable(pair: CertificateFiles, issuer: x509.Certificate) -> bool:
    """Return False if anything is wrong; the caller then signs a new certificate."""
    certificate = _read_certificate(pair)
    if certificate is None or _ends_soon(certificate) or not _is_signed_by(certificate, issuer):
        return False
    try:
        return load_key(pair.key_path).public_key() == certificate.public_key()
    except (OSError, ValueError):
        return False


def _read_certificate(pair: CertificateFiles) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(pair.cert)
    except (OSError, ValueError):
        return None


def _ends_soon(certificate: x509.Certificate) -> bool:
    return certificate.not_valid_after_utc - RENEW_BEFORE < datetime.now(UTC)


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Compare by key, because a recreated CA has the same name."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _subject(pair: CertificateFiles) -> x509.Name:
    return x509.load_pem_x509_certificate(pair.cert).subject


def _covers(pair: CertificateFiles, hosts: Sequence[str]) -> bool:
    certificate = x509.load_pem_x509_certificate(pair.cert)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return set(names) >= {_alternative_name(host) for host in hosts}


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Raise OSError, or ValueError if it is not an elliptic curve private key."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except TypeError as error:  # it is encrypted
        raise ValueError(str(error)) from error
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is not an elliptic curve key")
    return key


def _write(pair: CertificateFiles, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    # A crash must not leave an old certificate with a new key: remove the certificate, then write the key.
    pair.cert_path.unlink(missing_ok=True)
    write_private(pair.key_path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_private(pair.cert_path, certificate.public_bytes(Encoding.PEM))


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically and durably, readable by the owner only."""
    atomic_write(str(path), data, durable=True)
