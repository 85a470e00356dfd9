"""Topology: node selectors, a volume's node affinity, a class's allowed topologies.

Terms are ORed, requirements inside a term are ANDed. An empty term matches nothing; a missing selector
matches every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.api.core import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PersistentVolume,
    TopologySelectorTerm,
)
from volplane.rules.csi_translation import csi_node_affinity


def meets(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
    return False  # the API server accepts no other operator


def _compares(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    try:
        have, bound = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return have > bound if requirement.operator == "Gt" else have < bound


def meets_term(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name}
    return all(meets(r, labels) for r in term.match_expressions) and all(
        meets(r, fields) for r in term.match_fields
    )


def selects(selector: NodeSelector, labels: Mapping[str, str], name: str = "") -> bool:
    return any(meets_term(term, labels, name) for term in selector.node_selector_terms)


def is_reachable_from(volume: PersistentVolume, labels: Mapping[str, str]) -> bool:
    """Whether the volume can be used on a node with these labels."""
    affinity = csi_node_affinity(volume)
    return affinity is None or affinity.required is None or selects(affinity.required, labels)


def allows_node(topologies: Iterable[TopologySelectorTerm], labels: Mapping[str, str]) -> bool:
    """Whether allowedTopologies permit volumes for a node with these labels."""
    terms = tuple(topologies)
    return not terms or any(_covers(term, labels) for term in terms)


def _covers(term: TopologySelectorTerm, labels: Mapping[str, str]) -> bool:
    wanted = term.match_label_expressions
    return bool(wanted) and all(labels.get(r.key) in r.values for r in wanted)
