"""The topology requirements of CreateVolume: where a volume may be created, and where it should be.

A term is a node's segments, as sorted pairs. Terms are sorted, deduplicated and rotated: to begin with the
selected node's term if a node is selected, otherwise by a hash of the claim's name, which spreads the volumes
of a StatefulSet over the zones. The claims of one StatefulSet replica have the same hash.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from volplane.api.core import Node, TopologySelectorTerm
from volplane.api.storage import CSINode, StorageClass

Term = tuple[tuple[str, str], ...]


class NoTopologyFound(ValueError):
    """No term can be built; a new node or registration may help."""


class SelectedNodeUnfit(ValueError):
    """The selected node cannot be used; the scheduler should select another."""


class TopologyTerms(Struct, frozen=True):
    requisite: tuple[Term, ...]
    preferred: tuple[Term, ...]


def build_terms(
    claim: str,
    storage_class: StorageClass,
    selected: str,
    nodes: Mapping[str, Node],
    registrations: Mapping[str, CSINode],
    driver: str,
    *,
    strict: bool = False,
    immediate: bool = True,
) -> TopologyTerms | None:
    """None if the driver may choose. `claim` is the name of the claim, `selected` of the node, or ""."""
    own: Term | None = None
    keys: Sequence[str] = ()
    if selected:
        keys = _keys_of_selected_node(selected, registrations, driver)
        own = _term(nodes.get(selected), keys)
        if own is None:
            raise NoTopologyFound(f'node "{selected}" lacks labels for the topology keys {", ".join(keys)}')
    allowed = flatten(storage_class.allowed_topologies)
    if own is not None and strict:
        if allowed and not any(set(term) <= set(own) for term in allowed):
            raise NoTopologyFound(
                f'selected node "{selected}" topology {_format_term(own)} is not in allowed topologies'
            )
        return TopologyTerms((own,), (own,))
    if allowed:
        terms = allowed
    elif own is None and not immediate:
        return None
    else:
        terms = _all_terms(keys or _keys_of_any_node(registrations, driver), nodes)
    return TopologyTerms(terms, _sort_by_preference(terms, own, selected, claim))


def flatten(topologies: Iterable[TopologySelectorTerm]) -> tuple[Term, ...]:
    """Every combination of segments that the class allows."""
    terms: set[Term] = set()
    for topology in topologies:
        choices = [[(r.key, v) for v in r.values] for r in topology.match_label_expressions]
        if choices:
            terms.update(tuple(sorted(combination)) for combination in itertools.product(*choices))
    return tuple(sorted(terms))


def registered_topology_keys(registration: CSINode | None, driver: str) -> tuple[str, ...]:
    drivers = registration.spec.drivers if registration is not None else ()
    return next((d.topology_keys for d in drivers if d.name == driver), ())


def _keys_of_selected_node(selected: str, registrations: Mapping[str, CSINode], driver: str) -> Sequence[str]:
    registration = registrations.get(selected)
    if registration is None:
        raise SelectedNodeUnfit(f'error getting CSINode for selected node "{selected}": not found')
    keys = registered_topology_keys(registration, driver)
    if not keys:
        raise NoTopologyFound(f'no topology key found on CSINode "{selected}"')
    return keys


def _keys_of_any_node(registrations: Mapping[str, CSINode], driver: str) -> Sequence[str]:
    """The keys of any one node: all nodes run the same version of the driver, or soon will."""
    for name in sorted(registrations):
        if keys := registered_topology_keys(registrations[name], driver):
            return keys
    raise NoTopologyFound("no topology key found on any node: the driver is registered nowhere yet")


def _all_terms(keys: Sequence[str], nodes: Mapping[str, Node]) -> tuple[Term, ...]:
    found = {term for node in nodes.values() if (term := _term(node, keys)) is not None}
    if not found:
        raise NoTopologyFound("no available topology found")
    return tuple(sorted(found))


def _term(node: Node | None, keys: Sequence[str]) -> Term | None:
    labels = node.metadata.labels if node is not None else {}
    if any(key not in labels for key in keys):
        return None
    return tuple(sorted((key, labels[key]) for key in keys))


def _sort_by_preference(
    terms: tuple[Term, ...], own: Term | None, selected: str, claim: str
) -> tuple[Term, ...]:
    if own is None:
        return _rotate(terms, spread_hash(claim) % len(terms))
    for i, term in enumerate(terms):
        if set(term) <= set(own):
            return _rotate(terms, i)
    raise NoTopologyFound(f'topology {_format_term(own)} from selected node "{selected}" is not in requisite')


def _rotate(terms: tuple[Term, ...], by: int) -> tuple[Term, ...]:
    return terms[by:] + terms[:by]


def spread_hash(claim: str) -> int:
    """A number that grows with the ordinal of a StatefulSet's claim `<template>-<set>-<ordinal>`."""
    head, _, tail = claim.rpartition("-")
    if head and tail.isascii() and tail.isdigit() and int(tail) < 2**32:
        return (_fnv1(head.rpartition("-")[2]) + int(tail)) % 2**32
    return _fnv1(claim)


def _fnv1(text: str) -> int:
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value * 0x01000193) % 2**32 ^ byte
    return value


def _format_term(term: Term) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in term) + "}"
