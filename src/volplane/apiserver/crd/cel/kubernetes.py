"""Kubernetes' additions to CEL: quantities, URLs, addresses, networks, named formats, `string.format`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from volplane.api import name_validation, names, quantity
from volplane.apiserver.crd.cel.errors import NO_OVERLOAD, CelEvaluationError
from volplane.apiserver.crd.cel.values import CostBudget, LibraryValue, OptionalValue
from volplane.apiserver.crd.schema import formats

_CHARACTERS = 10  # per cost step

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class CelQuantity(LibraryValue, Struct, frozen=True):
    type_name = "quantity"
    number: Fraction


class CelUrl(LibraryValue, Struct, frozen=True):
    type_name = "url"
    text: str

    def __str__(self) -> str:
        return self.text


class CelIp(LibraryValue, Struct, frozen=True):
    type_name = "ip"
    address: Address

    def __str__(self) -> str:
        return str(self.address)


class CelCidr(LibraryValue, Struct, frozen=True):
    type_name = "cidr"
    interface: Interface

    def __str__(self) -> str:
        return str(self.interface)


class CelFormat(LibraryValue, Struct, frozen=True):
    type_name = "format"
    name: str


# Quantities


def to_quantity(text: str) -> CelQuantity:
    try:
        return CelQuantity(quantity.parse(text))
    except quantity.InvalidQuantity as error:
        raise CelEvaluationError(str(error)) from None


def to_integer(value: CelQuantity) -> int:
    if not is_integer(value):
        raise CelEvaluationError("cannot convert value to integer")
    return int(value.number)


def is_integer(value: CelQuantity) -> bool:
    return value.number.denominator == 1 and -(1 << 63) <= value.number < 1 << 63


def compare(one: CelQuantity, other: CelQuantity) -> int:
    return (one.number > other.number) - (one.number < other.number)


def add_to_quantity(sign: int, one: CelQuantity, other: CelQuantity | int) -> CelQuantity:
    return CelQuantity(one.number + sign * _number(other))


def _number(value: CelQuantity | int) -> Fraction:
    return value.number if isinstance(value, CelQuantity) else Fraction(value)


# URLs


def to_url(text: str) -> CelUrl:
    """As Go's url.ParseRequestURI: an absolute URL, or an absolute path."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for one that is no number
    except ValueError:
        raise _invalid_url(text) from None
    is_absolute = bool(parts.scheme) or text.startswith("/")
    if not is_absolute or re.search(r"[\x00-\x20\x7f]|%(?![0-9a-fA-F]{2})", text):
        raise _invalid_url(text)
    return CelUrl(text)


def _invalid_url(text: str) -> CelEvaluationError:
    return CelEvaluationError(
        f'URL parse error during conversion from string: parse "{text}": invalid URI for request'
    )


def url_host(url: CelUrl) -> str:
    return urlsplit(url.text).netloc.rpartition("@")[2]


def url_hostname(url: CelUrl) -> str:
    host = url_host(url)
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def url_port(url: CelUrl) -> str:
    port = urlsplit(url.text).port
    return "" if port is None else str(port)


def url_query(url: CelUrl) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url.text).query, keep_blank_values=True)


# Addresses and networks


def to_ip(text: str) -> CelIp:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise CelEvaluationError(f'IP Address "{text}" parse error during conversion from string') from None
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise CelEvaluationError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return CelIp(address)


def is_canonical(namespace: Any, text: str) -> bool:
    return str(to_ip(text)) == text


def is_global_unicast(value: CelIp) -> bool:
    address = value.address
    excluded = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not excluded and str(address) != "255.255.255.255"


def is_link_local_multicast(value: CelIp) -> bool:
    network = "224.0.0.0/24" if value.address.version == 4 else "ff02::/16"
    return value.address in ipaddress.ip_network(network)


def to_cidr(text: str) -> CelCidr:
    if not re.fullmatch(r"[0-9a-fA-F:.]+/\d{1,3}", text):
        raise CelEvaluationError("network address parse error during conversion from string")
    try:
        return CelCidr(ipaddress.ip_interface(text))
    except ValueError:
        raise CelEvaluationError("network address parse error during conversion from string") from None


