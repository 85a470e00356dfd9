"""What an RBAC rule allows, and whether some rules cover others. Pure.

A rule with resourceNames does not allow requests without a name, and does not cover the same rule without
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from volplane.api.rbac import PolicyRule
from volplane.apiserver.auth.go_format import go_list

ANY = "*"
FULL_AUTHORITY = (
    PolicyRule(verbs=(ANY,), api_groups=(ANY,), resources=(ANY,)),
    PolicyRule(verbs=(ANY,), non_resource_urls=(ANY,)),
)


def allows_resource(rule: PolicyRule, verb: str, group: str, plural: str, subresource: str) -> bool:
    """Match verb, group and resource; the caller checks resourceNames."""
    return (
        _has(rule.verbs, verb)
        and _has(rule.api_groups, group)
        and (
            _has(rule.resources, f"{plural}/{subresource}" if subresource else plural)
            or (bool(subresource) and f"*/{subresource}" in rule.resources)
        )
    )


def allows_path(rule: PolicyRule, verb: str, path: str) -> bool:
    return _has(rule.verbs, verb) and any(_matches_url(url, path) for url in rule.non_resource_urls)


def _has(given: Sequence[str], wanted: str) -> bool:
    return wanted in given or ANY in given


def _matches_url(url: str, path: str) -> bool:
    return url in (ANY, path) or (url.endswith("*") and path.startswith(url.rstrip("*")))


def missing_rules(held: Sequence[PolicyRule], wanted: Iterable[PolicyRule]) -> list[PolicyRule]:
    """Split `wanted` into single permissions and return those that no rule of `held` covers."""
    return [
        atom
        for rule in wanted
        for atom in _split_rule(rule)
        if not any(_covers(owner, atom) for owner in held)
    ]


def _split_rule(rule: PolicyRule) -> Iterator[PolicyRule]:
    """Split into rules with one verb, group, resource and at most one name, or one verb and one URL."""
    for group in rule.api_groups:
        for resource in rule.resources:
            for verb in rule.verbs:
                atom = PolicyRule(verbs=(verb,), api_groups=(group,), resources=(resource,))
                if not rule.resource_names:
                    yield atom
                for name in rule.resource_names:
                    yield structs.replace(atom, resource_names=(name,))
    for url in rule.non_resource_urls:
        for verb in rule.verbs:
            yield PolicyRule(verbs=(verb,), non_resource_urls=(url,))


def _covers(owner: PolicyRule, atom: PolicyRule) -> bool:
    if not _has(owner.verbs, atom.verbs[0]):
        return False
    if atom.non_resource_urls:
        [url] = atom.non_resource_urls
        return any(
            held == url or (held.endswith("*") and url.startswith(held.rstrip("*")))
            for held in owner.non_resource_urls
        )
    [group], [resource] = atom.api_groups, atom.resources
    if not _has(owner.api_groups, group) or not _covers_resource(owner.resources, resource):
        return False
    return not owner.resource_names or (
        bool(atom.resource_names) and atom.resource_names[0] in owner.resource_names
    )


def _covers_resource(held: Sequence[str], resource: str) -> bool:
    _, slash, subresource = resource.partition("/")
    return _has(held, resource) or (bool(slash) and f"*/{subresource}" in held)


def compact_rules(atoms: Iterable[PolicyRule]) -> list[PolicyRule]:
    """Combine single permissions on the same resource and name into one rule with all verbs."""
    others: list[PolicyRule] = []
    joined: dict[tuple[tuple[str, ...], ...], PolicyRule] = {}
    for atom in atoms:
        if atom.non_resource_urls:
            others.append(atom)
            continue
        about = (atom.api_groups, atom.resources, atom.resource_names)
        known = joined.get(about)
        joined[about] = structs.replace(known, verbs=known.verbs + atom.verbs) if known else atom
    return others + list(joined.values())


def format_rule(rule: PolicyRule) -> str:
    """Format a rule as the Forbidden message shows it."""
    parts = (
        ("APIGroups", rule.api_groups),
        ("Resources", rule.resources),
        ("NonResourceURLs", rule.non_resource_urls),
        ("ResourceNames", rule.resource_names),
        ("Verbs", rule.verbs),
    )
    return "{" + ", ".join(f"{name}:{go_list(values)}" for name, values in parts if values) + "}"
