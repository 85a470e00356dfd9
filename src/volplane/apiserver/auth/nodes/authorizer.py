"""Node authorization: a node reads what its pods need and nothing else, writes what is its own.

What the content of a request decides (which Node it creates, whose status it writes) is left to
`restriction`, which sees the content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from volplane.api.selectors import BadSelector, Fields
from volplane.apiserver.auth.authorize import ALLOWED, NO_OPINION, Act, Known, Verdict
from volplane.apiserver.auth.nodes.graph import ACCOUNT, CLAIM, CONFIG_MAP, SECRET, Graph
from volplane.apiserver.auth.rbac.index import Grant, View
from volplane.apiserver.auth.rbac.policy.components import NODE_RULES
from volplane.apiserver.auth.users import node_of
from volplane.apiserver.strategy import User

LEASES = "kube-node-lease"
_READ = frozenset({"get", "list", "watch"})
_OWN = frozenset({"get", "create", "update", "patch", "delete"})


class NodeAuthorizer:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._rules = View([Grant(rule, ALLOWED) for rule in NODE_RULES], [])
        self._judges: Mapping[tuple[str, str], Callable[[str, Act], Verdict]] = {
            ("", SECRET): self._readable,
            ("", CONFIG_MAP): self._readable,
            ("", CLAIM): self._claim,
            ("", "persistentvolumes"): self._volume,
            ("", ACCOUNT): self._account,
            ("", "nodes"): self._node,
            ("", "pods"): self._pod,
            ("storage.k8s.io", "volumeattachments"): self._attachment,
            ("storage.k8s.io", "csinodes"): _drivers,
            ("coordination.k8s.io", "leases"): _lease,
            ("resource.k8s.io", "resourceclaims"): self._device_claim,
            ("resource.k8s.io", "resourceslices"): _slice,
        }

    def judge(self, user: User, act: Act) -> Verdict:
        node = node_of(user)
        if node is None:
            return NO_OPINION
        if not node:
            return _no(f'unknown node for user "{user.name}"')
        judge = self._judges.get((act.group, act.plural)) if act.plural else None
        return judge(node, act) if judge is not None else self._rules.judge(act)

    def known(self, user: User, namespace: str) -> Known:
        if node_of(user) is None:
            return Known()
        return Known(incomplete=True, errors=["node authorizer does not support user rule resolution"])

    # --- what depends on the pods of the node

    def _readable(self, node: str, act: Act) -> Verdict:
        """Secrets, config maps, accounts: single ones, by name."""
        if act.verb not in _READ:
            return _no("can only read resources of this type")
        if act.subresource:
            return _no("cannot read subresource")
        if not act.namespace:
            return _no("can only read namespaced object of this type")
        return self._thing(node, act)

    def _thing(self, node: str, act: Act) -> Verdict:
        if not act.name:
            return _no("No Object name found")
        return _related(node, self._graph.thing(node, act.plural, f"{act.namespace}/{act.name}"))

    def _claim(self, node: str, act: Act) -> Verdict:
        if act.subresource == "status":
            if act.verb not in ("update", "patch"):
                return _no("can only get/update/patch this type")
            return self._thing(node, act)
        return _only_get(act) or self._thing(node, act)

    def _volume(self, node: str, act: Act) -> Verdict:
        return _only_get(act) or _unnamed(act) or _related(node, self._graph.volume(node, act.name))

    def _attachment(self, node: str, act: Act) -> Verdict:
        return _only_get(act) or _unnamed(act) or _related(node, self._graph.attachment(node, act.name))

    def _device_claim(self, node: str, act: Act) -> Verdict:
        return _only_get(act) or _unnamed(act) or _related(node, False)

    def _account(self, node: str, act: Act) -> Verdict:
        if act.verb == "get" and not act.subresource:
            return self._readable(node, act)
        if act.verb != "create" or not act.name:
            return _no("can only create tokens for individual service accounts")
        if act.subresource != "token":
            return _no("can only create token subresource of serviceaccount")
        return _related(node, self._graph.thing(node, ACCOUNT, f"{act.namespace}/{act.name}"))

    def _pod(self, node: str, act: Act) -> Verdict:
        match act.subresource, act.verb:
            case "", "get":
                return self._own_pod(node, act)
            case "", ("list" | "watch"):
                if _selects(act, node):
                    return ALLOWED
                if act.name:
                    return self._own_pod(node, act)
                return _no("can only list/watch pods with spec.nodeName field selector")
            case "", ("create" | "delete"):
                return ALLOWED
            case "status", ("update" | "patch"):
                return ALLOWED
            case "eviction", "create":
                return ALLOWED
        return NO_OPINION

    def _own_pod(self, node: str, act: Act) -> Verdict:
        return _unnamed(act) or _related(node, self._graph.pod(node, f"{act.namespace}/{act.name}"))

    def _node(self, node: str, act: Act) -> Verdict:
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
                return _no(f"node '{node}' {which}, only its own Node object")
        return NO_OPINION


def _no(reason: str) -> Verdict:
    return Verdict(False, reason)


def _related(node: str, is_so: bool) -> Verdict:
    return ALLOWED if is_so else _no(f"no relationship found between node '{node}' and this object")


def _only_get(act: Act) -> Verdict | None:
    if act.verb != "get":
        return _no("can only get individual resources of this type")
    return _no("cannot get subresource") if act.subresource else None


def _unnamed(act: Act) -> Verdict | None:
    return None if act.name else _no("No Object name found")


def _selects(act: Act, node: str) -> bool:
    try:
        return bool(act.fields) and Fields.parse(act.fields).required("spec.nodeName") == node
    except BadSelector:
        return False


def _lease(node: str, act: Act) -> Verdict:
    if act.verb not in _OWN:
        return _no("can only get, create, update, patch, or delete a node lease")
    if act.namespace != LEASES:
        return _no(f'can only access leases in the "{LEASES}" system namespace')
    # Creation does not say a name; restriction looks into the object.
    if act.verb != "create" and act.name != node:
        return _no("can only access node lease with the same name as the requesting node")
    return ALLOWED


def _drivers(node: str, act: Act) -> Verdict:
    if act.verb not in _OWN:
        return _no("can only get, create, update, patch, or delete a CSINode")
    if act.subresource:
        return _no("cannot authorize CSINode subresources")
    if act.verb != "create" and act.name != node:
        return _no("can only access CSINode with the same name as the requesting node")
    return ALLOWED


def _slice(node: str, act: Act) -> Verdict:
    if act.subresource:
        return _no("cannot authorize ResourceSlice subresources")
    if act.verb == "create":
        return ALLOWED
    if act.verb in ("get", "update", "patch", "delete"):
        return _unnamed(act) or _related(node, False)
    if act.verb in ("list", "watch", "deletecollection"):
        if _selects(act, node):
            return ALLOWED
        return _no("can only list/watch/deletecollection resourceslices with nodeName field selector")
    return _no(
        "only the following verbs are allowed for a ResourceSlice: "
        "get, watch, list, create, update, patch, delete, deletecollection"
    )
