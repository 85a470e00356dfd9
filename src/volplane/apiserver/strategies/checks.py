"""Checks that several kinds share. Each takes the path of a field and its value, and returns the causes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import json, to_builtins

from volplane.api import name_validation, names, quantity
from volplane.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from volplane.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required_value,
    too_long,
)
from volplane.api.meta import LabelSelector
from volplane.api.object import Object
from volplane.apiserver.object_access import path_reader

IMMUTABLE = "field is immutable"
NOT_NEGATIVE = "must be greater than or equal to 0"
FILE_MODE = "must be a number between 0 and 0777 (octal), both inclusive"
MAX_INT32 = (1 << 31) - 1
PULL_POLICIES = ("Always", "IfNotPresent", "Never")

_NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_CONFIG_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
    "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PORT_NAME = re.compile(r"[-a-z0-9]+")


# Names


def subdomain(path: str, value: str) -> list[Cause]:
    return [invalid(path, value, text) for text in name_validation.subdomain_problems(value, False)]


def label(path: str, value: str) -> list[Cause]:
    return [invalid(path, value, text) for text in name_validation.label_problems(value, False)]


def ip(path: str, value: str) -> list[Cause]:
    """An IP address. As in upstream's older fields, the numbers of IPv4 may have leading zeros."""
    parts = value.split(".")
    if all(part.isascii() and part.isdigit() for part in parts):
        value = ".".join(str(int(part[:20])) for part in parts)
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        address = None
    if address is None or "%" in value:
        message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        return [invalid(path, ".".join(parts), message)]
    return []


def qualified_name(path: str, value: str) -> list[Cause]:
    """An optional DNS prefix, a slash, a name."""
    return [invalid(path, value, text) for text in qualified_name_problems(value)]


def qualified_name_problems(value: str) -> list[str]:
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        return [
            f"a qualified name {_NAME_PART[len('name part ') :]} with an optional DNS subdomain prefix "
            "and '/' (e.g. 'example.com/MyName')"
        ]
    causes: list[str] = []
    if slash and not prefix:
        causes.append("prefix part must be non-empty")
    elif slash and not names.is_subdomain(prefix):
        causes.append(f"prefix part {names.SUBDOMAIN_MESSAGE}")
    if not name:
        causes.append("name part must be non-empty")
    elif len(name) > 63:
        causes.append("name part must be no more than 63 characters")
    if not names.is_qualified(name):
        causes.append(_NAME_PART)
    return causes


def driver_name(path: str, value: str) -> list[Cause]:
    if not value:
        return [required_value(path)]
    causes = [too_long(path, 63)] if len(value) > 63 else []
    return causes + [
        invalid(path, value, text) for text in name_validation.subdomain_problems(value.lower(), False)
    ]


def label_value(path: str, value: str) -> list[Cause]:
    return [invalid(path, value, text) for text in label_value_problems(value)]


def label_value_problems(value: str) -> list[str]:
    if len(value) > 63:
        return ["must be no more than 63 characters"]
    return [] if names.is_label_value(value) else [_LABEL_VALUE]


def labels(path: str, value: Mapping[str, str]) -> list[Cause]:
    causes: list[Cause] = []
    for key, text in value.items():
        causes += qualified_name(path, key)
        causes += label_value(path, text)
    return causes


def config_key(path: str, key: str) -> list[Cause]:
    if len(key) > 253:
        return [invalid(path, key, "must be no more than 253 characters")]
    if not _KEY.fullmatch(key):
        return [invalid(path, key, _CONFIG_KEY)]
    if key == "." or key.startswith(".."):
        return [
            invalid(path, key, f"must not be '{key}'" if key in (".", "..") else "must not start with '..'")
        ]
    return []


def port_name(path: str, value: str) -> list[Cause]:
    return [invalid(path, value, text) for text in _port_name_problems(value)]


