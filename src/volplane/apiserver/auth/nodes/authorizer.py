"""The node authorizer: a node may read only what its pods need, and write only its own objects.

Rules that depend on the content of a request (which Node it creates, which status it writes) are in
`restriction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from volplane.api.selectors import FieldMatcher, InvalidSelector
from volplane.apiserver.auth.authorize import (
    ALLOWED,
    NO_OPINION,
    Attributes,
    Decision,
    ResolvedRules,
)
from volplane.apiserver.auth.nodes.graph import ACCOUNT, CLAIM, CONFIG_MAP, SECRET, NodeGraph
from volplane.apiserver.auth.rbac.policy import node_rules
from volplane.apiserver.auth.rbac.user_rules import Grant, UserRules
from volplane.apiserver.auth.well_known_users import node_name_of
from volplane.apiserver.strategy import RequestUser

LEASES = "kube-node-lease"
_READ = frozenset({"get", "list", "watch"})
_OWN = frozenset({"get", "create", "update", "patch", "delete"})


class NodeAuthorizer:
    def __init__(self, graph: NodeGraph) -> None:
        self._graph = graph
        self._rules = UserRules([Grant(rule, ALLOWED) for rule in node_rules()], [])
        self._rules_by_resource: Mapping[tuple[str, str], Callable[[str, Attributes], Decision]] = {
            ("", SECRET): self._readable,
            ("", CONFIG_MAP): self._readable,
            ("", CLAIM): self._claim,
            ("", "persistentvolumes"): self._volume,
            ("", ACCOUNT): self._account,
            ("", "nodes"): self._node,
            ("", "pods"): self._pod,
            ("storage.k8s.io", "volumeattachments"): self._attachment,
            ("storage.k8s.io", "csinodes"): _csinode,
            ("coordination.k8s.io", "leases"): _lease,
            ("resource.k8s.io", "resourceclaims"): self._device_claim,
            ("resource.k8s.io", "resourceslices"): _slice,
        }

    def authorize(self, user: RequestUser, attrs: Attributes) -> Decision:
        node = node_name_of(user)
        if node is None:
            return NO_OPINION
        if not node:
            return _deny(f'unknown node for user "{user.name}"')
        decide = self._rules_by_resource.get((attrs.group, attrs.plural)) if attrs.plural else None
        return decide(node, attrs) if decide is not None else self._rules.authorize(attrs)

    def rules_for(self, user: RequestUser, namespace: str) -> ResolvedRules:
        if node_name_of(user) is None:
            return ResolvedRules()
        error = "node authorizer does not support user rule resolution"
        return ResolvedRules(incomplete=True, errors=[error])

    # --- what depends on the pods of the node

    def _readable(self, node: str, attrs: Attributes) -> Decision:
        """Secrets, ConfigMaps and ServiceAccounts: only single objects, by name."""
        if attrs.verb not in _READ:
            return _deny("can only read resources of this type")
        if attrs.subresource:
            return _deny("cannot read subresource")
        if not attrs.namespace:
            return _deny("can only read namespaced object of this type")
        return self._referenced_object(node, attrs)

    def _referenced_object(self, node: str, attrs: Attributes) -> Decision:
        return _allow_if(self._graph.uses_object(node, attrs.plural, attrs.key), node, attrs)

    def _claim(self, node: str, attrs: Attributes) -> Decision:
        if attrs.subresource == "status":
            if attrs.verb not in ("update", "patch"):
                return _deny("can only get/update/patch this type")
            return self._referenced_object(node, attrs)
        return _only_get(attrs) or self._referenced_object(node, attrs)

    def _volume(self, node: str, attrs: Attributes) -> Decision:
        return _only_get(attrs) or _allow_if(self._graph.uses_volume(node, attrs.name), node, attrs)

    def _attachment(self, node: str, attrs: Attributes) -> Decision:
        return _only_get(attrs) or _allow_if(self._graph.has_attachment(node, attrs.name), node, attrs)

    def _device_claim(self, node: str, attrs: Attributes) -> Decision:
        return _only_get(attrs) or _allow_if(False, node, attrs)

    def _account(self, node: str, attrs: Attributes) -> Decision:
        if attrs.verb == "get" and not attrs.subresource:
            return self._readable(node, attrs)
        if attrs.verb != "create" or not attrs.name:
            return _deny("can only create tokens for individual service accounts")
        if attrs.subresource != "token":
            return _deny("can only create token subresource of serviceaccount")
        return self._referenced_object(node, attrs)

    def _pod(self, node: str, attrs: Attributes) -> Decision:
        match attrs.subresource, attrs.verb:
            case "", "get":
                return self._own_pod(node, attrs)
            case "", ("list" | "watch"):
                if _selects(attrs, node):
                    return ALLOWED
                if attrs.name:
                    return self._own_pod(node, attrs)
                return _deny("can only list/watch pods with spec.nodeName field selector")
            case ("", ("create" | "delete")) | ("status", ("update" | "patch")) | ("eviction", "create"):
                return ALLOWED
        return NO_OPINION

    def _own_pod(self, node: str, attrs: Attributes) -> Decision:
        return _allow_if(self._graph.runs_pod(node, attrs.key), node, attrs)

    def _node(self, node: str, attrs: Attributes) -> Decision:
        match attrs.subresource, attrs.verb:
            case ("", ("create" | "update" | "patch")) | ("status", ("update" | "patch")):
                return ALLOWED
            case "", ("get" | "list" | "watch"):
                # By name, not through the graph: a kubelet gets its Node before it creates it.
                if attrs.name == node:
                    return ALLOWED
                which = f"cannot read '{attrs.name}'" if attrs.name else "cannot read all nodes"
                return _deny(f"node '{node}' {which}, only its own Node object")
        return NO_OPINION


def _deny(reason: str) -> Decision:
    return Decision(False, reason)


def _allow_if(is_related: bool, node: str, attrs: Attributes) -> Decision:
    if not attrs.name:
        return _deny("No Object name found")
    return ALLOWED if is_related else _deny(f"no relationship found between node '{node}' and this object")


def _only_get(attrs: Attributes) -> Decision | None:
    if attrs.verb != "get":
        return _deny("can only get individual resources of this type")
    return _deny("cannot get subresource") if attrs.subresource else None


def _selects(attrs: Attributes, node: str) -> bool:
    try:
        return bool(attrs.fields) and FieldMatcher.parse(attrs.fields).required_value("spec.nodeName") == node
    except InvalidSelector:
        return False


def _lease(node: str, attrs: Attributes) -> Decision:
    if attrs.verb not in _OWN:
        return _deny("can only get, create, update, patch, or delete a node lease")
    if attrs.namespace != LEASES:
        return _deny(f'can only access leases in the "{LEASES}" system namespace')
    # A create request has no name in its path; `restriction` checks the object.
    if attrs.verb != "create" and attrs.name != node:
        return _deny("can only access node lease with the same name as the requesting node")
    return ALLOWED


def _csinode(node: str, attrs: Attributes) -> Decision:
    if attrs.verb not in _OWN:
        return _deny("can only get, create, update, patch, or delete a CSINode")
    if attrs.subresource:
        return _deny("cannot authorize CSINode subresources")
    if attrs.verb != "create" and attrs.name != node:
        return _deny("can only access CSINode with the same name as the requesting node")
    return ALLOWED


def _slice(node: str, attrs: Attributes) -> Decision:
    if attrs.subresource:
        return _deny("cannot authorize ResourceSlice subresources")
    if attrs.verb == "create":
        return ALLOWED
    if attrs.verb in ("get", "update", "patch", "delete"):
        return _allow_if(False, node, attrs)
    if attrs.verb in ("list", "watch", "deletecollection"):
        if _selects(attrs, node):
            return ALLOWED
        return _deny("can only list/watch/deletecollection resourceslices with nodeName field selector")
    return _deny(
        "only the following verbs are allowed for a ResourceSlice: "
        "get, watch, list, create, update, patch, delete, deletecollection"
    )
