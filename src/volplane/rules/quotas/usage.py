"""What one object uses of quotas, and the scopes in which it counts.

Pods, Services and claims use several resources; of all other kinds only the number of objects counts. A claim
whose request was lowered after a failed expansion still counts with its allocated size, because the volume
may have reached that size already.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, structs

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim, Pod, Service
from volplane.api.quantity import Amount
from volplane.rules.binding import claim_class
from volplane.rules.quotas import pods
from volplane.rules.quotas.amounts import ONE, Amounts, greatest

COUNT = "count/"
PODS, SERVICES, CLAIMS = "pods", "services", "persistentvolumeclaims"
STORAGE = "requests.storage"
OF_CLASS = ".storageclass.storage.k8s.io/"
NODE_PORTS, LOAD_BALANCERS = "services.nodeports", "services.loadbalancers"
ATTRIBUTES_CLASS = "VolumeAttributesClass"
# Counted without the prefix, too.
_LEGACY = frozenset({"configmaps", "resourcequotas", "replicationcontrollers", "secrets"})
_NEVER_COUNTED = frozenset({"events", "events.events.k8s.io"})
CLASS_SCOPES = frozenset({pods.PRIORITY_CLASS, ATTRIBUTES_CLASS})


class ObjectUsage(Struct, frozen=True):
    amounts: Amounts
    scopes: frozenset[str] = frozenset()
    classes: Mapping[str, frozenset[str]] = {}  # scope → the classes that the object names
    # A pod that should have been gone by then uses only what is left.
    ends: datetime | None = None
    left: Amounts = {}

    def at(self, now: datetime) -> Amounts:
        return self.amounts if self.ends is None or now <= self.ends else self.left


def greater_usage(stored: ObjectUsage, becoming: ObjectUsage) -> ObjectUsage:
    """What an object may use that is being changed."""
    return structs.replace(becoming, amounts=greatest(stored.amounts, becoming.amounts))


def limited_resource(name: str) -> str:
    """The resource (`deployments.apps`) whose objects use what a quota names so; "" if there is none."""
    if name.startswith(COUNT):
        counted = name.removeprefix(COUNT)
        return "" if counted in _NEVER_COUNTED else counted
    if name in (SERVICES, NODE_PORTS, LOAD_BALANCERS):
        return SERVICES
    if name in (STORAGE, CLAIMS) or name.endswith((f"{OF_CLASS}{STORAGE}", f"{OF_CLASS}{CLAIMS}")):
        return CLAIMS
    if pods.is_pod_resource(name):
        return PODS
    return name if name in _LEGACY else ""


def uses_more_than_its_number(resource: str) -> bool:
    return resource in (PODS, SERVICES, CLAIMS)


def usage_of(resource: str, obj: object) -> ObjectUsage:
    """What an object of a resource uses."""
    match obj:
        case Pod():
            return _usage_of_pod(obj)
        case Service():
            return ObjectUsage(_amounts_of_service(obj))
        case PersistentVolumeClaim():
            return _usage_of_claim(obj)
    return usage_by_number(resource)


def usage_by_number(resource: str) -> ObjectUsage:
    """What each object of a resource uses of which only the number counts."""
    names = (f"{COUNT}{resource}", resource) if resource in _LEGACY else (f"{COUNT}{resource}",)
    return ObjectUsage(dict.fromkeys(names, ONE))


def _usage_of_pod(pod: Pod) -> ObjectUsage:
    name = pod.spec.priority_class_name
    number = {pods.COUNT: ONE}
    return ObjectUsage(
        {**number, **pods.running_usage(pod)},
        pods.scopes_of(pod),
        {pods.PRIORITY_CLASS: frozenset({name} if name else ())},
        ends=pods.runs_until(pod),
        left=number,
    )


def _amounts_of_service(service: Service) -> Amounts:
    spec = service.spec
    node_ports = load_balancers = 0
    if spec.type == "NodePort":
        node_ports = len(spec.ports)
    elif spec.type == "LoadBalancer":
        load_balancers = 1
        given = spec.allocate_load_balancer_node_ports is False
        node_ports = sum(bool(p.node_port) for p in spec.ports) if given else len(spec.ports)
    return {
        f"{COUNT}{SERVICES}": ONE,
        SERVICES: ONE,
        NODE_PORTS: quantity.amount(str(node_ports)),
        LOAD_BALANCERS: quantity.amount(str(load_balancers)),
    }


def _usage_of_claim(claim: PersistentVolumeClaim) -> ObjectUsage:
    used = {CLAIMS: ONE, f"{COUNT}{CLAIMS}": ONE}
    if (size := _storage_of(claim)) is not None:
        used[STORAGE] = size
    if name := claim_class(claim):
        limited = [resource for resource in (CLAIMS, STORAGE) if resource in used]
        used |= {f"{name}{OF_CLASS}{resource}": used[resource] for resource in limited}
    return ObjectUsage(used, classes={ATTRIBUTES_CLASS: _attributes_classes(claim)})


def _storage_of(claim: PersistentVolumeClaim) -> Amount | None:
    """The size in whole bytes."""
    asked = claim.spec.resources.requests.get("storage")
    if asked is None:
        return None
    allocated = claim.status.allocated_resources.get("storage")
    sizes = [quantity.amount(text) for text in (asked, allocated) if text is not None]
    size = max(sizes, key=lambda size: size.nanos)
    return Amount(-(-size.nanos // ONE.nanos) * ONE.nanos, size.family)


def _attributes_classes(claim: PersistentVolumeClaim) -> frozenset[str]:
    target = claim.status.modify_volume_status
    names = (
        claim.spec.volume_attributes_class_name,
        claim.status.current_volume_attributes_class_name,
        target.target_volume_attributes_class_name if target is not None else "",
    )
    return frozenset(name for name in names if name)
