"""NodeRestriction: a node may write only its own objects, and only certain fields of them.

An admission plugin (see `auth.admission`): unlike authorization, it sees the content of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from msgspec import structs

from volplane.api.authentication import TokenRequest
from volplane.api.certificates import CertificateSigningRequest
from volplane.api.coordination import Lease
from volplane.api.core import Node, PersistentVolumeClaim, Pod, ServiceAccount
from volplane.api.errors import APIError, Forbidden, NotFound
from volplane.api.resource import ResourceSlice
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
    def __init__(self, backend: Backend, authorizer: AuthorizerChain) -> None:
        self._backend = backend
        self._authorizer = authorizer

    # --- the admission plugin

    async def create(self, call: ApiCall, obj: Any) -> None:
        node = node_name_of(call.user)
        if node is None:
            return
        self._require_node_name(call, node, obj)
        match obj:
            case Pod():
                await self._create_pod(call, node, obj)
            case Node():
                self._create_node(call, node, obj)
            case PersistentVolumeClaim():
                raise _forbid(call, "may only update PVC status", obj)
            case Lease():
                self._lease(call, node, obj)
            case CSINode():
                message = "can only access CSINode with the same name as the requesting node"
                self._require_own(call, obj, message, node)
            case ResourceSlice():
                message = "can only create ResourceSlice with the same NodeName as the requesting node"
                self._slice(call, node, obj, message)
            case CertificateSigningRequest():
                _request(call, node, obj)

    async def update(self, call: ApiCall, old: Any, new: Any) -> None:
        node = node_name_of(call.user)
        if node is None or call.verb not in ("update", "patch"):
            return  # an update caused by a posted subresource was checked in `post`
        self._require_node_name(call, node, new)
        match new:
            case Pod():
                self._update_pod(call, node, old, new)
            case Node():
                self._update_node(call, node, old, new)
            case PersistentVolumeClaim():
                self._update_claim(call, node, old, new)
            case Lease():
                self._lease(call, node, new)
            case CSINode():
                message = "can only access CSINode with the same name as the requesting node"
                self._require_own(call, new, message, node)

    async def delete(self, call: ApiCall, obj: Any) -> None:
        node = node_name_of(call.user)
        if node is None or call.verb not in ("delete", "deletecollection"):
            return
        self._require_node_name(call, node, obj)
        match obj:
            case Pod():
                if obj.spec.node_name != node:
                    message = f'node "{node}" can only delete pods with spec.nodeName set to itself'
                    raise _forbid(call, message, obj)
            case Node():
                self._require_own(
                    call, obj, f'node "{node}" is not allowed to modify node "{obj.name}"', node
                )
            case PersistentVolumeClaim():
                raise _forbid(call, "may only update PVC status", obj)
            case Lease():
                self._lease(call, node, obj)
            case CSINode():
                message = "can only access CSINode with the same name as the requesting node"
                self._require_own(call, obj, message, node)
            case ResourceSlice():
                message = "can only delete ResourceSlice with the same NodeName as the requesting node"
                self._slice(call, node, obj, message)

    async def post(self, call: ApiCall, obj: Any) -> None:
        node = node_name_of(call.user)
        if node is None:
            return
        self._require_node_name(call, node, obj)
        match call.kind.resource, call.subresource:
            case "pods", "eviction":
                await self._evict(call, node)
            case "pods", below:
                message = (
                    f"unexpected pod subresource {go_quote(below)}, only 'status' and 'eviction' are allowed"
                )
                raise _forbid(call, message)
            case "serviceaccounts", "token":
                await self._token(call, node, obj)

    def _require_node_name(self, call: ApiCall, node: str, obj: Any) -> None:
        if not node:
            raise _forbid(call, f"could not determine node from user {go_quote(call.user.name)}", obj)

    def _require_own(self, call: ApiCall, obj: Any, message: str, node: str) -> None:
        if obj.name != node:
            raise _forbid(call, message, obj)

    # --- pods

    async def _create_pod(self, call: ApiCall, node: str, pod: Pod) -> None:
        message = mirror.mirror_pod_error(pod, node)
        if message:
            raise _forbid(call, message, pod)
        found = await self._backend.reader.get(Node, node)
        if found is None:
            raise self._missing(Node, node)
        [owner] = pod.metadata.owner_references
        if owner.uid != found.uid:
            message = f"node {node} UID mismatch: expected {owner.uid} got {found.uid}"
            raise _forbid(call, message, pod)
        if names := mirror.first_reference(pod):
            raise _forbid(call, f'node "{node}" can not create pods that reference {names}', pod)

    def _update_pod(self, call: ApiCall, node: str, old: Pod, new: Pod) -> None:
        if not call.subresource:
            message = f'unexpected operation "UPDATE", node "{node}" can only create and delete mirror pods'
            raise _forbid(call, message, new)
        if call.subresource != "status":
            below = go_quote(call.subresource)
            message = f"unexpected pod subresource {below}, only 'status' and 'eviction' are allowed"
            raise _forbid(call, message, new)
        if old.spec.node_name != node:
            message = f'node "{node}" can only update pod status for pods with spec.nodeName set to itself'
            raise _forbid(call, message, new)
        if old.metadata.labels != new.metadata.labels:
            raise _forbid(call, f'node "{node}" cannot update labels through pod status', new)
        if old.status.resource_claim_statuses != new.status.resource_claim_statuses:
            raise _forbid(call, f'node "{node}" cannot update resource claim statues', new)
        if old.status.extended_resource_claim_status != new.status.extended_resource_claim_status:
            raise _forbid(call, f'node "{node}" cannot update extended resource claim status', new)

    async def _evict(self, call: ApiCall, node: str) -> None:
        pod = await self._backend.reader.get(Pod, call.name, call.namespace)
        if pod is None:
            raise self._missing(Pod, call.name)
        if pod.spec.node_name != node:
            raise _forbid(call, f"node {node} can only evict pods with spec.nodeName set to itself")

    # --- nodes and their own objects

    def _create_node(self, call: ApiCall, node: str, new: Node) -> None:
        self._require_own(call, new, f'node "{node}" is not allowed to modify node "{new.name}"', node)
        if new.spec.config_source is not None:
            message = f'node "{node}" is not allowed to create pods with a non-nil configSource'
            raise _forbid(call, message, new)
        self._labels(call, new, {}, f'node "{node}" is not allowed to set the following labels: ')

    def _update_node(self, call: ApiCall, node: str, old: Node, new: Node) -> None:
        self._require_own(call, new, f'node "{node}" is not allowed to modify node "{new.name}"', node)
        if new.spec.config_source is not None and new.spec.config_source != old.spec.config_source:
            message = f'node "{node}" is not allowed to update configSource to a new non-nil configSource'
            raise _forbid(call, message, new)
        if new.spec.taints != old.spec.taints:
            raise _forbid(call, f'node "{node}" is not allowed to modify taints', new)
        if new.metadata.owner_references != old.metadata.owner_references:
            raise _forbid(call, f'node "{node}" is not allowed to modify ownerReferences', new)
        self._labels(call, new, old.metadata.labels, "is not allowed to modify labels: ")

    def _labels(self, call: ApiCall, node: Node, before: Mapping[str, str], message: str) -> None:
        wrong = forbidden_labels(before, node.metadata.labels)
        if wrong:
            raise _forbid(call, f"{message}{', '.join(wrong)}", node)

    def _lease(self, call: ApiCall, node: str, lease: Lease) -> None:
        if call.namespace != LEASES:
            raise _forbid(call, f'can only access leases in the "{LEASES}" system namespace', lease)
        message = "can only access node lease with the same name as the requesting node"
        self._require_own(call, lease, message, node)

    def _slice(self, call: ApiCall, node: str, obj: ResourceSlice, message: str) -> None:
        if obj.spec.node_name != node:
            raise _forbid(call, message, obj)

    # --- claims and tokens

    def _update_claim(
        self, call: ApiCall, node: str, old: PersistentVolumeClaim, new: PersistentVolumeClaim
    ) -> None:
        if call.subresource != "status":
            raise _forbid(call, "may only update PVC status", new)
        before, after = _without_growth(old), _without_growth(new)
        if before != after:
            message = (
                f'node "{node}" is not allowed to update fields other than status.quantity and '
                f"status.conditions: {difference(before, after)}"
            )
            raise _forbid(call, message, new)

    async def _token(self, call: ApiCall, node: str, token_request: TokenRequest) -> None:
        reference = token_request.spec.bound_object_ref
        if (
            reference is None
            or (reference.api_version, reference.kind) != ("v1", "Pod")
            or not reference.name
        ):
            raise _forbid(call, "node requested token not bound to a pod")
        if not reference.uid:
            raise _forbid(call, "node requested token with a pod binding without a uid")
        pod = await self._backend.reader.get(Pod, reference.name, call.namespace)
        if pod is None:
            raise self._missing(Pod, reference.name)
        if pod.uid != reference.uid:
            message = (
                f"the UID in the bound object reference ({reference.uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise _forbid(call, message)
        if pod.spec.node_name != node:
            raise _forbid(call, "node requested token bound to a pod scheduled on a different node")
        message = await audience_error(call, pod, token_request.spec.audiences, self._authorizer)
        if message:
            raise _forbid(call, message)

    def _missing(self, type: type[Node] | type[Pod] | type[ServiceAccount], name: str) -> NotFound:
        return NotFound.of(self._backend.registry.of(type).kind, name)


def _forbid(call: ApiCall, why: str, obj: Any = None) -> APIError:
    name = call.name or (obj.metadata.name or obj.metadata.generate_name if obj is not None else "")
    return Forbidden.to(call.kind, name or "Unknown", why)


def _without_growth(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return the claim without the fields that a node changes when it expands a volume."""
    meta = structs.replace(claim.metadata, resource_version="", managed_fields=())
    status = structs.replace(
        claim.status, capacity={}, conditions=(), allocated_resources={}, allocated_resource_statuses={}
    )
    return structs.replace(claim, metadata=meta, status=status)


def _request(call: ApiCall, node: str, request: CertificateSigningRequest) -> None:
    if request.spec.signer_name not in _SIGNERS:
        return
    try:
        subject = x509.load_pem_x509_csr(request.spec.request).subject
    except ValueError as error:
        raise _forbid(call, f"unable to parse csr: {error}", request) from error
    common = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if common != [f"system:node:{node}"]:
        raise _forbid(call, f"can only create a node CSR with CN=system:node:{node}", request)