def contains_ip(cidr: CelCidr, given: CelIp | str) -> bool:
    value = to_ip(given) if isinstance(given, str) else given
    return value.address in cidr.interface.network


def contains_cidr(cidr: CelCidr, given: CelCidr | str) -> bool:
    value = to_cidr(given) if isinstance(given, str) else given
    outer, inner = cidr.interface.network, value.interface.network
    return outer.version == inner.version and outer.supernet_of(inner)  # type: ignore[arg-type]


def mask(cidr: CelCidr) -> CelCidr:
    return CelCidr(ipaddress.ip_interface(str(cidr.interface.network)))


# Named formats


def _problems(check: Callable[[str, bool], list[str]], *, prefix: bool = False) -> Callable[[str], list[str]]:
    return lambda text: check(text, prefix)


def _holds(check: Callable[[str], object], message: str) -> Callable[[str], list[str]]:
    return lambda text: [] if check(text) else [message]


def _published_format(name: str) -> Callable[[str], list[str]]:
    return _holds(partial(formats.matches_format, name), f"invalid {name}")


_FORMATS: Mapping[str, Callable[[str], list[str]]] = {
    "dns1123Label": _problems(name_validation.label_problems),
    "dns1123Subdomain": _problems(name_validation.subdomain_problems),
    "dns1035Label": _problems(name_validation.service_problems),
    "dns1123LabelPrefix": _problems(name_validation.label_problems, prefix=True),
    "dns1123SubdomainPrefix": _problems(name_validation.subdomain_problems, prefix=True),
    "dns1035LabelPrefix": _problems(name_validation.service_problems, prefix=True),
    "qualifiedName": _holds(names.is_qualified, "name part must consist of alphanumeric characters"),
    "labelValue": _holds(names.is_label_value, "a valid label must be an empty string or alphanumeric"),
    **{name: _published_format(name) for name in ("uri", "uuid", "byte", "date", "datetime")},
}


def _make_format(name: str, namespace: Any) -> CelFormat:
    return CelFormat(name)


def find_format(namespace: Any, name: str) -> OptionalValue:
    return OptionalValue(CelFormat(name)) if name in _FORMATS else OptionalValue()


def validate_format(given: CelFormat, text: str) -> OptionalValue:
    """The problems of a text; none if it has the format."""
    problems = _FORMATS[given.name](text)
    return OptionalValue(problems) if problems else OptionalValue()


# string.format

_VERB = re.compile(r"%(?:\.(\d{1,3}))?([sdfexXob%])")


