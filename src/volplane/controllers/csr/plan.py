"""What to do about a signing request: approve it, sign it, reject it, or delete it after a while.

Two signers are ours. Client certificates of kubelets are approved for requestors with permission: a machine
with a bootstrap token for a new node, a node for itself. Serving certificates are approved by people, as in
upstream; once approved they are signed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from volplane.api.certificates import CertificateSigningRequest as Request
from volplane.rules.waits import Wait, WaitReason

KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"
SIGNERS = (KUBELET_CLIENT, KUBELET_SERVING)
NODES, NODE_PREFIX = "system:nodes", "system:node:"
APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"

# "key encipherment" is allowed in addition, for RSA keys.
_USAGES = {
    KUBELET_CLIENT: {"digital signature", "client auth"},
    KUBELET_SERVING: {"digital signature", "server auth"},
}
_APPROVING = "kubelet client certificate after SubjectAccessReview."

# How long upstream keeps requests.
PENDING = timedelta(hours=24)
DECIDED = timedelta(hours=1)


class RequestSubject(Struct, frozen=True):
    """What the PEM of the request contains; empty names if it cannot be read."""

    name: str = ""
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # DNS names and addresses
    others: bool = False  # email addresses or URIs are requested as well


class ApproveIfAllowed(Struct, frozen=True):
    """Approve with this message if the requestor may create this subresource of signing requests."""

    permission: str
    message: str


class SignCertificate(Struct, frozen=True):
    pass


class RejectRequest(Struct, frozen=True):
    message: str


class DeleteRequest(Struct, frozen=True):
    pass


Step = ApproveIfAllowed | SignCertificate | RejectRequest | DeleteRequest


def plan(request: Request, subject: RequestSubject, now: datetime) -> Iterator[Step | Wait]:
    left = _age_left(request, now)
    if left <= timedelta(0):
        yield DeleteRequest()
        return
    held = {c.type for c in request.status.conditions}
    if APPROVED in held and not request.status.certificate and FAILED not in held:
        if request.spec.signer_name in SIGNERS:
            why = find_problem(request, subject)
            yield RejectRequest(why) if why else SignCertificate()
    elif not held & {APPROVED, DENIED} and _is_recognized(request, subject):
        yield from _permissions(request, subject)
    yield Wait(WaitReason.REQUEST_EXPIRY, seconds=left.total_seconds())


def _is_recognized(request: Request, subject: RequestSubject) -> bool:
    return request.spec.signer_name == KUBELET_CLIENT and not find_problem(request, subject)


def _permissions(request: Request, subject: RequestSubject) -> Iterator[ApproveIfAllowed]:
    """The narrower one first: a node that renews its own certificate."""
    if subject.name == request.spec.username:
        yield ApproveIfAllowed("selfnodeclient", f"Auto approving self {_APPROVING}")
    yield ApproveIfAllowed("nodeclient", f"Auto approving {_APPROVING}")


def find_problem(request: Request, subject: RequestSubject) -> str:
    """Why the signer refuses the request; "" if it signs it."""
    serving = request.spec.signer_name == KUBELET_SERVING
    if subject.groups != (NODES,):
        return f"subject organization is not {NODES}"
    if not subject.name.startswith(NODE_PREFIX):
        return f"subject common name does not begin with {NODE_PREFIX}"
    if subject.others:
        return "email and URI subject alternative names are not allowed"
    if serving and not subject.hosts:
        return "DNS or IP subjectAltName is required"
    if not serving and subject.hosts:
        return "DNS and IP subjectAltNames are not allowed"
    if set(request.spec.usages) - {"key encipherment"} != _USAGES[request.spec.signer_name]:
        return "usages did not match what the signer permits"
    return ""


def _age_left(request: Request, now: datetime) -> timedelta:
    created = request.metadata.creation_timestamp
    if not created:
        return PENDING
    decided = request.status.certificate or any(c.type in (DENIED, FAILED) for c in request.status.conditions)
    age = now - datetime.fromisoformat(created)
    return (DECIDED if decided else PENDING) - age
