"""NodeRestriction: a node may write only its own objects, and only certain fields of them.

An admission plugin (see `auth.admission`): unlike authorization, it sees the content of the request.
"""

from __future__ import annotations

from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from msgspec import structs

from volplane.api.authentication import TokenRequest
from volplane.api.certificates import CertificateSigningRequest
from volplane.api.coordination import Lease
from volplane.api.core import Node, PersistentVolumeClaim, Pod
from volplane.api.errors import Forbidden, NotFound
from volplane.api.storage import CSINode
from volplane.apiserver.auth.admission import AdmissionPlugin
from volplane.apiserver.auth.authorize import AuthorizerChain
from volplane.apiserver.auth.go_format import go_quote
from volplane.apiserver.auth.nodes import mirror
from volplane.apiserver.auth.nodes.audiences import audience_error
from volplane.apiserver.auth.nodes.authorizer import LEASES
from volplane.apiserver.auth.nodes.labels import forbidden_labels
from volplane.apiserver.auth.well_known_users import node_name_of
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategies.checks import difference
from volplane.apiserver.strategy import ApiCall

_SIGNERS = ("kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet")


class NodeRestriction(AdmissionPlugin):
    """Each check returns why the request is forbidden, or ""."""

    def __init__(self, backend: Backend, authorizer: AuthorizerChain) -> None:
        self._backend = backend
        self._authorizer = authorizer

    async def create(self, call: ApiCall, obj: Any) -> None:
        if (node := _requesting_node(call, obj)) is not None:
            _forbid_if(call, await self._create_error(call, node, obj), obj)

    async def update(self, call: ApiCall, old: Any, new: Any) -> None:
        # An update caused by a posted subresource was checked in `post`.
        if call.verb in ("update", "patch") and (node := _requesting_node(call, new)) is not None:
            _forbid_if(call, _update_error(call, node, old, new), new)

    async def delete(self, call: ApiCall, obj: Any) -> None:
        if call.verb in ("delete", "deletecollection") and (node := _requesting_node(call, obj)) is not None:
            _forbid_if(call, _delete_error(call, node, obj), obj)

    async def post(self, call: ApiCall, obj: Any) -> None:
        if (node := _requesting_node(call, obj)) is not None:
            _forbid_if(call, await self._post_error(call, node, obj))

    async def _create_error(self, call: ApiCall, node: str, obj: Any) -> str:
        match obj:
            case Pod():
                return await self._create_pod_error(node, obj)
            case Node():
                return _create_node_error(node, obj)
            case PersistentVolumeClaim():
                return "may only update PVC status"
            case CertificateSigningRequest():
                return _request_error(node, obj)
            case _:
                return _ownership_error(call, node, obj, "create")

    async def _create_pod_error(self, node: str, pod: Pod) -> str:
        if message := mirror.mirror_pod_error(pod, node):
            return message
        found = await self._backend.reader.get(Node, node)
        if found is None:
            raise self._missing(Node, node)
        [owner] = pod.metadata.owner_references
        if owner.uid != found.uid:
            return f"node {node} UID mismatch: expected {owner.uid} got {found.uid}"
        if names := mirror.first_reference(pod):
            return f'node "{node}" can not create pods that reference {names}'
        return ""

    async def _post_error(self, call: ApiCall, node: str, obj: Any) -> str:
        match call.kind.resource, call.subresource:
            case "pods", "eviction":
                pod = await self._pod(call, call.name)
                message = f"node {node} can only evict pods with spec.nodeName set to itself"
                return message if pod.spec.node_name != node else ""
            case "pods", below:
                return _subresource_error(below)
            case "serviceaccounts", "token":
                return await self._token_error(call, node, obj)
        return ""

    async def _token_error(self, call: ApiCall, node: str, request: TokenRequest) -> str:
        reference = request.spec.bound_object_ref
        kind = (reference.api_version, reference.kind) if reference is not None else None
        if reference is None or kind != ("v1", "Pod") or not reference.name:
            return "node requested token not bound to a pod"
        if not reference.uid:
            return "node requested token with a pod binding without a uid"
        pod = await self._pod(call, reference.name)
        if pod.uid != reference.uid:
            return (
                f"the UID in the bound object reference ({reference.uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
        if pod.spec.node_name != node:
            return "node requested token bound to a pod scheduled on a different node"
        return await audience_error(call, pod, request.spec.audiences, self._authorizer)

    async def _pod(self, call: ApiCall, name: str) -> Pod:
        pod = await self._backend.reader.get(Pod, name, call.namespace)
        if pod is None:
            raise self._missing(Pod, name)
        return pod

    def _missing(self, type: type[Node] | type[Pod], name: str) -> NotFound:
        return NotFound.of(self._backend.registry.of(type).kind, name)


def _requesting_node(call: ApiCall, obj: Any) -> str | None:
    """Return the name of the node that makes the request, or None if the user is not a node."""
    node = node_name_of(call.user)
    if node == "":
        _forbid_if(call, f"could not determine node from user {go_quote(call.user.name)}", obj)
    return node


def _forbid_if(call: ApiCall, message: str, obj: Any = None) -> None:
    if message:
        name = call.name or (obj.metadata.name or obj.metadata.generate_name if obj is not None else "")
        raise Forbidden.to(call.kind, name or "Unknown", message)


def _update_error(call: ApiCall, node: str, old: Any, new: Any) -> str:
    match new:
        case Pod():
            return _update_pod_error(call, node, old, new)
        case Node():
            return _update_node_error(node, old, new)
        case PersistentVolumeClaim():
            return _update_claim_error(call, node, old, new)
        case Lease() | CSINode():
            return _ownership_error(call, node, new, "update")
    return ""


def _delete_error(call: ApiCall, node: str, obj: Any) -> str:
    match obj:
        case Pod():
            message = f'node "{node}" can only delete pods with spec.nodeName set to itself'
            return message if obj.spec.node_name != node else ""
        case Node():
            return _other_node_error(node, obj)
        case PersistentVolumeClaim():
            return "may only update PVC status"
    return _ownership_error(call, node, obj, "delete")


def _ownership_error(call: ApiCall, node: str, obj: Any, verb: str) -> str:
    match obj:
        case Lease() if call.namespace != LEASES:
            return f'can only access leases in the "{LEASES}" system namespace'
        case Lease() if obj.name != node:
            return "can only access node lease with the same name as the requesting node"
        case CSINode() if obj.name != node:
            return "can only access CSINode with the same name as the requesting node"
    if call.kind.kind == "ResourceSlice" and (obj.spec is None or obj.spec.node_name != node):
        return f"can only {verb} ResourceSlice with the same NodeName as the requesting node"
    return ""


def _subresource_error(below: str) -> str:
    return f"unexpected pod subresource {go_quote(below)}, only 'status' and 'eviction' are allowed"


def _update_pod_error(call: ApiCall, node: str, old: Pod, new: Pod) -> str:
    if not call.subresource:
        return f'unexpected operation "UPDATE", node "{node}" can only create and delete mirror pods'
    if call.subresource != "status":
        return _subresource_error(call.subresource)
    if old.spec.node_name != node:
        return f'node "{node}" can only update pod status for pods with spec.nodeName set to itself'
    if old.metadata.labels != new.metadata.labels:
        return f'node "{node}" cannot update labels through pod status'
    if old.status.resource_claim_statuses != new.status.resource_claim_statuses:
        return f'node "{node}" cannot update resource claim statues'
    if old.status.extended_resource_claim_status != new.status.extended_resource_claim_status:
        return f'node "{node}" cannot update extended resource claim status'
    return ""


def _other_node_error(node: str, obj: Node) -> str:
    return f'node "{node}" is not allowed to modify node "{obj.name}"' if obj.name != node else ""


def _create_node_error(node: str, new: Node) -> str:
    if message := _other_node_error(node, new):
        return message
    if new.spec.config_source is not None:
        return f'node "{node}" is not allowed to create pods with a non-nil configSource'
    labels = ", ".join(forbidden_labels({}, new.metadata.labels))
    return f'node "{node}" is not allowed to set the following labels: {labels}' if labels else ""


def _update_node_error(node: str, old: Node, new: Node) -> str:
    if message := _other_node_error(node, new):
        return message
    if new.spec.config_source is not None and new.spec.config_source != old.spec.config_source:
        return f'node "{node}" is not allowed to update configSource to a new non-nil configSource'
    if new.spec.taints != old.spec.taints:
        return f'node "{node}" is not allowed to modify taints'
    if new.metadata.owner_references != old.metadata.owner_references:
        return f'node "{node}" is not allowed to modify ownerReferences'
    labels = ", ".join(forbidden_labels(old.metadata.labels, new.metadata.labels))
    return f"is not allowed to modify labels: {labels}" if labels else ""


def _update_claim_error(
    call: ApiCall, node: str, old: PersistentVolumeClaim, new: PersistentVolumeClaim
) -> str:
    if call.subresource != "status":
        return "may only update PVC status"
    before, after = _without_growth(old), _without_growth(new)
    if before == after:
        return ""
    return (
        f'node "{node}" is not allowed to update fields other than status.quantity and '
        f"status.conditions: {difference(before, after)}"
    )


def _without_growth(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return the claim without the fields that a node changes when it expands a volume."""
    meta = structs.replace(claim.metadata, resource_version="", managed_fields=())
    status = structs.replace(
        claim.status, capacity={}, conditions=(), allocated_resources={}, allocated_resource_statuses={}
    )
    return structs.replace(claim, metadata=meta, status=status)


def _request_error(node: str, request: CertificateSigningRequest) -> str:
    if request.spec.signer_name not in _SIGNERS:
        return ""
    try:
        subject = x509.load_pem_x509_csr(request.spec.request).subject
    except ValueError as error:
        return f"unable to parse csr: {error}"
    common = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    is_own = common == [f"system:node:{node}"]
    return "" if is_own else f"can only create a node CSR with CN=system:node:{node}"
