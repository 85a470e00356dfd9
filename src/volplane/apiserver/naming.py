"""Which names a kind accepts, and what is said about one that it does not.

With `prefix` the name is a generateName: its last characters are still to come, so it may end in a dash.
"""

from __future__ import annotations

from volplane.api import names

SUBDOMAIN_LENGTH = 253
LABEL_LENGTH = 63


def subdomain(name: str, prefix: bool) -> list[str]:
    name = _masked(name, prefix)
    wrong = [] if len(name) <= SUBDOMAIN_LENGTH else [_too_long(SUBDOMAIN_LENGTH)]
    return wrong if names.is_subdomain(name[:SUBDOMAIN_LENGTH]) else [*wrong, names.SUBDOMAIN_MESSAGE]


def label(name: str, prefix: bool) -> list[str]:
    name = _masked(name, prefix)
    wrong = [] if len(name) <= LABEL_LENGTH else [_too_long(LABEL_LENGTH)]
    return wrong if names.is_label(name[:LABEL_LENGTH]) else [*wrong, names.LABEL_MESSAGE]


def path_segment(name: str, prefix: bool) -> list[str]:
    """Anything that can stand in a URL: RBAC roles are named `system:node`."""
    if not prefix and name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{character}'" for character in "/%" if character in name]


def _masked(name: str, prefix: bool) -> str:
    return f"{name[:-1]}a" if prefix and name.endswith("-") else name


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} characters"
