"""The private CA after a restart: kept where it is whole, made anew where a crash left a part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from volplane.apiserver.auth.certificates import Authority, Pair


def made(directory: Path) -> tuple[Authority, Pair, Pair]:
    authority = Authority(directory)
    server = authority.server("apiserver", ("127.0.0.1",))
    return authority, server, authority.client("admin", "admin", ("system:masters",))


def test_a_restart_finds_everything_again(tmp_path: Path) -> None:
    _, server, client = made(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made(tmp_path)[1:] == (server, client)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("lost", ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "admin.crt"])
def test_a_part_that_is_missing_is_made_again_and_fits_the_rest(tmp_path: Path, lost: str) -> None:
    made(tmp_path)
    (tmp_path / lost).unlink()
    authority, server, client = made(tmp_path)
    for pair in (server, client):
        certificate = x509.load_pem_x509_certificate(pair.cert)
        certificate.verify_directly_issued_by(authority.certificate)
        assert certificate.public_key() == load_pem_private_key(pair.key, password=None).public_key()
