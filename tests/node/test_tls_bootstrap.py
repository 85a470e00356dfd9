"""TLS bootstrap over a real socket, also when it is interrupted."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from tests.loops.inprocess import running, until
from volplane import apiserver
from volplane.api.certificates import CertificateSigningRequest
from volplane.api.codec import convert
from volplane.api.core import Node, Secret
from volplane.api.errors import Forbidden, Unauthorized
from volplane.apiserver.server import RunningApiServer
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.client.kubeconfig import load
from volplane.cluster.apply import apply
from volplane.controllers.csr.controller import SigningRequests
from volplane.controllers.csr.signing import CertificateSigner
from volplane.host import Host
from volplane.node import certificate_rotation
from volplane.node.options import CLIENT_CERTIFICATE_FILE as PAIR
from volplane.node.tls_bootstrap import (
    KEY,
    BootstrapRefused,
    request_client_certificate,
    request_serving_certificate,
)
from volplane.store.memory import MemoryStore
from volplane.web import tls

TOKEN = "abcdef.0123456789abcdef"
NAME = "edge-1"


class Cluster:
    def __init__(self, server: RunningApiServer, client: Client, directory: Path) -> None:
        self.server, self.client, self.directory = server, client, directory
        self.bootstrap = str(directory / "bootstrap")
        self.config = str(directory / "node" / "kubeconfig")
        self.pki = str(directory / "node" / "pki")

    async def offer_token(self) -> None:
        """Create a bootstrap token in the cluster, and a kubeconfig with it for the machine."""
        body = {
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": "abcdef",
                "token-secret": "0123456789abcdef",
                "usage-bootstrap-authentication": "true",
            },
        }
        await self.client.create(convert(Secret, body))

    def write_bootstrap(self) -> None:
        config = yaml.safe_load((self.directory / "kubeconfig").read_text())
        config["users"] = [{"name": user["name"], "user": {"token": TOKEN}} for user in config["users"]]
        Path(self.bootstrap).write_text(yaml.safe_dump(config))

    async def join(self) -> None:
        async with asyncio.timeout(60):
            await request_client_certificate(
                name=NAME, bootstrap=self.bootstrap, config=self.config, directory=self.pki
            )

    @asynccontextmanager
    async def signer(self) -> AsyncIterator[None]:
        pair = self.server.authority.pair
        work = SigningRequests(self.client, certificate=pair.cert, key=pair.key)
        async with running(work.run()):
            yield

    def shorten(self, pair: str, *, seconds: int = 8) -> x509.Certificate:
        """Another certificate for the same key, about to expire."""
        return self._signed(pair, seconds)

    def lengthen(self, pair: str) -> str:
        self._signed(pair, 3600)
        return pair

    def _signed(self, pair: str, seconds: int) -> x509.Certificate:
        key = load_pem_private_key(Path(pair).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        names = [("system:nodes", NameOID.ORGANIZATION_NAME), (f"system:node:{NAME}", NameOID.COMMON_NAME)]
        subject = x509.Name([x509.NameAttribute(oid, value) for value, oid in names])
        asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        authority = CertificateSigner(self.server.authority.pair.cert, self.server.authority.pair.key)
        usages = ("digital signature", "client auth", "server auth")
        text = authority.sign(asked.public_bytes(Encoding.PEM), usages, seconds)
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        Path(pair).write_bytes(text + plain)
        return x509.load_pem_x509_certificate(text)

    async def requests(self) -> list[CertificateSigningRequest]:
        return await self.client.list(CertificateSigningRequest)


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    store = MemoryStore()
    server = await apiserver.run(apiserver.ApiServerOptions(data_dir=str(directory)), store)
    try:
        async with Caches(server.in_process_transport()) as caches:
            client = Client(server.in_process_transport(), caches=caches, component="test")
            await apply(client)
            made = Cluster(server, client, directory)
            made.write_bootstrap()
            await made.offer_token()
            yield made
    finally:
        await server.close(0)
        await store.close()


async def identity(here: Cluster) -> str:
    """The user of the written kubeconfig, found by what the server allows it."""
    transport = load(here.config)
    client = Client(transport)
    try:
        made = convert(Node, {"metadata": {"name": NAME}})
        await client.create(made)
        with pytest.raises(Forbidden, match=r"system:node:edge-1|only its own"):
            await client.get(Node, "another")
        return (await client.get(Node, NAME)).name
    finally:
        await client.close()
        await transport.close()


async def test_a_machine_with_a_token_gets_a_certificate_of_its_own(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, here.signer():
        await here.join()
        assert await identity(here) == NAME
        assert os.stat(here.config).st_mode & 0o777 == 0o600
        assert os.stat(f"{here.pki}/{PAIR}").st_mode & 0o777 == 0o600
        assert TOKEN not in read(here.config)
        (request,) = await here.requests()
        assert request.spec.username == "system:bootstrap:abcdef"
        before = read(here.config)
        await here.client.delete(Secret, "bootstrap-token-abcdef", "kube-system")
        await here.join()  # a node that is one already needs no token
        assert read(here.config) == before


async def test_a_machine_that_was_killed_half_way_finds_its_request_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here:
        first = asyncio.create_task(here.join())
        await until(here.requests, 60)
        first.cancel()
        await asyncio.wait({first})
        assert there(f"{here.pki}/{KEY}")
        async with here.signer():
            await here.join()
        assert len(await here.requests()) == 1
        assert await identity(here) == NAME
        assert not there(f"{here.pki}/{KEY}")


async def test_a_node_asks_for_a_serving_certificate_that_a_person_approves(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, here.signer():
        await here.join()
        transport = load(here.config)
        node = Client(transport)
        try:
            asked = asyncio.create_task(
                request_serving_certificate(node, name=NAME, address="127.0.0.1", directory=here.pki)
            )

            async def requested() -> CertificateSigningRequest | None:
                found = [r for r in await here.requests() if r.spec.signer_name.endswith("kubelet-serving")]
                return found[0] if found else None

            request = await until(requested, 60)
            await asyncio.sleep(0.1)
            assert not asked.done()
            approved = {"type": "Approved", "status": "True", "reason": "Known", "message": "it is ours"}
            await here.client.patch(
                CertificateSigningRequest,
                request.name,
                merge={"status": {"conditions": [approved]}},
                subresource="approval",
            )
            pair = await asyncio.wait_for(asked, 60)
            made = x509.load_pem_x509_certificate(read(pair).encode())
            names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            assert names.get_values_for_type(x509.DNSName) == [NAME]
            assert len(await here.requests()) == 2
            again = await request_serving_certificate(
                node, name=NAME, address="127.0.0.1", directory=here.pki
            )
            assert (again, len(await here.requests())) == (pair, 2)
        finally:
            await node.close()
            await transport.close()


async def test_a_node_renews_its_certificate_and_shows_the_new_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, here.signer():
        await here.join()
        old = here.shorten(f"{here.pki}/{PAIR}")
        await node_is_there(here)
        transport, host = load(here.config), Host()
        client = Client(transport)
        keeping = certificate_rotation.rotate_client_certificate(
            client, host, transport.use_certificate, name=NAME, directory=here.pki
        )
        try:
            assert (await client.get(Node, NAME)).name == NAME  # a connection with the old one is open
            async with running(keeping):
                await so(lambda: serial(f"{here.pki}/{PAIR}") != old.serial_number, 60)
                request = max(await here.requests(), key=lambda r: r.revision)
                assert request.spec.username == f"system:node:{NAME}"
                assert "self kubelet client" in request.status.conditions[0].message
                assert not there(f"{here.pki}/{KEY}")
                await so(lambda: old.not_valid_after_utc < datetime.now(UTC), 60)
                assert (await client.get(Node, NAME)).name == NAME
                assert len(await here.requests()) == 2  # once, until the new one is old
        finally:
            await client.close()
            await transport.close()
            await host.close()


async def test_a_machine_that_was_away_for_too_long_joins_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, here.signer():
        await here.join()
        old = here.shorten(f"{here.pki}/{PAIR}", seconds=1)
        # The server reads a coarser clock, which turns to the next second a few milliseconds later.
        await so(lambda: old.not_valid_after_utc + timedelta(seconds=1) < datetime.now(UTC), 60)
        with pytest.raises(Unauthorized):
            await identity(here)
        await here.join()
        assert await identity(here) == NAME


async def test_a_serving_certificate_is_renewed_in_place(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, here.signer():
        await here.join()
        pair, asked = f"{here.pki}/{PAIR}", 0
        context = tls.server_context(pair, pair)
        old = here.shorten(pair)

        async def renew() -> str:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise BootstrapRefused("nobody has approved it")
            return str(here.lengthen(pair))

        host = Host()
        renewing_it = certificate_rotation.rotate_serving_certificate(pair, host, renew, context)
        try:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(certificate_rotation, "RETRY_PAUSE", 0.01)
                async with running(renewing_it):
                    await so(lambda: serial(pair) != old.serial_number, 60)
                    await so(lambda: shown_by(context) == serial(pair), 60)
        finally:
            await host.close()
        assert asked == 2


async def test_a_machine_that_is_denied_is_told_so(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here:
        joining = asyncio.create_task(here.join())
        (request,) = await until(here.requests, 60)
        denied = {"type": "Denied", "status": "True", "reason": "Unknown", "message": "never seen it"}
        await here.client.patch(
            CertificateSigningRequest,
            request.name,
            merge={"status": {"conditions": [denied]}},
            subresource="approval",
        )
        with pytest.raises(BootstrapRefused, match="never seen it"):
            await joining
        assert not there(here.config)


async def test_a_wrong_token_is_told_so(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here:
        wrong: Any = yaml.safe_load(read(here.bootstrap))
        wrong["users"] = [
            {"name": u["name"], "user": {"token": "aaaaaa.bbbbbbbbbbbbbbbb"}} for u in wrong["users"]
        ]
        write(here.bootstrap, yaml.safe_dump(wrong))
        with pytest.raises(BootstrapRefused, match="refused"):
            await here.join()


async def so(test: Callable[[], bool], seconds: float) -> None:
    async def tested() -> bool:
        return test()

    await until(tested, seconds)


async def node_is_there(here: Cluster) -> None:
    await here.client.create(convert(Node, {"metadata": {"name": NAME}}))


def serial(pair: str) -> int:
    return x509.load_pem_x509_certificate(Path(pair).read_bytes()).serial_number


def shown_by(context: ssl.SSLContext) -> int:
    """The certificate that a client gets, in a handshake without a network."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there)
    theirs = context.wrap_bio(there, back, server_side=True)
    for side in (ours, theirs, ours, theirs):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    shown = ours.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def there(path: str) -> bool:
    return Path(path).exists()


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str, text: str) -> None:
    Path(path).write_text(text)
