"""TLS bootstrap: with a bootstrap token a machine requests the client certificate of its node.

The key is written to disk before the request, and the request is named after it. So a kubelet that is killed
finds the same request again, with the certificate that was issued meanwhile. The token is not needed
afterwards, unless the certificate expires while the machine is off.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from volplane.api.certificates import CertificateSigningRequest, CertificateSigningRequestSpec
from volplane.api.errors import APIError, Unavailable
from volplane.api.meta import ObjectMeta
from volplane.base.backoff import Backoff
from volplane.base.files import atomic_write
from volplane.base.retry import retry
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.node.options import CLIENT_CERTIFICATE_FILE as PAIR

log = logging.getLogger(__name__)

SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
USAGES = ("digital signature", "client auth")
KEY = "kubelet-client.key.tmp"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
SERVING_USAGES = ("digital signature", "server auth")
SERVING, SERVING_KEY = "kubelet-server-current.pem", "kubelet-server.key.tmp"
AUTHORITY = "ca.crt"  # of the cluster; signs the clients of the kubelet API
SHARE = 0.8  # of its lifetime, after which a certificate is renewed
RETRY = Backoff(0.1, 10.0)


class BootstrapRefused(Exception):
    """The cluster has refused the certificate; the text is the reason."""


async def request_client_certificate(*, name: str, bootstrap: str, config: str, directory: str) -> None:
    """Until the kubeconfig `config` is written, unless it is valid already. Raises BootstrapRefused."""
    if _exists(config) and not _has_expired(Path(directory) / PAIR):
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    key = _key(Path(directory) / KEY)
    transport = kubeconfig.load(bootstrap, agent="kubelet")
    client = Client(transport, component="kubelet")
    try:
        certificate = await _request_certificate(client, SIGNER, USAGES, _request(name, key))
    finally:
        await client.close()
        await transport.close()
    _write(name, bootstrap, config, Path(directory), certificate + _text(key))
    log.info("got the client certificate of node %s", name)


def _exists(path: str) -> bool:
    return os.path.exists(path)


def _write(name: str, bootstrap: str, config: str, directory: Path, both: bytes) -> None:
    """Blocking: nothing else runs yet. The kubeconfig is written last: it marks the bootstrap as done."""
    pair = directory / PAIR
    atomic_write(str(pair), both, 0o600, durable=True)
    user = {"client-certificate": str(pair), "client-key": str(pair)}
    config_of = kubeconfig.for_user(bootstrap, f"system:node:{name}", user)
    if authority := config_of["clusters"][0]["cluster"].get("certificate-authority-data"):
        atomic_write(str(directory / AUTHORITY), base64.b64decode(authority), 0o644, durable=True)
    mine = yaml.safe_dump(config_of)
    os.makedirs(os.path.dirname(os.path.abspath(config)), exist_ok=True)
    atomic_write(config, mine.encode(), 0o600, durable=True)
    (directory / KEY).unlink(missing_ok=True)


async def renew_client_certificate(client: Client, *, name: str, directory: str) -> str:
    """Request a new client certificate with the present one; the file with it. Raises BootstrapRefused."""
    pair, path = Path(directory) / PAIR, Path(directory) / KEY
    if _is_key_of(path, pair):  # the last renewal was killed before it removed the key
        path.unlink()
    key = _key(path)
    text = await _request_certificate(client, SIGNER, USAGES, _request(name, key))
    atomic_write(str(pair), text + _text(key), 0o600, durable=True)
    path.unlink(missing_ok=True)
    return str(pair)


def seconds_until_renewal(pair: str, share: float) -> float:
    """Seconds until that share of the certificate's lifetime has passed; negative: overdue."""
    held = x509.load_pem_x509_certificate(Path(pair).read_bytes())
    start, lifetime = held.not_valid_before_utc, held.not_valid_after_utc - held.not_valid_before_utc
    return (start + lifetime * share - datetime.now(UTC)).total_seconds()


def _has_expired(pair: Path) -> bool:
    try:
        return seconds_until_renewal(str(pair), 1.0) <= 0
    except (FileNotFoundError, ValueError):
        return False  # the kubeconfig has other credentials


def _is_key_of(path: Path, pair: Path) -> bool:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
        return key.public_key() == x509.load_pem_x509_certificate(pair.read_bytes()).public_key()
    except (FileNotFoundError, ValueError):
        return False


async def request_serving_certificate(client: Client, *, name: str, address: str, directory: str) -> str:
    """The file with the serving certificate of the kubelet API. A person has to approve the request.

    Raises BootstrapRefused.
    """
    pair = Path(directory) / SERVING
    if _is_valid(pair):
        return str(pair)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    key = _key(Path(directory) / SERVING_KEY)
    request = _request(name, key, (name, address))
    text = await _request_certificate(client, SERVING_SIGNER, SERVING_USAGES, request)
    atomic_write(str(pair), text + _text(key), 0o600, durable=True)
    (Path(directory) / SERVING_KEY).unlink(missing_ok=True)
    return str(pair)


def _is_valid(pair: Path) -> bool:
    """Whether it exists and is not due for renewal."""
    try:
        return seconds_until_renewal(str(pair), SHARE) > 0
    except (FileNotFoundError, ValueError):
        return False


async def _request_certificate(client: Client, signer: str, usages: tuple[str, ...], text: bytes) -> bytes:
    request = CertificateSigningRequest(
        metadata=ObjectMeta(name=_request_name(text)),
        spec=CertificateSigningRequestSpec(request=text, signer_name=signer, usages=usages),
    )

    async def ask() -> bytes:
        made = await client.create(request, exists_ok=True)
        return _read_certificate(made) or await _wait_for_approval(client, made)

    try:
        # The cluster may not be up yet, or the connection breaks.
        return await retry(
            ask,
            on=(Unavailable, TimeoutError),
            backoff=RETRY,
            report=lambda error: log.warning("no certificate yet: %s", error),
        )
    except APIError as error:
        raise BootstrapRefused(f"the request for a certificate was refused: {error}") from error


async def _wait_for_approval(client: Client, made: CertificateSigningRequest) -> bytes:
    """No timeout: a person may have to approve the request."""
    log.info("waiting for approval of signing request %s", made.name)
    fields = f"metadata.name={made.name}"
    async for change in client.watch(CertificateSigningRequest, fields=fields, revision=made.revision):
        if change.object is not None and (text := _read_certificate(change.object)):
            return text
    raise Unavailable("the watch ended")


def _read_certificate(request: CertificateSigningRequest) -> bytes:
    for condition in request.status.conditions:
        if condition.type in ("Denied", "Failed"):
            raise BootstrapRefused(
                f"signing request {request.name} was {condition.type.lower()}: {condition.message}"
            )
    return request.status.certificate


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        known = load_pem_private_key(path.read_bytes(), None)
        if isinstance(known, ec.EllipticCurvePrivateKey):
            return known
    except (FileNotFoundError, ValueError):
        pass
    made = ec.generate_private_key(ec.SECP256R1())
    atomic_write(str(path), _text(made), 0o600, durable=True)
    return made


def _text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _request(name: str, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str] = ()) -> bytes:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{name}"),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if hosts:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _request_name(text: bytes) -> str:
    key = x509.load_pem_x509_csr(text).public_key()
    public = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"node-csr-{hashlib.sha256(public).hexdigest()}"
