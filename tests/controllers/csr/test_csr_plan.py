"""What becomes of a signing request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from volplane.api import codec
from volplane.api.certificates import CertificateSigningRequest
from volplane.controllers.csr.plan import (
    KUBELET_CLIENT,
    KUBELET_SERVING,
    ApproveIfAllowed,
    DeleteRequest,
    RejectRequest,
    RequestSubject,
    SignCertificate,
    plan,
)
from volplane.rules.waits import Wait

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CLIENT = ["digital signature", "client auth"]
SERVING = ["digital signature", "server auth"]
NODE = RequestSubject("system:node:n1", ("system:nodes",))
SERVER = RequestSubject("system:node:n1", ("system:nodes",), hosts=("n1",))


def request(
    signer: str = KUBELET_CLIENT,
    user: str = "system:bootstrap:abcdef",
    age: timedelta = timedelta(),
    usages: list[str] | None = None,
    certificate: str = "",
    *conditions: str,
) -> CertificateSigningRequest:
    status: dict[str, Any] = {"conditions": [{"type": c, "status": "True"} for c in conditions]}
    if certificate:
        status["certificate"] = certificate
    data = {
        "metadata": {"name": "r", "creationTimestamp": (NOW - age).strftime("%Y-%m-%dT%H:%M:%SZ")},
        "spec": {"signerName": signer, "username": user, "usages": usages or CLIENT},
        "status": status,
    }
    return codec.convert(CertificateSigningRequest, data)


HOUR = timedelta(hours=1)
APPROVED = request(KUBELET_CLIENT, "u", timedelta(), None, "", "Approved")
CASES: dict[str, tuple[CertificateSigningRequest, RequestSubject, list[Any]]] = {
    "a bootstrapping machine is asked about": (request(), NODE, [ApproveIfAllowed, Wait]),
    "a node that renews itself has a narrower right": (
        request(user=NODE.name),
        NODE,
        [ApproveIfAllowed, ApproveIfAllowed, Wait],
    ),
    "a node of other organizations is not recognized": (
        request(),
        RequestSubject("system:node:n1", ("system:masters",)),
        [Wait],
    ),
    "a subject that is not a node is not recognized": (
        request(),
        RequestSubject("me", ("system:nodes",)),
        [Wait],
    ),
    "usages beyond a client's are not recognized": (request(usages=SERVING), NODE, [Wait]),
    "a client has no host names": (request(), SERVER, [Wait]),
    "serving certificates are approved by people": (request(KUBELET_SERVING, usages=SERVING), SERVER, [Wait]),
    "what is approved is signed": (APPROVED, NODE, [SignCertificate, Wait]),
    "an approved serving certificate is signed": (
        request(KUBELET_SERVING, NODE.name, timedelta(), SERVING, "", "Approved"),
        SERVER,
        [SignCertificate, Wait],
    ),
    "a serving certificate needs a name": (
        request(KUBELET_SERVING, NODE.name, timedelta(), SERVING, "", "Approved"),
        NODE,
        [RejectRequest, Wait],
    ),
    "what is approved but wrong fails": (APPROVED, RequestSubject(), [RejectRequest, Wait]),
    "what failed is left": (
        request(KUBELET_CLIENT, "u", timedelta(), None, "", "Approved", "Failed"),
        NODE,
        [Wait],
    ),
    "a certificate for a server needs names": (
        request(KUBELET_SERVING, "u", timedelta(), SERVING, "", "Approved"),
        NODE,
        [RejectRequest, Wait],
    ),
    "a certificate for an email address is rejected": (
        APPROVED,
        RequestSubject(NODE.name, NODE.groups, others=True),
        [RejectRequest, Wait],
    ),
    "a request without a time is kept": (
        codec.convert(CertificateSigningRequest, {"spec": {"signerName": "example.com/s"}}),
        NODE,
        [Wait],
    ),
    "what is denied is left": (request(KUBELET_CLIENT, "u", timedelta(), None, "", "Denied"), NODE, [Wait]),
    "another's signer is another's": (
        request("example.com/s", "u", timedelta(), None, "", "Approved"),
        NODE,
        [Wait],
    ),
    "what is signed stays for an hour": (
        request(KUBELET_CLIENT, "u", HOUR - timedelta(seconds=9), None, "YQ==", "Approved"),
        NODE,
        [Wait],
    ),
    "and is then forgotten": (
        request(KUBELET_CLIENT, "u", HOUR, None, "YQ==", "Approved"),
        NODE,
        [DeleteRequest],
    ),
    "an undecided request is deleted after a day": (request(age=24 * HOUR), NODE, [DeleteRequest]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_request(case: str) -> None:
    given, subject, expected = CASES[case]
    assert [type(step) for step in plan(given, subject, NOW)] == expected