def _port_name_problems(value: str) -> list[str]:
    if len(value) > 15:
        return ["must be no more than 15 characters"]
    causes = []
    if not _PORT_NAME.fullmatch(value):
        causes.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not any(c.isalpha() for c in value):
        causes.append("must contain at least one letter (a-z)")
    if "--" in value:
        causes.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        causes.append("must not begin or end with a hyphen")
    return causes


# Numbers and amounts


def not_negative(path: str, value: int) -> list[Cause]:
    return [invalid(path, value, NOT_NEGATIVE)] if value < 0 else []


def not_negative_fields(path: str, obj: Object, *names: str) -> Iterator[Cause]:
    """These fields (wire names) may not be negative; absent ones count as zero."""
    for name in names:
        yield from not_negative(f"{path}.{name}", path_reader(type(obj), name)(obj) or 0)


def between(path: str, value: int, low: int, high: int) -> list[Cause]:
    return (
        [] if low <= value <= high else [invalid(path, value, f"must be between {low} and {high}, inclusive")]
    )


def port(path: str, value: int) -> list[Cause]:
    return between(path, value, 1, 65535)


def port_or_name(path: str, value: int | str) -> list[Cause]:
    return port(path, value) if isinstance(value, int) else port_name(path, value)


def file_mode(path: str, mode: int | None) -> list[Cause]:
    return [] if mode is None or 0 <= mode <= 0o777 else [invalid(path, mode, FILE_MODE)]


def positive_amount(path: str, text: str) -> list[Cause]:
    return [] if quantity.parse(text) > 0 else [invalid(path, text, "must be greater than zero")]


def amount_not_negative(path: str, text: str) -> list[Cause]:
    return [] if quantity.parse(text) >= 0 else [invalid(path, text, NOT_NEGATIVE)]


def integer_amount(path: str, text: str) -> list[Cause]:
    return [] if quantity.parse(text).denominator == 1 else [invalid(path, text, "must be an integer")]


# Presence and choices


def present(path: str, value: object) -> list[Cause]:
    return [] if value else [required_value(path)]


def not_duplicate(path: str, value: Any, seen: set[Any]) -> list[Cause]:
    """A value that may occur once. Adds it to `seen`."""
    causes = [duplicate(path, value)] if value in seen else []
    seen.add(value)
    return causes


def each(path: str, items: Iterable[Any], check: Callable[[str, Any], Causes]) -> list[Cause]:
    """Run a check on each item of a list."""
    return [cause for at, item in enumerate(items) for cause in check(f"{path}[{at}]", item)]


def choice(path: str, value: str | None, allowed: Sequence[str]) -> list[Cause]:
    """An optional enumeration."""
    return [] if value is None or value in allowed else [not_supported(path, value, allowed)]


def one_of(path: str, value: str, allowed: Sequence[str]) -> list[Cause]:
    """A required enumeration; empty is reported as missing, not as unsupported."""
    if not value:
        return [required_value(path)]
    return [] if value in allowed else [not_supported(path, value, allowed)]


def at_most_one(path: str, given: Iterable[str], what: str) -> list[Cause]:
    """At most one of several fields may be set: each one after the first is forbidden."""
    _, *others = [*given, ""]
    return [forbidden(f"{path}.{name}", f"may not specify more than 1 {what}") for name in others if name]


def immutable_field(path: str, new: Any, old: Any) -> list[Cause]:
    """A field that an update may not change."""
    return [] if new == old else [invalid(path, to_plain(new), IMMUTABLE)]


def immutable_fields(path: str, new: Object, old: Object, *names: str) -> Iterator[Cause]:
    """Fields (wire names) that an update may not change."""
    for name in names:
        read = path_reader(type(new), name)
        yield from immutable_field(f"{path}.{name}", read(new), read(old))


def to_plain(value: Any) -> Any:
    """A value in the form that messages show."""
    return to_builtins(value)


# Paths of files


