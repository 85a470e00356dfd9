"""certificates.k8s.io: signing requests, and a machine that becomes a node by a bootstrap token."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.contract.api_server.people import person
from tests.contract.api_server.samples import make
from tests.contract.api_server.test_h_kubectl import Kubectl
from tests.loops.inprocess import running, until
from volplane import web
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.cluster.apply import apply
from volplane.controllers.csr.controller import SigningRequests
from volplane.web import tls

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING = "kubernetes.io/kubelet-serving"
USAGES = ["digital signature", "client auth"]
TOKEN = "abcdef.0123456789abcdef"


class Key:
    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())

    def pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def request(self, name: str, *groups: str, hosts: Sequence[str] = ()) -> str:
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        text = builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)
        return base64.b64encode(text).decode()


def asked(text: str, signer: str = CLIENT, usages: Sequence[str] = USAGES, **more: Any) -> Any:
    spec = {"request": text, "signerName": signer, "usages": list(usages), **more}
    return {"metadata": {"name": "r"}, "spec": spec}


def node_request(key: Key | None = None, **more: Any) -> Any:
    return asked((key or Key()).request("system:node:n9", "system:nodes"), **more)


def token(**data: str) -> Any:
    given = {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        **data,
    }
    return {
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": given,
    }


@asynccontextmanager
async def with_signer(api: Any) -> AsyncIterator[None]:
    """The controller over the server's own authority, and the roles of the manifests."""
    pair = api.server.authority.pair
    async with Caches(api.server.in_process_transport()) as caches:
        client = Client(api.server.in_process_transport(), caches=caches, component="csr")
        await apply(client)
        async with running(SigningRequests(client, certificate=pair.cert, key=pair.key).run()):
            yield


async def issued(who: Any, name: str = "r") -> bytes:
    async with asyncio.timeout(60):
        while True:
            found = (await who.get(f"{REQUESTS}/{name}")).json
            if text := found.get("status", {}).get("certificate"):
                return base64.b64decode(text)
            await asyncio.sleep(0.01)


async def test_a_machine_with_a_bootstrap_token_becomes_a_node(served: Any, tmp_path: Path) -> None:
    async with served() as api, with_signer(api):
        await make(api, "/api/v1/namespaces/kube-system/secrets", token())
        key = Key()
        async with person(api.server, token=TOKEN) as machine:
            made = await machine.post(REQUESTS, node_request(key))
            assert made.status == 201, made.json
            assert made.json["spec"]["username"] == "system:bootstrap:abcdef"
            assert "system:bootstrappers" in made.json["spec"]["groups"]
            certificate = await issued(machine)
            assert (await machine.get("/api/v1/nodes/n9")).status == 403
        found = (await api.get(f"{REQUESTS}/r")).json["status"]["conditions"]
        assert [(c["type"], c["status"], c["reason"]) for c in found] == [
            ("Approved", "True", "AutoApproved")
        ]
        (tmp_path / "n.crt").write_bytes(certificate)
        (tmp_path / "n.key").write_bytes(key.pem())
        context = tls.client_context(
            str(api.server.authority.pair.cert_path), str(tmp_path / "n.crt"), str(tmp_path / "n.key")
        )
        node = web.HttpClient(api.server.url, ssl=context)
        created = await node.request("POST", "/api/v1/nodes", body=b'{"metadata":{"name":"n9"}}')
        await node.close()
        assert created.status == 201, created.body


@pytest.mark.parametrize(
    "change",
    [
        {"token-secret": "ffffffffffffffff"},
        {"usage-bootstrap-authentication": "false"},
        {"expiration": "2020-01-02T03:04:05Z"},
        {"expiration": "nonsense"},
        {"token-id": "bbbbbb"},
    ],
)
async def test_a_bootstrap_token_that_is_not_good(shared: Any, change: dict[str, str]) -> None:
    path = "/api/v1/namespaces/kube-system/secrets"
    async with shared() as api:
        await make(api, path, token(**change))
        async with person(shared.server, token=TOKEN) as machine:
            assert (await machine.get("/version")).status == 401
        await api.delete(f"{path}/bootstrap-token-abcdef")


async def test_extra_groups_of_a_bootstrap_token(shared: Any) -> None:
    path = "/api/v1/namespaces/kube-system/secrets"
    async with shared() as api:
        groups = "system:bootstrappers:workers, system:masters"
        await make(api, path, token(**{"auth-extra-groups": groups}))
        async with person(shared.server, token=TOKEN) as machine:
            body: dict[str, Any] = {"metadata": {}}
            review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            who = (await machine.post(review, body)).json["status"]["userInfo"]
        assert set(who["groups"]) == {
            "system:bootstrappers",
            "system:bootstrappers:workers",
            "system:authenticated",
        }
        await api.delete(f"{path}/bootstrap-token-abcdef")


