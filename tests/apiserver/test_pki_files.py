"""The private CA after a restart: intact files are kept, damaged ones are recreated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from volplane.apiserver.auth.certificates import CertificateAuthority, CertificateFiles, UnusableKey
from volplane.apiserver.auth.issuer import TokenIssuer


def create_pki(directory: Path) -> tuple[CertificateAuthority, CertificateFiles, CertificateFiles]:
    authority = CertificateAuthority(directory)
    server = authority.server("apiserver", ("127.0.0.1",))
    return authority, server, authority.client("admin", "admin", ("system:masters",))


def test_a_restart_reuses_all_files(tmp_path: Path) -> None:
    _, server, client = create_pki(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert create_pki(tmp_path)[1:] == (server, client)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("lost", ["ca.crt", "apiserver.crt", "apiserver.key", "admin.crt"])
def test_a_missing_file_is_recreated_and_matches_the_others(tmp_path: Path, lost: str) -> None:
    create_pki(tmp_path)
    (tmp_path / lost).unlink()
    authority, server, client = create_pki(tmp_path)
    for pair in (server, client):
        certificate = x509.load_pem_x509_certificate(pair.cert)
        certificate.verify_directly_issued_by(authority.certificate)
        assert certificate.public_key() == load_pem_private_key(pair.key, password=None).public_key()


DAMAGE = pytest.mark.parametrize(
    "damaged",
    [lambda old: b"", lambda old: old[: len(old) // 2], lambda old: b"\xff\x00" * 100],
    ids=["empty", "cut short", "garbled"],
)


@DAMAGE
@pytest.mark.parametrize("name", ["ca.crt", "apiserver.crt", "apiserver.key", "admin.crt", "admin.key"])
def test_an_unreadable_file_is_recreated(
    tmp_path: Path, name: str, damaged: Callable[[bytes], bytes]
) -> None:
    before = create_pki(tmp_path)[0].certificate.public_key()
    (tmp_path / name).write_bytes(damaged((tmp_path / name).read_bytes()))
    authority, server, client = create_pki(tmp_path)
    assert authority.certificate.public_key() == before  # clients that trusted it still do
    for pair in (server, client):
        certificate = x509.load_pem_x509_certificate(pair.cert)
        certificate.verify_directly_issued_by(authority.certificate)
        assert certificate.public_key() == load_pem_private_key(pair.key, password=None).public_key()


def lose_key(old: bytes) -> bytes | None:
    return None


def replace_key(old: bytes) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize("damaged", [lose_key, replace_key, lambda old: b"", lambda old: old[:100]])
def test_a_lost_ca_key_is_reported_and_nothing_is_changed(
    tmp_path: Path, damaged: Callable[[bytes], bytes | None]
) -> None:
    create_pki(tmp_path)
    key = tmp_path / "ca.key"
    content = damaged(key.read_bytes())
    key.unlink()
    if content is not None:
        key.write_bytes(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UnusableKey, match=f"cannot use the key {key}: .*Restore it from a backup"):
        create_pki(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@DAMAGE
def test_an_unreadable_service_account_key_is_reported(
    tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "sa.key"
    TokenIssuer.load(path)
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(UnusableKey, match=f"cannot use the key {path}"):
        TokenIssuer.load(path)