def format_text(budget: CostBudget, template: str, values: list[Any]) -> str:
    left = iter(values)

    def insert(found: re.Match[str]) -> str:
        precision, verb = found.groups()
        if verb == "%":
            return "%"
        try:
            return _format_value(verb, next(left), int(precision or 6))
        except StopIteration:
            raise CelEvaluationError("index out of range while formatting") from None

    if _VERB.sub("", template).count("%"):
        raise CelEvaluationError("could not parse formatting clause: unrecognized formatting clause")
    made = _VERB.sub(insert, template)
    budget.spend(len(made) // _CHARACTERS)
    return made


def _format_value(verb: str, value: Any, precision: int) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match verb:
        case "s":
            return _to_text(value)
        case "d" if isinstance(value, int) and is_number:
            return str(value)
        case "f" | "e" if is_number:
            return f"{float(value):.{precision}{verb}}"
        case "x" | "X" if isinstance(value, str | bytes):
            made = (value.encode() if isinstance(value, str) else value).hex()
            return made.upper() if verb == "X" else made
        case "b" if isinstance(value, bool):
            return "1" if value else "0"
        case "x" | "X" | "o" | "b" if isinstance(value, int) and is_number:
            return format(value, verb)
    raise CelEvaluationError(NO_OVERLOAD)


def _to_text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case list():
            return f"[{', '.join(map(_to_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{_to_text(k)}: {_to_text(v)}' for k, v in value.items())}}}"
        case bytes():
            return value.decode(errors="replace")
    return str(value)


Row = tuple[str, Callable[..., Any]]


def _plain(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda budget, *values: run(*values)


def _is_valid(convert: Callable[[str], Any]) -> Callable[..., bool]:
    def check(budget: CostBudget, text: str) -> bool:
        budget.spend(len(text) // _CHARACTERS)
        try:
            convert(text)
        except CelEvaluationError:
            return False
        return True

    return check


def _convert_with(convert: Callable[[str], Any]) -> Callable[..., Any]:
    def run(budget: CostBudget, text: str) -> Any:
        budget.spend(len(text) // _CHARACTERS)
        return convert(text)

    return run


ROWS: tuple[Row, ...] = (
    ("quantity(string) -> quantity", _convert_with(to_quantity)),
    ("isQuantity(string) -> bool", _is_valid(to_quantity)),
    ("quantity.isInteger() -> bool", _plain(is_integer)),
    ("quantity.asInteger() -> int", _plain(to_integer)),
    ("quantity.asApproximateFloat() -> double", _plain(lambda q: float(q.number))),
    ("quantity.sign() -> int", _plain(lambda q: (q.number > 0) - (q.number < 0))),
    *(
        (f"quantity.{name}({of}) -> quantity", _plain(partial(add_to_quantity, sign)))
        for name, sign in (("add", 1), ("sub", -1))
        for of in ("quantity", "int")
    ),
    ("quantity.isLessThan(quantity) -> bool", _plain(lambda a, b: compare(a, b) < 0)),
    ("quantity.isGreaterThan(quantity) -> bool", _plain(lambda a, b: compare(a, b) > 0)),
    ("quantity.compareTo(quantity) -> int", _plain(compare)),
    ("url(string) -> url", _convert_with(to_url)),
    ("isURL(string) -> bool", _is_valid(to_url)),
    ("url.getScheme() -> string", _plain(lambda url: urlsplit(url.text).scheme)),
    ("url.getHost() -> string", _plain(url_host)),
    ("url.getHostname() -> string", _plain(url_hostname)),
    ("url.getPort() -> string", _plain(url_port)),
    ("url.getEscapedPath() -> string", _plain(lambda url: urlsplit(url.text).path)),
    ("url.getQuery() -> map(string, list(string))", _plain(url_query)),
    ("ip(string) -> ip", _convert_with(to_ip)),
    ("isIP(string) -> bool", _is_valid(to_ip)),
    ("ip_namespace.isCanonical(string) -> bool", _plain(is_canonical)),
    ("ip.family() -> int", _plain(lambda ip: ip.address.version)),
    ("ip.isUnspecified() -> bool", _plain(lambda ip: ip.address.is_unspecified)),
    ("ip.isLoopback() -> bool", _plain(lambda ip: ip.address.is_loopback)),
    ("ip.isLinkLocalUnicast() -> bool", _plain(lambda ip: ip.address.is_link_local)),
    ("ip.isLinkLocalMulticast() -> bool", _plain(is_link_local_multicast)),
    ("ip.isGlobalUnicast() -> bool", _plain(is_global_unicast)),
    ("cidr(string) -> cidr", _convert_with(to_cidr)),
    ("isCIDR(string) -> bool", _is_valid(to_cidr)),
    ("cidr.containsIP(ip) -> bool", _plain(contains_ip)),
    ("cidr.containsIP(string) -> bool", _plain(contains_ip)),
    ("cidr.containsCIDR(cidr) -> bool", _plain(contains_cidr)),
    ("cidr.containsCIDR(string) -> bool", _plain(contains_cidr)),
    ("cidr.ip() -> ip", _plain(lambda cidr: CelIp(cidr.interface.ip))),
    ("cidr.prefixLength() -> int", _plain(lambda cidr: cidr.interface.network.prefixlen)),
    ("cidr.masked() -> cidr", _plain(mask)),
    *((f"format_namespace.{name}() -> format", _plain(partial(_make_format, name))) for name in _FORMATS),
    ("format_namespace.named(string) -> optional(format)", _plain(find_format)),
    ("format.validate(string) -> optional(list(string))", _plain(validate_format)),
    ("string.format(list(dyn)) -> string", format_text),
)