def no_backsteps(path: str, value: str) -> list[Cause]:
    return [invalid(path, value, "must not contain '..'")] if ".." in value.split("/") else []


def relative_path(path: str, value: str) -> list[Cause]:
    causes = [invalid(path, value, "must be a relative path")] if value.startswith("/") else []
    return causes + no_backsteps(path, value)


def local_path(path: str, value: str) -> list[Cause]:
    """A file inside a volume. Names that start with two dots are reserved for the volume itself."""
    causes = relative_path(path, value)
    if value.startswith("..") and not value.startswith("../"):
        causes.append(invalid(path, value, "must not start with '..'"))
    return causes


# Selectors


def label_selector(path: str, selector: LabelSelector | None) -> list[Cause]:
    if selector is None:
        return []
    causes = labels(f"{path}.matchLabels", selector.match_labels)
    for at, term in enumerate(selector.match_expressions):
        here = f"{path}.matchExpressions[{at}]"
        causes += _operator(here, term.operator, term.values, numeric=False)
        causes += qualified_name(f"{here}.key", term.key)
        for index, value in enumerate(term.values):
            causes += label_value(f"{here}.values[{index}]", value)
    return causes


def _operator(path: str, operator: str, values: Sequence[str], *, numeric: bool) -> list[Cause]:
    if operator in ("In", "NotIn"):
        message = "must be specified when `operator` is 'In' or 'NotIn'"
        return [] if values else [required_value(f"{path}.values", message)]
    if operator in ("Exists", "DoesNotExist"):
        message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [forbidden(f"{path}.values", message)] if values else []
    if numeric and operator in ("Gt", "Lt"):
        message = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        return [] if len(values) == 1 else [required_value(f"{path}.values", message)]
    return [invalid(f"{path}.operator", operator, "not a valid selector operator")]


def node_selector(path: str, selector: NodeSelector) -> list[Cause]:
    here = f"{path}.nodeSelectorTerms"
    if not selector.node_selector_terms:
        return [required_value(here, "must have at least one node selector term")]
    return [
        cause
        for at, term in enumerate(selector.node_selector_terms)
        for cause in node_term(f"{here}[{at}]", term)
    ]


def node_term(path: str, term: NodeSelectorTerm) -> list[Cause]:
    causes: list[Cause] = []
    for at, need in enumerate(term.match_expressions):
        causes += _node_requirement(f"{path}.matchExpressions[{at}]", need)
    for at, need in enumerate(term.match_fields):
        causes += _field_requirement(f"{path}.matchFields[{at}]", need)
    return causes


def _node_requirement(path: str, need: NodeSelectorRequirement) -> list[Cause]:
    causes = _operator(path, need.operator, need.values, numeric=True)
    causes += qualified_name(f"{path}.key", need.key)
    for index, value in enumerate(need.values):
        causes += label_value(f"{path}.values[{index}]", value)
    return causes


def _field_requirement(path: str, need: NodeSelectorRequirement) -> list[Cause]:
    causes: list[Cause] = []
    if need.operator not in ("In", "NotIn"):
        causes.append(invalid(f"{path}.operator", need.operator, "not a valid selector operator"))
    elif len(need.values) != 1:
        message = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        causes.append(required_value(f"{path}.values", message))
    if need.key != "metadata.name":
        causes.append(invalid(f"{path}.key", need.key, "not a valid field selector key"))
        return causes
    for index, value in enumerate(need.values):
        causes += subdomain(f"{path}.values[{index}]", value)
    return causes


def difference(old: Any, new: Any) -> str:
    """The fields in which two objects differ, as lines for an error message."""
    before, after = to_builtins(old), to_builtins(new)
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            lines += [
                f"{mark} {name}: {_json(side[name])}"
                for mark, side in (("-", before), ("+", after))
                if name in side
            ]
    return "\n".join(lines)


def _json(value: Any) -> str:
    return json.encode(value).decode()
