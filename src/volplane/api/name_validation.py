"""Validation of object names, in the API's words.

With `prefix` the name is a generateName: characters will be appended, so it may end in a dash.
"""

from __future__ import annotations

import re

from volplane.api import names

SUBDOMAIN_LENGTH = 253
LABEL_LENGTH = 63
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def subdomain_problems(name: str, prefix: bool) -> list[str]:
    name = _complete_generate_name(name, prefix)
    wrong = [] if len(name) <= SUBDOMAIN_LENGTH else [_length_problem(SUBDOMAIN_LENGTH)]
    return wrong if names.is_subdomain(name[:SUBDOMAIN_LENGTH]) else [*wrong, names.SUBDOMAIN_MESSAGE]


def label_problems(name: str, prefix: bool) -> list[str]:
    name = _complete_generate_name(name, prefix)
    wrong = [] if len(name) <= LABEL_LENGTH else [_length_problem(LABEL_LENGTH)]
    return wrong if names.is_label(name[:LABEL_LENGTH]) else [*wrong, names.LABEL_MESSAGE]


DNS_1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    "validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def dns_1035_problems(name: str) -> list[str]:
    """A label that starts with a letter, as names of kinds, resources and versions do."""
    wrong = [] if len(name) <= LABEL_LENGTH else [_length_problem(LABEL_LENGTH)]
    return wrong if _DNS_1035.fullmatch(name) else [*wrong, DNS_1035_MESSAGE]


def service_problems(name: str, prefix: bool) -> list[str]:
    """It becomes an environment variable, which must start with a letter."""
    return dns_1035_problems(_complete_generate_name(name, prefix))


def path_segment_problems(name: str, prefix: bool) -> list[str]:
    """Any URL path segment: RBAC roles have names like `system:node`."""
    if not prefix and name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{character}'" for character in "/%" if character in name]


def _complete_generate_name(name: str, prefix: bool) -> str:
    return f"{name[:-1]}a" if prefix and name.endswith("-") else name


def _length_problem(limit: int) -> str:
    return f"must be no more than {limit} characters"
