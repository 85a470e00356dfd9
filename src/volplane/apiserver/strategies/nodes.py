"""Nodes: taints, resource amounts and addresses; podCIDR and providerID are set once."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.core import Node, Taint
from volplane.api.errors import Cause, Causes, duplicate, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods.spec import EFFECTS
from volplane.apiserver.strategy import ApiCall, Strategy


class NodeStrategy(Strategy[Node]):
    def prepare_create(self, call: ApiCall, obj: Node) -> Node:
        # A kubelet registers its node with a status.
        return obj

    def validate_create(self, call: ApiCall, obj: Node) -> Causes:
        yield from _taints("metadata.taints", obj.spec.taints)
        yield from _amounts(obj)

    def validate_update(self, call: ApiCall, old: Node, new: Node) -> Causes:
        yield from _taints("metadata.taints", new.spec.taints)
        yield from _amounts(new)
        yield from _addresses(new)
        if old.spec.pod_cidrs and old.spec.pod_cidrs != new.spec.pod_cidrs:
            message = 'node updates may not change podCIDR except from "" to valid'
            yield forbidden("spec.podCIDRs", message)
        if old.spec.provider_id and old.spec.provider_id != new.spec.provider_id:
            message = 'node updates may not change providerID except from "" to valid'
            yield forbidden("spec.providerID", message)

    def validate_status(self, call: ApiCall, old: Node, new: Node) -> Causes:
        yield from _amounts(new)
        yield from _addresses(new)


def _addresses(node: Node) -> Causes:
    given = node.status.addresses
    yield from [
        duplicate(f"status.addresses[{at}]", checks.to_plain(address))
        for at, address in enumerate(given)
        if address in given[:at]
    ]


def _amounts(node: Node) -> Causes:
    listed: Mapping[str, Mapping[str, str]] = {
        "status.capacity": node.status.capacity,
        "status.allocatable": node.status.allocatable,
    }
    for path, amounts in listed.items():
        for name, amount in amounts.items():
            yield from checks.amount_not_negative(f"{path}[{name}]", amount)


def _taints(path: str, taints: tuple[Taint, ...]) -> Causes:
    seen: set[tuple[str, str]] = set()
    for at, taint in enumerate(taints):
        here = f"{path}[{at}]"
        yield from checks.qualified_name(f"{here}.key", taint.key)
        words = checks.label_value_problems(taint.value)
        if words:
            yield invalid(f"{here}.value", taint.value, ";".join(words))
        if not taint.effect:
            yield required_value(f"{here}.effect")
        elif taint.effect not in EFFECTS:
            yield not_supported(f"{here}.effect", taint.effect, EFFECTS)
        if (taint.key, taint.effect) in seen:
            twice = duplicate(here, checks.to_plain(taint))
            message = f"{twice.message}: taints must be unique by key and effect pair"
            yield Cause(twice.reason, message, here)
        seen.add((taint.key, taint.effect))
