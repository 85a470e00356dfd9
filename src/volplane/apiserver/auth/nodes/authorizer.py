"""Node authorization: a node reads what its pods need and nothing else, writes what is its own.

What the content of a request decides (which Node it creates, whose status it writes) is left to
`restriction`, which sees the content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from volplane.api.selectors import FieldMatcher, InvalidSelector
from volplane.apiserver.auth.authorize import (
    ALLOWED,
    NO_OPINION,
    AuthorizationAttributes,
    AuthorizationDecision,
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
        self._judges: Mapping[
            tuple[str, str], Callable[[str, AuthorizationAttributes], AuthorizationDecision]
        ] = {
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

    def authorize(self, user: RequestUser, act: AuthorizationAttributes) -> AuthorizationDecision:
        node = node_name_of(user)
        if node is None:
            return NO_OPINION
        if not node:
            return _deny(f'unknown node for user "{user.name}"')
        judge = self._judges.get((act.group, act.plural)) if act.plural else None
        return judge(node, act) if judge is not None else self._rules.authorize(act)

    def rules_for(self, user: RequestUser, namespace: str) -> ResolvedRules:
        if node_name_of(user) is None:
            return ResolvedRules()
        return ResolvedRules(
            incomplete=True, errors=["node authorizer does not support user rule resolution"]
        )

    # --- what depends on the pods of the node

    def _readable(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        """Secrets, config maps, accounts: single ones, by name."""
        if act.verb not in _READ:
            return _deny("can only read resources of this type")
        if act.subresource:
            return _deny("cannot read subresource")
        if not act.namespace:
            return _deny("can only read namespaced object of this type")
        return self._referenced_object(node, act)

    def _referenced_object(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        if not act.name:
            return _deny("No Object name found")
        return _decide_related(node, self._graph.uses_object(node, act.plural, f"{act.namespace}/{act.name}"))

    def _claim(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        if act.subresource == "status":
            if act.verb not in ("update", "patch"):
                return _deny("can only get/update/patch this type")
            return self._referenced_object(node, act)
        return _only_get(act) or self._referenced_object(node, act)

    def _volume(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        return (
            _only_get(act)
            or _require_name(act)
            or _decide_related(node, self._graph.uses_volume(node, act.name))
        )

    def _attachment(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        return (
            _only_get(act)
            or _require_name(act)
            or _decide_related(node, self._graph.has_attachment(node, act.name))
        )

    def _device_claim(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        return _only_get(act) or _require_name(act) or _decide_related(node, False)

    def _account(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        if act.verb == "get" and not act.subresource:
            return self._readable(node, act)
        if act.verb != "create" or not act.name:
            return _deny("can only create tokens for individual service accounts")
        if act.subresource != "token":
            return _deny("can only create token subresource of serviceaccount")
        return _decide_related(node, self._graph.uses_object(node, ACCOUNT, f"{act.namespace}/{act.name}"))

    def _pod(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        match act.subresource, act.verb:
            case "", "get":
                return self._own_pod(node, act)
            case "", ("list" | "watch"):
                if _selects(act, node):
                    return ALLOWED
                if act.name:
                    return self._own_pod(node, act)
                return _deny("can only list/watch pods with spec.nodeName field selector")
            case "", ("create" | "delete"):
                return ALLOWED
            case "status", ("update" | "patch"):
                return ALLOWED
            case "eviction", "create":
                return ALLOWED
        return NO_OPINION

    def _own_pod(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        return _require_name(act) or _decide_related(
            node, self._graph.runs_pod(node, f"{act.namespace}/{act.name}")
        )

    def _node(self, node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
        match act.subresource, act.verb:
            case "", ("create" | "update" | "patch"):
                return ALLOWED
            case "status", ("update" | "patch"):
                return ALLOWED
            case "", ("get" | "list" | "watch"):
                # By name, not by what is known: a kubelet looks for its Node before it makes it.
                if act.name == node:
                    return ALLOWED
                which = f"cannot read '{act.name}'" if act.name else "cannot read all nodes"
                return _deny(f"node '{node}' {which}, only its own Node object")
        return NO_OPINION


def _deny(reason: str) -> AuthorizationDecision:
    return AuthorizationDecision(False, reason)


def _decide_related(node: str, is_so: bool) -> AuthorizationDecision:
    return ALLOWED if is_so else _deny(f"no relationship found between node '{node}' and this object")


def _only_get(act: AuthorizationAttributes) -> AuthorizationDecision | None:
    if act.verb != "get":
        return _deny("can only get individual resources of this type")
    return _deny("cannot get subresource") if act.subresource else None


def _require_name(act: AuthorizationAttributes) -> AuthorizationDecision | None:
    return None if act.name else _deny("No Object name found")


def _selects(act: AuthorizationAttributes, node: str) -> bool:
    try:
        return bool(act.fields) and FieldMatcher.parse(act.fields).required_value("spec.nodeName") == node
    except InvalidSelector:
        return False


def _lease(node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
    if act.verb not in _OWN:
        return _deny("can only get, create, update, patch, or delete a node lease")
    if act.namespace != LEASES:
        return _deny(f'can only access leases in the "{LEASES}" system namespace')
    # Creation does not say a name; restriction looks into the object.
    if act.verb != "create" and act.name != node:
        return _deny("can only access node lease with the same name as the requesting node")
    return ALLOWED


def _csinode(node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
    if act.verb not in _OWN:
        return _deny("can only get, create, update, patch, or delete a CSINode")
    if act.subresource:
        return _deny("cannot authorize CSINode subresources")
    if act.verb != "create" and act.name != node:
        return _deny("can only access CSINode with the same name as the requesting node")
    return ALLOWED


def _slice(node: str, act: AuthorizationAttributes) -> AuthorizationDecision:
    if act.subresource:
        return _deny("cannot authorize ResourceSlice subresources")
    if act.verb == "create":
        return ALLOWED
    if act.verb in ("get", "update", "patch", "delete"):
        return _require_name(act) or _decide_related(node, False)
    if act.verb in ("list", "watch", "deletecollection"):
        if _selects(act, node):
            return ALLOWED
        return _deny("can only list/watch/deletecollection resourceslices with nodeName field selector")
    return _deny(
        "only the following verbs are allowed for a ResourceSlice: "
        "get, watch, list, create, update, patch, delete, deletecollection"
    )