async def test_others_wait_for_approval_and_serving_certificates_name_their_hosts(served: Any) -> None:
    async with served() as api, with_signer(api):
        key = Key()
        text = key.request("system:node:n1", "system:nodes", hosts=("n1.example.com",))
        await make(api, REQUESTS, asked(text, SERVING, ["digital signature", "server auth"]))
        verdict = {"type": "Approved", "status": "True", "reason": "ByHand"}
        approved = await api.merge(f"{REQUESTS}/r/approval", {"status": {"conditions": [verdict]}})
        assert approved.status == 200, approved.json
        assert approved.json["status"]["conditions"][0]["lastUpdateTime"]
        certificate = x509.load_pem_x509_certificate(await issued(api))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["n1.example.com"]
        again = await api.merge(f"{REQUESTS}/r/approval", {"status": {"conditions": []}})
        assert again.status == 422
        assert 'updates may not remove a condition of type "Approved"' in again.json["message"]


async def test_who_asks_is_written_by_the_server_and_stays(shared: Any) -> None:
    async with shared() as api:
        made = await make(api, REQUESTS, node_request(username="somebody", groups=["system:masters"]))
        assert made["spec"]["username"] == "kubernetes-admin"
        changed = await api.merge(
            f"{REQUESTS}/r", {"spec": {"username": "x"}, "status": {"certificate": "YQ=="}}
        )
        assert changed.status == 200
        assert changed.json["spec"]["username"] == "kubernetes-admin"
        assert "certificate" not in changed.json.get("status", {})
        sneaked = {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}
        status = await api.merge(f"{REQUESTS}/r/status", sneaked)
        assert not status.json.get("status", {}).get("conditions")
        await api.delete(f"{REQUESTS}/r")


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"request": "YQ=="}, "spec.request: Invalid value: "),
        ({"usages": []}, "spec.usages: Required value"),
        ({"usages": ["client auth", "client auth"]}, 'spec.usages[1]: Duplicate value: "client auth"'),
        ({"usages": ["odd"]}, 'spec.usages[0]: Unsupported value: "odd": supported values: "any", '),
        ({"signerName": ""}, "spec.signerName: Required value"),
        ({"signerName": "odd"}, "must be a fully qualified domain and path of the form"),
        ({"signerName": "kubernetes.io/legacy-unknown"}, "the legacy signerName is not allowed via this API"),
        ({"expirationSeconds": 60}, "may not specify a duration less than 600 seconds (10 minutes)"),
    ],
)
async def test_a_request_that_cannot_be(shared: Any, change: Any, reported: str) -> None:
    async with shared() as api:
        body = node_request()
        body["spec"].update(change)
        refused = await api.post(REQUESTS, body)
        assert refused.status == 422, refused.json
        assert reported in refused.json["message"]


async def test_nobody_asks_to_be_master(shared: Any) -> None:
    async with shared() as api:
        body = asked(Key().request("me", "system:masters"), "kubernetes.io/kube-apiserver-client")
        refused = await api.post(REQUESTS, body)
        assert refused.status == 403
        assert "signer with system:masters group is not allowed" in refused.json["message"]


async def test_approving_and_signing_are_permissions_of_their_own(served: Any) -> None:
    async with served() as api:
        await make(api, REQUESTS, node_request())
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        group = "certificates.k8s.io"
        everything = {
            "verbs": ["*"],
            "apiGroups": [group],
            "resources": ["certificatesigningrequests", "*/approval", "*/status"],
        }
        role = {"metadata": {"name": "writer"}, "rules": [everything]}
        await make(api, f"{rbac}/clusterroles", role)
        subjects = [{"kind": "User", "name": "jane"}]
        reference = {"kind": "ClusterRole", "name": "writer"}
        binding = {"metadata": {"name": "writer"}, "subjects": subjects, "roleRef": reference}
        await make(api, f"{rbac}/clusterrolebindings", binding)
        verdict = {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}
        async with person(api.server, "jane") as jane:
            refused = await jane.merge(f"{REQUESTS}/r/approval", verdict)
            assert refused.status == 403
            assert f'user not permitted to approve requests with signerName "{CLIENT}"' in refused.message
            signed = await jane.merge(f"{REQUESTS}/r/status", {"status": {"certificate": "YQ=="}})
            assert (signed.status, "not permitted to sign" in signed.message) == (403, True)
            may = {"verbs": ["approve"], "apiGroups": [group], "resources": ["signers"]}
            may["resourceNames"] = ["kubernetes.io/*"]
            wider = {"metadata": {"name": "writer"}, "rules": [everything, may]}
            assert (await api.put(f"{rbac}/clusterroles/writer", wider)).status == 200

            async def approves() -> bool:
                return bool((await jane.merge(f"{REQUESTS}/r/approval", verdict)).status == 200)

            await until(approves)


@pytest.mark.peer("kubectl")
async def test_kubectl_certificate_approve_and_deny(shared: Any) -> None:
    async with shared() as api:
        kubectl = Kubectl(shared.kubeconfig, Path(os.environ["TMPDIR"]))
        for name, verb in (("yes", "approve"), ("no", "deny")):
            body = node_request()
            body["metadata"]["name"] = name
            await make(api, REQUESTS, body)
            await kubectl("certificate", verb, name)
        shown = await kubectl("get", "csr")
        assert "Approved" in shown
        assert "Denied" in shown
        assert CLIENT in shown
